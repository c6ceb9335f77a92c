"""Every op's exam at the real shapes of one rank, on a CPU: honest paths pass, known mistakes are caught.

python benchmarks/true_shapes.py                              every op at TP8 and TP16, honest paths, two rows
python benchmarks/true_shapes.py --mistakes                   and every known mistake (twenty minutes on two cores)
python benchmarks/true_shapes.py --op experts --all-experts   all 896 experts (TP8: 13 GB)

One line an op and TP: distributions drawn; the share of its limit that an answer takes up at most which is exact but
for its last rounding; mistakes caught; seconds; the peak of this process's memory so far. Exits with 1 where an honest
path failed or a mistake passed.
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
import op_exam  # noqa: E402
import torch  # noqa: E402

from fasttrack_validation.contracts.base import OpContract, Workload  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.op import ALIGNED, Layout  # noqa: E402
from fasttrack_validation.numerics.calibrate import Decision  # noqa: E402


class Spread(Layout):
    """As declared, with gaps between all rows and pages: what is addressed without its stride then shows."""

    def gap(self) -> int:
        """16 bytes to a kilobyte of bf16."""
        return ALIGNED * self.rng.randrange(1, 65)

    def choice(self, declared: int, *others: int) -> int:
        """As declared."""
        return declared


def workload_of(op: OpContract, tp: int, rows: int, seed: int) -> Workload:
    """A workload of `rows` rows, or a few more, with gaps between rows."""
    if op.op != "kda_decode":
        return op.at(tp, rows, Spread(random.Random(seed)), "spread")
    return op.vary(next(w for w in op.workloads() if w.axes["tp"] == tp and w.axes["rows"] >= 2 * rows), seed)


def judged(op, workload, inputs, expected, plain, got) -> tuple[bool, float]:
    """Whether every comparison passes, and the largest error of `got` relative to its limit."""
    share, passed = 0.0, True
    rulings = op_exam.rulings(op, workload, inputs, expected, plain, got)
    for comparison, ruling in zip(op.comparisons, rulings, strict=True):
        passed &= ruling.decision is Decision.PASS
        if ruling.candidate:
            for quantile, ratio in (("median", comparison.ratio), ("maximum", comparison.max_ratio)):
                floor = comparison.floor * (ratio if quantile == "maximum" else 1)
                limit = max(ratio * getattr(ruling.plain, quantile), floor)
                share = max(share, getattr(ruling.candidate, quantile) / limit) if limit else share
    return passed, share


def exam(op: OpContract, workload: Workload, with_mistakes: bool) -> Iterator[tuple[str, float]]:
    """(what went wrong or "", the share of the limit that rounding takes) of each trial, then mistakes left."""
    left = dict(op.hypotheses) if with_mistakes else {}
    for number, distribution in enumerate(op.distributions):
        inputs = op.make_inputs(workload, distribution, number)
        expected, plain = op.oracle(inputs, workload), op.plain(inputs, workload)
        for path, got in (("plain", plain), ("oracle, rounded", expected)):
            passed, share = judged(op, workload, inputs, expected, plain, got)
            yield "" if passed else f"{distribution}: {path} fails", 0.0 if path == "plain" else share
        for name, mistake in list(left.items()):
            if not judged(op, workload, inputs, expected, plain, mistake(inputs, workload))[0]:
                del left[name]
    yield from ((f"not caught: {name}", 0.0) for name in left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", nargs="+", default=list(op_exam.REAL.ops), choices=list(op_exam.REAL.ops))
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--mistakes", action="store_true")
    parser.add_argument("--all-experts", action="store_true", help="896 experts instead of the reduced number")
    chosen = parser.parse_args()
    wrong = []
    print(f"{'op':16} {'tp':>2} {'distributions':>13} {'share of limit':>14} {'mistakes':>8} {'s':>6} {'GB':>5}")
    for name in chosen.op:
        op = op_exam.REAL.op(name)
        for tp in chosen.tp:
            workload, start = workload_of(op, tp, chosen.rows, 1), time.perf_counter()
            if chosen.all_experts and name == "experts":
                axes = workload.axes | {"experts": op.architecture.moe.experts}
                workload = workload.model_copy(update={"axes": axes})
            with torch.no_grad():
                found = list(exam(op, workload, chosen.mistakes))
            faults = [f"{name} at TP{tp}: {fault}" for fault, _ in found if fault]
            wrong += faults
            mistakes = len(op.hypotheses) if chosen.mistakes else 0
            missed = sum("not caught" in fault for fault in faults)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            share = max(share for _, share in found)
            print(f"{name:16} {tp:2} {len(op.distributions):13} {share:14.2f} "
                  f"{f'{mistakes - missed}/{mistakes}' if mistakes else '-':>8} "
                  f"{time.perf_counter() - start:6.1f} {peak:5.1f}", flush=True)  # fmt: skip
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
