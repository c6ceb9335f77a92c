"""From the choice of experts to the end of the layer in one launch on a GPU: checked, then timed beside stock.

python benchmarks/moe_half.py --tp 8 16 --rows 1 2 4 8 16 32 64 --out figures.json

All 896 experts of a layer. The exam chains the ops' own: the oracle's choice is what the experts' oracle and plain path
are given. A timing's graph holds several launches with other logits and other weights but the experts' each. The stock
ops end where ranks exchange: the latent up-projection is not among them. Self-reported figures.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import experts_cuda as experts_bench  # puts tests/support on the path
import op_exam
import stock_bench
import torch
from cuda_context import DeviceContext

from fasttrack_models.kimi_k3.kernels import moe_half

MOE = op_exam.REAL.op("experts").architecture.moe
UP_WEIGHTS = ("latent_norm", "latent_up")
HIDDEN = op_exam.REAL.op("experts").architecture.hidden_size


def drawn(tp, rows):
    """One step's inputs, and shared weights of its own."""
    width, columns, latent = op_exam.REAL.op("shared_down").sizes(tp)[1], HIDDEN // tp, MOE.latent_size

    def normal(*shape):
        return torch.randn(shape, device="cuda").bfloat16()

    return {
        "logits": 1.5 * torch.randn(rows, MOE.experts, device="cuda"),
        "experts_x": normal(rows, latent), "shared_down_x": normal(rows, width),
        "shared_down": (torch.randn(HIDDEN, width, device="cuda") / width**0.5).bfloat16(),
        "latent_norm": 1 + 0.2 * normal(latent), "latent_up": normal(columns, latent) / 64,
        "latent_up_routed": normal(tp, rows, latent), "shared": normal(tp, rows, columns) / 4,
        "residual": normal(rows, columns),
    }  # fmt: skip


def bind(context, axes, config, tensors, prepared):
    """What launches, and its buffers."""
    spaces = moe_half.scratch(axes, config)
    made = {name: torch.zeros(shape, dtype=dtype, device="cuda") for name, (shape, dtype) in spaces.items()}
    for name, (shape, dtype, *_) in moe_half.persistent(axes, config).items():
        made[name] = torch.zeros(shape, dtype=dtype, device="cuda")
    columns = tensors["residual"].shape[1]
    for name, width in (("experts_routed", MOE.latent_size), ("partial", HIDDEN), ("stream", columns)):
        made[name] = torch.full((axes["rows"], width), float("nan"), dtype=torch.bfloat16, device="cuda")
    stages = {
        "shared_stages": moe_half.fragments(tensors["shared_down"]),
        "up_rows": moe_half.half_fragments(tensors["latent_up"]),
    }
    buffers = SimpleNamespace(**(tensors | prepared | stages | made))
    return (lambda: moe_half.launch(context, buffers, axes, config)), buffers


def exam(workload, tensors, static, buffers, run):
    """Messages of what is wrong."""
    found, wrong = [], []
    for _ in range(3):
        run()
        torch.cuda.synchronize()
        found.append((buffers.experts_routed.clone(), buffers.partial.clone(), buffers.stream.clone()))
    if not all(torch.equal(a, b) for one in found for a, b in zip(one, found[0], strict=True)):
        wrong.append("reruns differ")
    if buffers.barrier[1]:
        wrong.append("a block gave up")
    tp, rows = workload.axes["tp"], workload.axes["rows"]
    routing, shared = op_exam.REAL.op("routing"), op_exam.REAL.op("shared_down")
    chosen = routing.oracle(tensors, op_exam.declared(routing, tp, rows))
    up = op_exam.REAL.op("latent_up")
    inputs = static | {"x": tensors["experts_x"], "ids": chosen["ids"], "weights": chosen["weights"].float()}
    for op, at, given, name, got in (
        (experts_bench.OP, workload, inputs, "routed", found[0][0]),
        (shared, op_exam.declared(shared, tp, rows),
         {"x": tensors["shared_down_x"], "shared_down": tensors["shared_down"]}, "partial", found[0][1]),
        (up, op_exam.declared(up, tp, rows),
         {"routed": tensors["latent_up_routed"]} | {n: tensors[n] for n in ("shared", "residual", *UP_WEIGHTS)},
         "stream", found[0][2]),
    ):  # fmt: skip
        with torch.device("cuda"):
            host = [{name: path(given, at)[name].cpu()} for path in (op.oracle, op.plain)]
        ruled = op_exam.rulings(op, at, given, *host, {name: got.cpu()})
        wrong += [one.message for one in ruled if one.decision is not op_exam.Decision.PASS]
    return wrong


def stock(static, workload):
    """The stock path's ops one after another, on a step's tensors."""
    from fasttrack_validation.contracts.kimi_k3.layer_weights import Mxfp4
    from fasttrack_validation.contracts.kimi_k3.stock import ops

    experts = ops._experts(experts_bench.OP.architecture, workload.axes["experts"], workload.axes["channels"])
    packed = experts.pack(
        Mxfp4(static["w13_packed"], static["w13_scale"]), Mxfp4(static["w2_packed"], static["w2_scale"])
    )

    def bound(tensors, bias):
        scaled = (tensors["experts_x"].float() * 2.0**96).bfloat16()  # As the stock layer's down-projection leaves it.
        weight = tensors["shared_down"].T

        def run():
            routes = experts.route(tensors["logits"], bias)
            experts(scaled, routes, *packed)
            torch.mm(tensors["shared_down_x"], weight)

        return run

    return bound


def figures(context, tp, rows_list, configs, with_stock):
    """All results of one TP."""
    static = experts_bench.random_static(tp)
    bias = 0.1 * torch.randn(MOE.experts, device="cuda")
    prepared = None
    for rows in rows_list:
        workload = experts_bench.whole(experts_bench.OP.at(tp, rows, op_exam.Layout(), "timing"))
        steps = [drawn(tp, rows) | {"correction_bias": bias} for _ in range(12 if rows <= 2 else 8 if rows <= 8 else 4)]
        routing = op_exam.REAL.op("routing")
        for one in steps:
            one["ids"] = routing.oracle(one, op_exam.declared(routing, tp, rows))["ids"]
        for config in experts_bench.fitting(configs, rows):
            runs = []
            for one in steps:
                if prepared is None:
                    source = SimpleNamespace(**static)
                    prepared = moe_half.prepare(context, source, workload.axes, config)
                axes = {**workload.axes, "columns": HIDDEN // tp}
                run, buffers = bind(context, axes, config, one, prepared)
                runs.append(run)
            row = {"tp": tp, "rows": rows, **config, **experts_bench.timed(runs, workload, steps)}
            row["wrong"] = exam(workload, steps[-1], static, buffers, run) if rows <= 16 else None
            yield row
    del prepared
    torch.cuda.empty_cache()
    if with_stock:
        bound = stock(static, workload)
        for rows in rows_list:
            steps = [drawn(tp, rows) for _ in range(12 if rows <= 2 else 8 if rows <= 8 else 4)]
            us = stock_bench.replay_us([bound(one, bias) for one in steps])
            yield {"tp": tp, "rows": rows, "structure": "stock", "us": round(us, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--stages", type=int, nargs="+", default=[2])
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--out", type=Path, help="writes all results as JSON")
    chosen = parser.parse_args()
    context = DeviceContext(experts_bench.ROOT / "models/kimi_k3")
    configs = [{"structure": s, "num_stages": n} for s in ("resident", "spread") for n in chosen.stages]
    results = [{"gpu": torch.cuda.get_device_name()}]
    for tp in chosen.tp:
        for result in figures(context, tp, chosen.rows, configs, not chosen.no_stock):
            results.append(result)
            print(json.dumps(result), flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
