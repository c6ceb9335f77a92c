"""Records of grid cells as a run would leave them, for tests that compare them."""

from fasttrack_validation.contracts.grid import CellSpec
from fasttrack_validation.performance.records import Failed, Measured, Path, Record, Subject
from fasttrack_validation.timing.clocks import Conditions
from fasttrack_validation.timing.comparison import Quad, compare
from fasttrack_validation.timing.session import Method
from fasttrack_validation.timing.statistics import median_interval

SPEC = {"span": "layer", "kind": "kda_moe", "tp": 8, "rows": 1, "width": 1, "context": None}


def path(samples) -> Path:
    return Path(
        microseconds=median_interval(samples), samples=tuple(samples), kernels=("a",), prepare_seconds=1,
        first_call_seconds=2, extra_bytes=3, rulings=(),
    )  # fmt: skip


def record(
    fast=100.0, stock=200.0, samples=None, machine=None, harness="a" * 64, scope="one rank", failed=None,
    clocks=None, rows=1, stock_samples=None,
) -> Record:
    """A layer's cell whose samples are one value, or `samples`; or one that failed."""
    outcome = Failed(stage="timing", reason=failed) if failed else Measured(
        specialised=path(samples or [fast] * 6), stock=path(stock_samples or [stock] * 6),
        comparison=compare([Quad(a1=fast, b1=stock, b2=stock, a2=fast)] * 12), target_floor_us=20, physical_floor_us=16,
        bytes=80, stock_bytes=2 * 80, ceiling_bytes_per_second=4e12, method=Method(quads=12, slots=4, cold=0.9, l2_bytes=1),
        conditions=clocks or Conditions(seen=0, unavailable="no NVML"), examined_rows=(0,), calls=(),
    )  # fmt: skip
    same = dict.fromkeys(("decode", "kernels", "dispatch", "contract"), "c" * 64)
    return Record(
        spec=CellSpec(**{**SPEC, "rows": rows}), hardware="h200", scope=scope, subject=Subject(harness=harness, **same),
        machine=machine or {"device": "NVIDIA H200"}, outcome=outcome,
    )  # fmt: skip
