"""Which conditions a record must state, and which differ between two arms.

Every field of a record is a condition unless it is listed as an outcome: a field that is added later has to be equal in
both arms until somebody says otherwise."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel

from .claim import MAY_DIFFER, Claim, Pair, UnderTest
from .derive import floor_seconds
from .measurement import Measurement, Metric, Phase, Scope, known

# What is measured, or proves something about one arm. Rules of their own look at it.
OUTCOMES = frozenset({
    "schema_version", "scope", "taken", "source", "identity.candidate_active", "engine.prefix_cache_hit_rate",
    "workload.isl_achieved", "workload.osl_achieved", "speculation.acceptance_length", "timed.share",
    "result.completed", "result.failed", "result.repetitions", "result.per_request",
    *(f"result.{metric}" for metric in Metric), "validity.sane", "validity.repeated_ngrams", "validity.accuracy",
    "validity.floor",
})  # fmt: skip

# Groups that a rule of its own compares; all others are compared by P13.
GPU_COUNTS = frozenset({"hardware.gpus", "hardware.gpus_prefill", "hardware.gpus_decode"})
CLOCKS = frozenset({
    "hardware.sm_clock_mhz", "hardware.memory_clock_mhz", "hardware.clocks_locked", "hardware.throttled",
})  # fmt: skip
WINDOW = frozenset({"timed.prefill_in_window"})

NOT_APPLICABLE = "not applicable"
_OF_SPECULATION = frozenset({
    "speculation.draft_tokens", "speculation.forced", "speculation.forced_source", "identity.draft",
    "identity.draft_revision", "identity.precision.draft",
})  # fmt: skip
_OF_DISAGGREGATION = frozenset({"hardware.gpus_prefill", "hardware.gpus_decode"})

_ALWAYS = (
    "identity.commit", "identity.build", "identity.precision.weights", "hardware.sku", "hardware.gpus",
    "hardware.sm_clock_mhz", "hardware.memory_clock_mhz", "hardware.clocks_locked", "hardware.throttled",
    "hardware.driver", "workload.concurrency", "timed.phase", "result.repetitions", "collectives", "validity.floor",
)  # fmt: skip
_SHARD = (
    *_ALWAYS, "identity.model", "identity.precision.activations", "identity.precision.kv_cache",
    "identity.precision.state", "topology.tp", "topology.ep", "engine.graph_mode", "workload.context",
    "speculation.method",
)  # fmt: skip
_SERVER = (
    *(path for path in _SHARD if path != "workload.context"), "taken", "identity.released", "identity.engine",
    "identity.engine_version", "identity.model_revision", "hardware.nodes", "hardware.interconnect", "topology.pp",
    "topology.dp_attention", "topology.dcp", "topology.disaggregated", "engine.options", "engine.graph_sizes",
    "engine.prefix_cache", "workload.data", "workload.isl_asked", "workload.osl_asked", "workload.isl_achieved",
    "workload.osl_achieved", "workload.sampling", "workload.ignore_eos", "workload.request_rate",
    "workload.warmup_requests", "workload.seeds", "workload.warm_between_repetitions", "timed.prefill_in_window",
    "result.statistic", "result.completed", "result.failed", "result.per_request", "validity.sane",
    "validity.repeated_ngrams",
)  # fmt: skip
REQUIRED: dict[Scope, tuple[str, ...]] = {Scope.OP: _ALWAYS, Scope.RANK_SHARD: _SHARD, Scope.SERVER: _SERVER}


class Difference(NamedTuple):
    """A condition that is not the same in both arms."""

    path: str
    candidate: Any
    baseline: Any

    def __str__(self) -> str:
        return f"{self.path} {_shown(self.candidate)} against {_shown(self.baseline)}"


def required(measurement: Measurement, metric: Metric) -> Iterator[str]:
    """What a record of this scope must state for a comparison by `metric`. What depends on a condition that is itself
    unknown is not asked for: the condition is."""
    yield from REQUIRED[measurement.scope]
    spec = measurement.speculation
    if spec.method not in (None, "off"):
        yield from ("speculation.draft_tokens", "speculation.acceptance_length", "speculation.forced")
        if measurement.scope is Scope.SERVER:
            yield from ("identity.draft", "identity.draft_revision", "identity.precision.draft")
        if spec.forced:
            yield "speculation.forced_source"
    if measurement.topology.disaggregated:
        yield from ("hardware.gpus_prefill", "hardware.gpus_decode")
    if measurement.engine.prefix_cache:
        yield "engine.prefix_cache_hit_rate"
    if measurement.scope is Scope.SERVER:
        if measurement.timed.phase is Phase.END_TO_END or measurement.timed.prefill_in_window:
            yield from ("result.ttft", "result.tpot")
        if measurement.timed.phase not in (None, Phase.END_TO_END):
            yield "timed.share"
    if metric is Metric.TOK_S_USER:
        yield "result.tok_s_user_definition"


def stated(measurement: Measurement, path: str) -> Any:
    """The value at `path`, None where it is unknown, and NOT_APPLICABLE where another condition rules it out."""
    found = known(measurement, path)
    if found is not None:
        return found
    if path in _OF_SPECULATION and measurement.speculation.method == "off":
        return NOT_APPLICABLE
    if path in _OF_DISAGGREGATION and measurement.topology.disaggregated is False:
        return NOT_APPLICABLE
    return None


def missing(measurement: Measurement, metric: Metric) -> tuple[str, ...]:
    """Required conditions that a record does not state."""
    found = [path for path in required(measurement, metric) if known(measurement, path) is None]
    if "validity.floor" not in found and "hardware.sku" not in found and floor_seconds(measurement) is None:
        # A floor in bytes is a time only on a card whose data sheet is known.
        found.append(f"a data sheet of {measurement.hardware.sku!r}")
    return tuple(found)


def unknown(pair: Pair, metric: Metric) -> tuple[str, ...]:
    """What blocks a pair's multiplier for not being known: "candidate: hardware.driver", sorted by arm."""
    found = [f"candidate: {path}" for path in missing(pair.candidate, metric)]
    if pair.candidate.scope is not Scope.OP and pair.candidate.identity.candidate_active is None:
        found.append("candidate: identity.candidate_active")
    found += [f"baseline: {path}" for path in missing(pair.baseline, metric)]
    # Known on one side only: nobody can say that it is equal.
    for path in conditions():
        mine, other = stated(pair.candidate, path), stated(pair.baseline, path)
        if (mine is None) != (other is None):
            found.append(f"{'candidate' if mine is None else 'baseline'}: {path}")
    if pair.swap is None:
        found.append("swap")
    return tuple(dict.fromkeys(found))


def differences(pair: Pair, under_test: UnderTest) -> tuple[Difference, ...]:
    """Conditions that are known in both arms, differ, and are not under test."""
    allowed = MAY_DIFFER[under_test.subject]
    found = []
    for path in conditions():
        mine, other = stated(pair.candidate, path), stated(pair.baseline, path)
        if mine is None or other is None or mine == other or path in allowed:
            continue
        if path == "engine.options":
            names = sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))
            found += [
                Difference(f"engine.options.{name}", mine.get(name, "not set"), other.get(name, "not set"))
                for name in names if name not in under_test.options
            ]  # fmt: skip
        else:
            found.append(Difference(path, mine, other))
    return tuple(found)


def undeclared(claim: Claim, paths: frozenset[str]) -> Iterator[tuple[str, Difference]]:
    """(cell, difference) among `paths` that are not under test."""
    for pair in claim.pairs:
        for found in differences(pair, claim.under_test):
            if found.path in paths:
                yield pair.cell, found


@cache
def conditions() -> tuple[str, ...]:
    """Dotted paths of every field that has to be equal in both arms."""
    return tuple(path for path in _leaves(Measurement, "") if path not in OUTCOMES)


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and path not in OUTCOMES:
            yield from _leaves(inner, f"{path}.")
        else:
            yield path


def _shown(value: Any) -> str:
    return str(value) if not isinstance(value, (tuple, list)) else "[" + ", ".join(map(str, value)) + "]"
