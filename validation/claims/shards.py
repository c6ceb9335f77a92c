"""Cells of the rank-shard grid as measurement records, and as one claim about them.

A quad A B B A gives one repetition of each arm: the geometric mean of its two samples. Each arm is once first and once
second of a half, which is the swap test: the same code in both places. What a record of the grid does not say (whether
clocks were locked, say) stays unknown, and can be stated beside it.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from math import sqrt
from statistics import median
from typing import Any

from pydantic import ValidationError

from .. import strict
from ..errors import UserError
from ..performance.hardware import profile_of
from ..performance.records import Measured, Path, Record
from ..records import Frozen
from .claim import Claim, Pair, Subject, Swap, UnderTest
from .derive import geometric_mean
from .measurement import Measurement, Metric, Precision
from .units import Quantity, Unit

_FILE = "rank_shard.toml"
_PER_QUAD = 2


class Constant(Frozen):
    """What a contract says of every shard."""

    model: str
    ep: int
    graph_mode: str
    precision: Precision


def constant(contract: str) -> Constant:
    """What the contract called `contract` says of its shards. Raises UserError where it says nothing."""
    path = files(__package__.rpartition(".")[0]) / "contracts" / contract / _FILE
    try:
        return strict.parse(path.read_text("utf-8"), Constant, _FILE)
    except OSError as error:
        raise UserError(f"{contract} does not say what its shards are", f"add {_FILE} to its contract") from error


def claim(
    claim_id: str, title: str, contract: str, records: Sequence[Record], stated: Mapping[str, Any] | None = None
) -> Claim:  # fmt: skip
    """One claim over every measured cell, specialised against stock, by the time of a step's shard.

    `stated`: parts of a measurement record that no record of the grid holds, for both arms. Raises UserError where no cell
    is measured, or where `stated` says again what was measured.
    """
    found = [record for record in records if isinstance(record.outcome, Measured)]
    if not found:
        raise UserError("no cell is measured: there is nothing to claim", "run `fasttrack grid run` on such a machine")
    known = constant(contract)
    pairs = tuple(_pair(record, known, stated or {}) for record in found)
    return Claim(
        id=claim_id, title=title, metric=Metric.STEP_TIME, under_test=UnderTest(subject=Subject.CODE), pairs=pairs,
        cells=tuple(pair.cell for pair in pairs),
    )  # fmt: skip


def measurements(record: Record, known: Constant, stated: Mapping[str, Any]) -> tuple[Measurement, Measurement]:
    """(specialised, stock) of a measured cell."""
    outcome = record.outcome
    subject, machine = record.subject, record.machine
    kernels = ", ".join(dict.fromkeys(outcome.specialised.kernels))
    active = f"launches of its captured graph: {kernels}"
    commit = f"kernels {subject.kernels[:16]}, decode path {subject.decode[:16]}, dispatch {subject.dispatch[:16]}"
    arms = (
        (outcome.specialised, {"commit": commit, "candidate_active": active}),
        (outcome.stock, {"commit": f"stock path of {subject.harness[:16]}"}),
    )
    build = ", ".join(f"{name} {machine[name]}" for name in ("torch", "triton", "cuda") if name in machine)
    return tuple(_measurement(record, known, stated, path, {**identity, "build": build}) for path, identity in arms)


def _measurement(
    record: Record, known: Constant, stated: Mapping[str, Any], path: Path, identity: dict[str, str]
) -> Measurement:  # fmt: skip
    spec, outcome = record.spec, record.outcome
    seen, driver = outcome.conditions, record.machine.get("driver")
    card = profile_of(record.machine.get("device", ""))
    floor = {"moved_bytes": outcome.bytes}
    if card is not None:
        # The record keeps bytes and a time; where arithmetic is what takes it, the flops follow from the time.
        by_bytes = outcome.bytes / card.datasheet_bytes_per_second
        least = outcome.physical_floor_us / 1e6
        floor["flops"] = round(least * card.datasheet_flops_bf16) if least > by_bytes * (1 + 1e-9) else 0
    throttled = None if seen.unavailable else any("slowdown" in one or "brake" in one for one in seen.throttles)
    own: dict[str, Any] = {
        "schema_version": "fasttrack.measurement/1", "scope": "rank_shard", "collectives": (),
        "identity": {**identity, "model": known.model, "precision": known.precision.model_dump()},
        "hardware": {
            "sku": record.hardware, "gpus": 1, "sm_clock_mhz": seen.sm_mhz_lowest,
            "memory_clock_mhz": seen.memory_mhz_lowest, "throttled": throttled,
            "driver": driver and f"CUDA driver {driver}",
        },
        "topology": {"tp": spec.tp, "ep": known.ep},
        "engine": {"graph_mode": known.graph_mode},
        "workload": {
            "data": f"{spec.kind}, drawn inputs", "context": spec.context or 0, "concurrency": spec.rows // spec.width,
        },
        "speculation": {"method": "off"} if spec.width == 1 else {},
        "timed": {"phase": "decode", "prefill_in_window": False},
        "result": {
            "step_time": {"value": geometric_mean(repetitions(path)), "unit": "us"},
            "repetitions": {
                "metric": "step_time", "interleaved": True,
                "series": {"unit": "us", "values": repetitions(path)},
            },
        },
        "validity": {"sane": True, "floor": floor},
    }  # fmt: skip
    try:
        return Measurement.model_validate(_joined(own, stated, ""), strict=False)
    except ValidationError as error:
        one = error.errors()[0]
        where = ".".join(map(str, one["loc"]))
        raise UserError(f"{record.spec.key}: {where}: {one['msg']}", f"correct {where} in what is stated") from error


def repetitions(path: Path) -> tuple[float, ...]:
    """Microseconds of each quad: the geometric mean of an arm's two samples in it."""
    return tuple(sqrt(one * other) for one, other in zip(path.samples[::2], path.samples[1::2], strict=True))


def _pair(record: Record, known: Constant, stated: Mapping[str, Any]) -> Pair:
    candidate, baseline = measurements(record, known, stated)
    return Pair(cell=record.spec.key, candidate=candidate, baseline=baseline, swap=swap(record.outcome))


def swap(outcome: Measured) -> Swap:
    """The arm that its place moved more, by the median over quads, which one disturbed sample does not move. A is first in
    the first half of A B B A, B in the second half."""
    found = []
    for path, first in ((outcome.specialised, 0), (outcome.stock, 1)):
        ones, others = path.samples[first::_PER_QUAD], path.samples[1 - first :: _PER_QUAD]
        moved = median(one / other for one, other in zip(ones, others, strict=True))
        second = geometric_mean(others)
        one, other = (Quantity(value=value, unit=Unit.MICROSECOND) for value in (second * moved, second))
        found.append(Swap(first=one, second=other))
    return max(found, key=lambda one: one.bias)


def _joined(own: Mapping[str, Any], stated: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """`own` with what is stated beside it; UserError where both say something."""
    joined = dict(own)
    for name, value in stated.items():
        mine, where = joined.get(name), f"{prefix}{name}"
        if isinstance(value, Mapping) and isinstance(mine, Mapping):
            joined[name] = _joined(mine, value, f"{where}.")
        elif mine is not None:
            raise UserError(f"{where} was measured, and is stated as {value!r}", f"leave {where} out")
        else:
            joined[name] = value
    return joined
