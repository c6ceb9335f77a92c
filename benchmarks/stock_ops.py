"""The stock path of every op on one GPU: it sits the op's own exam at the real shapes of one rank, then it is timed.

python benchmarks/stock_ops.py --tp 8 16 --rows 1 4 16 64 --out figures.json

An exam draws the op's distributions for a drawn layout and holds the stock path's results against the contract's own
comparisons. A timing replays one graph of many calls, each on copies of all tensors of its own, more than the L2 cache
together. Launches are counted from the graph of one call. Self-reported figures: they are no evidence.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
import op_exam  # noqa: E402
import stock_bench  # noqa: E402
import torch  # noqa: E402

from fasttrack_validation.contracts.base import OpContract, TensorRole, Workload  # noqa: E402


def laid_out(op: OpContract, workload: Workload, inputs=None) -> dict[str, torch.Tensor]:
    """The op's tensors on the GPU: `inputs`, or drawn for a timing with full page tables."""
    specs = [spec for spec in op.tensors(workload) if spec.role is not TensorRole.OUTPUT]
    if inputs:
        return {spec.name: stock_bench.placed(spec, inputs[spec.name]) for spec in specs}
    drawn = {spec.name: stock_bench.drawn(spec, workload.axes["rows"]) for spec in specs}
    if "lengths" in drawn:
        drawn["lengths"].fill_(workload.axes["table_width"] * workload.axes["page_size"])
    return drawn


def exam(op: OpContract, tp: int, rows: int, distributions: list[str]) -> Iterator[dict]:
    """The stock path's rulings on drawn inputs."""
    declared = next(w for w in op.workloads() if w.axes["tp"] == tp and w.axes["rows"] >= rows)
    workload = op.vary(declared, rows)
    path = op.stock("cuda")
    for number, distribution in enumerate(distributions):
        inputs = op.make_inputs(workload, distribution, number)
        got = {name: value.cpu().contiguous() for name, value in path(laid_out(op, workload, inputs), workload).items()}
        wrong = op_exam.failures(op, workload, inputs, got)
        yield {"exam": op.op, "tp": tp, "rows": workload.axes["rows"], "distribution": distribution, "wrong": wrong}


def timing(op: OpContract, tp: int, rows: int) -> dict:
    """Time and launches at a declared workload."""
    workload = next(w for w in op.workloads() if (w.axes["tp"], w.axes["rows"]) == (tp, rows))
    path, cost = op.stock("cuda"), op.cost(workload)
    first = laid_out(op, workload)
    count = stock_bench.copies_of(sum(tensor.nbytes for tensor in first.values()))
    runs = [path.prepare(first if i == 0 else laid_out(op, workload), workload) for i in range(count)]
    us = stock_bench.replay_us([run.run for run in runs])
    return {
        "op": op.op, "tp": tp, "rows": rows, "us": us, "TB/s": cost.bytes / us / 1e6,
        "launches": len(stock_bench.launches(runs[0].run)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", nargs="+", default=list(op_exam.REAL.ops), choices=list(op_exam.REAL.ops))
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--exam-rows", type=int, nargs="*", default=[8], help="none: no exams")
    parser.add_argument("--distributions", type=int, default=99, help="at most this many of each op")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--out", type=Path, help="writes all results as JSON")
    chosen = parser.parse_args()
    results: list[dict] = [{"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}]
    for name in chosen.op:
        op = op_exam.REAL.op(name)
        for tp in chosen.tp:
            try:
                for rows in chosen.exam_rows:
                    results += exam(op, tp, rows, list(op.distributions)[: chosen.distributions])
                if not chosen.no_timing:
                    results += [timing(op, tp, rows) for rows in chosen.rows]
            except Exception:  # One op's fault shall not hide the figures of the others.
                results.append({"op": name, "tp": tp, "raised": traceback.format_exc()[-1500:]})
            torch.cuda.empty_cache()
        passed = [r for r in results if r.get("exam") == name]
        print(json.dumps({"op": name, "exams": len(passed), "failed": [r for r in passed if r["wrong"]][:4],
                          "raised": [r["raised"] for r in results if r.get("op") == name and "raised" in r],
                          "us": [[r["tp"], r["rows"], round(r["us"], 2), round(r["TB/s"], 2), r["launches"]]
                                 for r in results if r.get("op") == name and "us" in r]}), flush=True)  # fmt: skip
    if chosen.out:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
