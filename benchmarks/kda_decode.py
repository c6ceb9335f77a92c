"""kda_decode on a GPU: every configuration of the design space and the stock path, checked, then timed in one run.

Each is held against the float64 oracle first (the contract's own comparison, fresh inputs, padded rows among them),
then timed as replays of a CUDA graph that runs it once on each of many copies of weights, inputs and state, together
larger than twice the L2: every read is cold, as in a step of a served model. Medians of interleaved replays, in
microseconds per launch of the op. Self-reported figures for tuning: they are no evidence, and enter no dispatch table.

    python benchmarks/kda_decode.py --out figures.json [--rows 1 4 16 64] [--tp 8 16]
"""

import argparse
import itertools
import json
import statistics
import tomllib
from importlib import import_module
from importlib.resources import files
from types import SimpleNamespace

import torch

from fasttrack_validation import contracts
from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.calibrate import decide, measure

L2_FACTOR = 2.5
MAX_COPIES = 256
REPLAYS = 40


def configurations():
    """Every configuration of the shipped design space."""
    space = tomllib.loads((files("fasttrack_models.kimi_k3") / "kernels/kda_decode.space.toml").read_text("utf-8"))
    names = list(space["parameters"])
    for values in itertools.product(*space["parameters"].values()):
        config = dict(zip(names, values, strict=True))
        if not any(all(config[k] == v for k, v in rule.items()) for rule in space.get("exclude", [])):
            yield config


def place(op, workload, inputs, device="cuda"):
    """The op's tensors on the device, laid out with the contract's strides; outputs hold NaN."""
    laid = {}
    for spec in op.tensors(workload):
        value = inputs.get(spec.name)
        dtype = torch.bfloat16 if value is None else value.dtype
        storage = torch.zeros(max(spec.storage_elements, 1), dtype=dtype, device=device)
        laid[spec.name] = storage.as_strided(spec.shape, spec.strides)
        laid[spec.name].copy_(torch.full(spec.shape, float("nan")) if value is None else value)
    return laid


class Kernel:
    """The shipped kernel under one configuration."""

    def __init__(self, workload, config):
        self.module = import_module("fasttrack_models.kimi_k3.kernels.kda_decode")
        self.axes, self.config = workload.axes, config

    def bind(self, laid):
        """A call that runs the op on `laid` in place."""
        static = SimpleNamespace(**{name: laid[name] for name in ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")})
        prepared = self.module.prepare(None, static, self.axes, self.config)
        scratch = {
            name: torch.empty(shape, dtype=dtype, device="cuda")
            for name, (shape, dtype) in self.module.scratch(self.axes, self.config).items()
        }
        buffers = SimpleNamespace(**laid, **prepared, **scratch)
        return lambda: self.module.launch(None, buffers, self.axes, self.config)


class Stock:
    """The public pieces that a user runs today."""

    def __init__(self, op, workload):
        self.path, self.workload = op.stock("cuda"), workload

    def bind(self, laid):
        """As Kernel.bind; the stock path brings its own output buffer."""
        bound = self.path.prepare(laid, self.workload)
        laid["out"] = bound.outputs["out"]
        return bound.run


def check(op, workload, make, distributions):
    """The contract's comparison on fresh inputs; the first message that is not a pass, or None."""
    for distribution in distributions:
        inputs = op.make_inputs(workload, distribution, torch.seed() % 2**62)
        laid = place(op, workload, inputs)
        make.bind(laid)()
        torch.cuda.synchronize()
        oracle, plain = op.oracle(inputs, workload), op.plain(inputs, workload)
        for comparison in op.comparisons:
            name = comparison.tensor
            got = laid[name].cpu().contiguous()
            owners = [op.row_of(name, (i,) + (0,) * (got.dim() - 1), inputs) for i in range(len(got))]
            ruling = decide(comparison, [measure(comparison, oracle[name], plain[name], got, owners)])
            if ruling.decision != "pass":
                return f"{distribution}: {ruling.message}"
    return None


def capture(op, workload, make):
    """A CUDA graph of one launch of the op on each of many cold copies, and the calls that keep their memory alive."""
    inputs = op.make_inputs(workload, "typical", 1)
    bytes_each = op.cost(workload).bytes_read  # of a pool only the live rows' pages are touched
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    copies = min(MAX_COPIES, max(4, int(L2_FACTOR * l2 / bytes_each) + 1))
    calls = [make.bind(place(op, workload, inputs)) for _ in range(copies)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph, calls


def replay(graph):
    """Milliseconds of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="write all figures as JSON")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/kda_decode.py needs a CUDA GPU")
    op = contracts.load("kimi_k3").op("kda_decode")
    figures = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cells": {}}
    for workload in op.workloads():
        if workload.axes["rows"] not in chosen.rows or workload.axes["tp"] not in chosen.tp:
            continue
        makers = {
            " ".join(f"{k}={v}" for k, v in config.items()): Kernel(workload, config) for config in configurations()
        }
        wrong = {}
        try:
            makers["stock"] = Stock(op, workload)
        except UserError as error:
            wrong["stock"] = error.what
        for name, make in makers.items():
            if fault := check(op, workload, make, ("typical", "padded", "decay_extremes")):
                wrong[name] = fault
        graphs = {name: capture(op, workload, make) for name, make in makers.items()}
        times = {name: [] for name in graphs}
        for graph, _ in graphs.values():
            replay(graph)
        for _ in range(REPLAYS):
            for name, (graph, calls) in graphs.items():
                times[name].append(replay(graph) * 1e3 / len(calls))
        medians = {name: statistics.median(samples) for name, samples in times.items()}
        floor = op.cost(workload).bytes / 4.8e12 * 1e6
        figures["cells"][workload.name] = {"medians_us": medians, "wrong": wrong, "physical_floor_us": floor}
        best = min((t, n) for n, t in medians.items() if n != "stock" and n not in wrong)
        stock = medians.get("stock")
        ratio = "no ratio: " + wrong.get("stock", "")[:160]
        if stock and "stock" not in wrong:
            ratio = f"{stock / best[0]:.2f} x"
        print(f"{workload.name}: best {best[0]:.2f} us ({best[1]}), stock {stock and round(stock, 2)} us, {ratio}, "
              f"physical floor {floor:.2f} us, wrong: {len(wrong)}", flush=True)  # fmt: skip
        if chosen.out:
            with open(chosen.out, "w") as file:
                json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
