"""The CUDA C++ experts on one GPU: the op's own exam at real shapes, then times beside the stock path's.

python benchmarks/experts_cuda.py --tp 8 16 --rows 1 2 4 8 16 32 64 --out figures.json

An exam draws distributions of the op with the experts that the contract judges, another the whole 896 for one row count.
A timing has all 896 experts of a layer; a graph holds several launches with other random choices each, more than the
L2 cache together; medians. Self-reported figures: they are no evidence.
"""

import argparse
import json
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import op_exam  # noqa: E402
import stock_bench  # noqa: E402
import torch  # noqa: E402
from cuda_context import DeviceContext  # noqa: E402
from cuda_experts import OP, bind, exam, fitting, ruled, whole  # noqa: E402

from fasttrack_models.kimi_k3.kernels import experts_cuda  # noqa: E402
from fasttrack_validation.contracts.base import TensorRole  # noqa: E402


def random_static(tp):
    """All 896 experts: any bytes are elements, scales of three octaves."""
    workload = whole(OP.at(tp, 1, op_exam.Layout(), "timing"))
    specs = [spec for spec in OP.tensors(workload) if spec.role is TensorRole.STATIC]
    return {
        spec.name: torch.randint(*((119, 122) if "scale" in spec.name else (0, 256)), spec.shape,
                                 dtype=torch.uint8, device="cuda")
        for spec in specs
    }  # fmt: skip


def step(workload):
    """One step's inputs."""
    rows, moe = workload.axes["rows"], OP.architecture.moe
    return {
        "x": torch.randn(rows, moe.latent_size, device="cuda").bfloat16(),
        "ids": torch.rand(rows, moe.experts, device="cuda").topk(moe.top_k, 1).indices.int(),
        "weights": torch.rand(rows, moe.top_k, device="cuda") / moe.top_k,
    }


def timed(runs, workload, steps):
    """Median microseconds, and TB/s of the weights that the steps' experts need."""
    us = stock_bench.replay_us(runs)
    experts = sum(len(one["ids"].unique()) for one in steps) / len(steps)
    elements = 3 * workload.axes["channels"] * OP.architecture.moe.latent_size
    return {"us": round(us, 2), "experts": experts, "TB/s": round(experts * elements * 17 / 32 / us / 1e6, 3)}


def timings(context, tp, rows_list, configs, stock):
    """All timings of one TP: rows -> configuration -> figures."""
    static = random_static(tp)
    shared = None
    for rows in rows_list:
        workload = whole(OP.at(tp, rows, op_exam.Layout(), "timing"))
        steps = [step(workload) for _ in range(16 if rows <= 2 else 8 if rows <= 8 else 4)]
        for config in fitting(configs, rows):
            runs = []
            for one in steps:
                run, bound, shared = bind(context, workload, static | one, config, shared)
                runs.append(run)
            row = {"tp": tp, "rows": rows, **config, **timed(runs, workload, steps)}
            if bound.barrier[1]:
                row["wrong"] = "a block gave up"
            yield row
        if rows in (4, 16):
            for config, wrong in ruled(context, workload, static | steps[0], fitting(configs, rows), shared):
                yield {"exam": "all experts", "tp": tp, "rows": rows, **config, "wrong": wrong}
    del shared
    torch.cuda.empty_cache()
    if not stock:
        return
    from fasttrack_validation.contracts.kimi_k3.layer_weights import Mxfp4
    from fasttrack_validation.contracts.kimi_k3.stock import ops

    packed = None
    for rows in rows_list:
        workload = whole(OP.at(tp, rows, op_exam.Layout(), "timing"))
        steps = [step(workload) for _ in range(16 if rows <= 2 else 8 if rows <= 8 else 4)]
        experts = ops._experts(OP.architecture, workload.axes["experts"], workload.axes["channels"])
        if packed is None:
            packed = experts.pack(
                Mxfp4(static["w13_packed"], static["w13_scale"]), Mxfp4(static["w2_packed"], static["w2_scale"])
            )
        outs = [torch.empty(rows, OP.architecture.moe.latent_size, dtype=torch.bfloat16, device="cuda") for _ in steps]

        def run(one, out, experts=experts, packed=packed):
            latent, routes = experts.group(one["x"], one["ids"], one["weights"])
            experts(latent, routes, *packed, out)

        runs = [lambda one=one, out=out: run(one, out) for one, out in zip(steps, outs, strict=True)]
        yield {"tp": tp, "rows": rows, "structure": "stock", **timed(runs, workload, steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--exam-rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--distributions", nargs="+", default=list(OP.distributions))
    parser.add_argument("--structures", nargs="+", default=list(experts_cuda.STRUCTURES))
    parser.add_argument("--stages", type=int, nargs="+", default=[3])
    parser.add_argument("--ordinary", action="store_true", help="no cooperative launches")
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--out", type=Path, help="writes all results as JSON")
    chosen = parser.parse_args()
    context = DeviceContext(ROOT / "models/kimi_k3", cooperative=not chosen.ordinary)
    results = [{"gpu": torch.cuda.get_device_name()}]
    configs = [{"structure": s, "num_stages": n} for s in chosen.structures for n in chosen.stages]

    def note(result):
        results.append(result)
        print(json.dumps(result), flush=True)
        if chosen.out:
            chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")

    for tp in chosen.tp:
        for number, rows in enumerate(chosen.exam_rows):
            for place, distribution in enumerate(chosen.distributions):
                # Every distribution with some row count, the typical one with all.
                if place and (place + number) % 4:
                    continue
                workload = OP.at(tp, rows, OP._drawn(f"{tp} {rows}"), "exam")
                try:
                    for config, wrong in exam(context, workload, distribution, fitting(configs, rows)):
                        note({"exam": distribution, "tp": tp, "rows": rows, **config, "wrong": wrong})
                except Exception:
                    note({"exam": distribution, "tp": tp, "rows": rows, "raised": traceback.format_exc()[-1500:]})
        try:
            for row in timings(context, tp, chosen.rows, configs, not chosen.no_stock):
                note(row)
        except Exception:
            note({"tp": tp, "raised": traceback.format_exc()[-2000:]})
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
