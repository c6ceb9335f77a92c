"""Cells of a server's grid as measurement records, and as claims: one for each window, because one says one thing.

A round gives one repetition of each arm, and rounds took turns. Which arm went first alternates, which is the swap test:
the stock arm's rounds in the first place against its rounds in the second.
"""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from ..claims.claim import Claim, Pair, Subject, Swap, UnderTest
from ..claims.derive import geometric_mean
from ..claims.measurement import Measurement, Metric
from ..claims.units import Quantity, Unit
from ..errors import UserError
from ..performance.serving_grid import Drafting, Load
from .figures import acceptance, hit_rate
from .records import Measured, Record, Round, Side
from .servers import Arm, Server

METRIC = Metric.TOK_S_USER


def claims(
    claim_id: str, title: str, records: Sequence[Record], options: Sequence[str] = ()
) -> tuple[Claim, ...]:  # fmt: skip
    """A claim for each load that was measured: `ID-decode-only`, `ID-mixed-prefill`, `ID-agentic`.

    Decode-only cells carry the end-to-end row of the mixed cell under the same conditions, where that was measured.
    `options`: engine options that differ because the path under test is switched on by them. Raises UserError where no
    cell is measured.
    """
    found = [record for record in records if isinstance(record.outcome, Measured)]
    if not found:
        raise UserError("no cell is measured: there is nothing to claim", "run `fasttrack grid run --scope server`")
    pairs = {record.cell: _pair(record) for record in found}
    under_test = UnderTest(subject=Subject.CODE, options=tuple(options))
    made = []
    for load in Load:
        mine = {cell: pair for cell, pair in pairs.items() if cell.load is load}
        if not mine:
            continue
        whole = ()
        if load is Load.DECODE_ONLY:
            twins = ((pair, cell.model_copy(update={"load": Load.MIXED_PREFILL})) for cell, pair in mine.items())
            whole = tuple(pairs[twin].model_copy(update={"cell": pair.cell}) for pair, twin in twins if twin in pairs)
        made.append(Claim(
            id=f"{claim_id}-{load.replace('_', '-')}", title=f"{title}, {load.replace('_', ' ')}", metric=METRIC,
            under_test=under_test, pairs=tuple(mine.values()), cells=tuple(pair.cell for pair in mine.values()),
            end_to_end=whole, end_to_end_metric=METRIC if whole else Metric.REQUEST_LATENCY,
        ))  # fmt: skip
    return tuple(made)


def measurement(record: Record, side: Side) -> Measurement:
    """One arm of a measured cell. Raises ValueError for conditions that do not fit a record."""
    cell, asking, rounds = record.cell, record.asking, side.rounds
    decode = asking.decode_only
    requests = [one for each in rounds for one in each.requests]
    server = Server(
        arm=side.arm, url="http://kept", model=side.model, tp=cell.tp, speculation=cell.speculation,
        conditions=side.conditions,
    )  # fmt: skip
    accepted = acceptance(rounds) if cell.speculation is not Drafting.OFF else None
    hits = hit_rate(rounds) if server.record().engine.prefix_cache else None
    repeated = [one.repeated_ngrams for one in rounds if one.repeated_ngrams is not None]
    parts: dict[str, Any] = {
        "taken": record.taken,
        "identity": {} if side.version is None else {"engine_version": side.version},
        "hardware": {"sku": record.hardware},
        "engine": {} if hits is None else {"prefix_cache_hit_rate": hits},
        "workload": {
            "data": asking.data, "isl_asked": cell.isl, "osl_asked": asking.osl if cell.isl else None,
            "isl_achieved": _mean(one.input_tokens for one in requests),
            "osl_achieved": _mean(one.output_tokens for one in requests), "concurrency": cell.concurrency,
            "sampling": {"temperature": asking.temperature}, "ignore_eos": True,
            "request_rate": asking.rate or "unlimited", "warmup_requests": asking.warm_up,
            "seeds": tuple(one.seed for one in rounds), "warm_between_repetitions": True,
        },
        "speculation": {} if accepted is None else {
            "acceptance_length": accepted, "draft_tokens": record.draft_tokens,
        },
        "timed": {
            "phase": "decode" if decode else "end_to_end", "prefill_in_window": not decode,
            **({"share": fmean(one.figures.decode_share for one in rounds)} if decode else {}),
        },
        "result": _result(rounds),
        "validity": {
            "sane": True, "repeated_ngrams": fmean(repeated) if repeated else None,
            "floor": record.floor and {"moved_bytes": record.floor[0], "flops": record.floor[1]},
        },
    }  # fmt: skip
    return server.record(**{name: _known(value) for name, value in parts.items()})


def _result(rounds: Sequence[Round]) -> dict[str, Any]:
    """Means over rounds, the rounds themselves, and arrays over all requests."""
    requests = [one for each in rounds for one in each.requests]
    figures = [one.figures for one in rounds]
    itl = [one.itl for one in figures]

    def seconds(value: float) -> dict[str, Any]:
        return {"value": value, "unit": "s"}

    rates = [one.tok_s_user for one in figures]
    return {
        "completed": len(requests), "failed": 0, "statistic": "mean",
        "ttft": seconds(fmean(one.ttft for one in figures)), "tpot": seconds(fmean(one.tpot for one in figures)),
        "itl": None if None in itl else seconds(fmean(itl)),
        "request_latency": seconds(fmean(one.latency for one in figures)),
        "tok_s_user": {"value": geometric_mean(rates), "unit": "tok/s"}, "tok_s_user_definition": "1/tpot",
        "tok_s_system": {"value": fmean(one.tok_s_system for one in figures), "unit": "tok/s"},
        "repetitions": {
            "metric": "tok_s_user", "interleaved": True, "series": {"unit": "tok/s", "values": tuple(rates)},
        },
        "per_request": {
            "ttft": {"unit": "s", "values": tuple(one.first for one in requests)},
            "latency": {"unit": "s", "values": tuple(one.latency for one in requests)},
            "output_tokens": tuple(one.output_tokens for one in requests),
        },
    }  # fmt: skip


def _pair(record: Record) -> Pair:
    outcome = record.outcome
    try:
        arms = {side.arm: measurement(record, side) for side in (outcome.stock, outcome.specialised)}
    except ValueError as error:
        raise UserError(f"{record.cell.key}: {error}", "correct the file of servers and run the cell again") from error
    return Pair(
        cell=record.cell.key, candidate=arms[Arm.SPECIALISED], baseline=arms[Arm.STOCK], swap=_swap(outcome)
    )


def _swap(outcome: Measured) -> Swap | None:
    """The arm that its place moved more, by the median over two rounds each; None where no arm was in both places."""
    found = []
    for side in (outcome.stock, outcome.specialised):
        rates = [one.figures.tok_s_user for one in side.rounds]
        first = 0 if outcome.order[0] is side.arm else 1
        twos = list(zip(rates[first::2], rates[1 - first :: 2], strict=False))
        if not twos:
            return None
        moved, second = median(one / other for one, other in twos), geometric_mean([other for _, other in twos])
        one, other = (Quantity(value=value, unit=Unit.TOKENS_PER_SECOND) for value in (second * moved, second))
        found.append(Swap(first=one, second=other))
    return max(found, key=lambda one: one.bias)


def _mean(values: Any) -> float | None:
    known = list(values)
    return None if None in known or not known else fmean(known)


def _known(value: Any) -> Any:
    """Without what is unknown."""
    if not isinstance(value, dict):
        return value
    return {name: _known(one) for name, one in value.items() if one is not None}
