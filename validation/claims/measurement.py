"""The measurement record: one arm, with every condition that it was taken under.

A field that is absent, or null, is *unknown*. Nothing is assumed in its place: not one GPU, not a prefix cache that is
off, not natural acceptance. What is known to be absent has a value of its own (`"off"`, `false`, `[]`, `0`).
"""

from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..records import Frozen
from .units import Quantity, Series

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class Scope(StrEnum):
    """What ran."""

    OP = "op"
    RANK_SHARD = "rank_shard"
    SERVER = "server"


class Phase(StrEnum):
    """What the timed window holds."""

    END_TO_END = "end_to_end"
    DECODE = "decode"
    PREFILL = "prefill"
    OP = "op"


class Metric(StrEnum):
    """Figures that arms can be compared by. Less is better of times."""

    OP_TIME = "op_time"
    STEP_TIME = "step_time"
    TTFT = "ttft"
    TPOT = "tpot"
    ITL = "itl"
    REQUEST_LATENCY = "request_latency"
    TOK_S_USER = "tok_s_user"
    TOK_S_SYSTEM = "tok_s_system"
    TOK_S_GPU = "tok_s_gpu"

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return not self.startswith("tok_s")


class UserRate(StrEnum):
    """What tok/s/user means in a record."""

    INVERSE_TPOT = "1/tpot"
    TOKENS_OVER_LATENCY = "output_tokens/request_latency"


class Precision(Frozen):
    """Formats in use, as the engine names them."""

    weights: Text | None = None
    activations: Text | None = None
    kv_cache: Text | None = None
    state: Text | None = Field(None, description="recurrent state; 'none' where a model has none")
    draft: Text | None = Field(None, description="weights of the draft model; needed with speculation")


class Identity(Frozen):
    """What was measured."""

    commit: Text | None = Field(None, description="of the engine or kernels, as the repository names it")
    build: Text | None = Field(None, description="image, wheel or compiler that the commit was built with")
    released: date | None = Field(None, description="the commit's date")
    engine: Text | None = None
    engine_version: Text | None = None
    candidate_active: Text | None = Field(None, description="what shows that the path under test ran; candidate only")
    model: Text | None = None
    model_revision: Text | None = None
    draft: Text | None = None
    draft_revision: Text | None = None
    precision: Precision = Precision()


class Hardware(Frozen):
    """What it ran on."""

    sku: Text | None = Field(None, description="a name of validation/performance/hardware.toml where there is one")
    gpus: Positive | None = Field(None, description="of the whole system under load")
    gpus_prefill: Count | None = None
    gpus_decode: Count | None = None
    nodes: Positive | None = None
    interconnect: Text | None = None
    sm_clock_mhz: Positive | None = None
    memory_clock_mhz: Positive | None = None
    clocks_locked: bool | None = None
    throttled: bool | None = Field(None, description="whether any throttle reason was seen while it ran")
    driver: Text | None = None


class Topology(Frozen):
    """How the model was laid out over GPUs."""

    tp: Positive | None = None
    pp: Positive | None = None
    ep: Positive | None = None
    dp_attention: bool | None = None
    dcp: Positive | None = None
    disaggregated: bool | None = Field(None, description="whether prefill and decode have GPUs of their own")


class Engine(Frozen):
    """How the engine was set."""

    options: dict[str, str] | None = Field(None, description="every argument that is not the default; {} for none")
    graph_mode: Text | None = None
    graph_sizes: tuple[Positive, ...] | None = None
    prefix_cache: bool | None = None
    prefix_cache_hit_rate: Share | None = Field(None, description="measured, of prompt tokens")


class Workload(Frozen):
    """What was asked of it."""

    data: Text | None = None
    isl_asked: Positive | None = None
    osl_asked: Positive | None = None
    isl_achieved: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(None, description="mean tokens")
    osl_achieved: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(None, description="mean tokens")
    context: Count | None = Field(None, description="tokens cached before the window; of rank shards")
    sampling: dict[str, float] | None = None
    ignore_eos: bool | None = None
    concurrency: Positive | None = Field(None, description="requests in flight; rows, in a shard or op")
    request_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["unlimited"] | None = None
    warmup_requests: Count | None = None
    seeds: tuple[int, ...] | None = Field(None, description="of the prompts, one a repetition")
    warm_between_repetitions: bool | None = Field(None, description="the server and its caches lived on between them")


class Speculation(Frozen):
    """Speculative decoding. Its acceptance length counts the verified token: K drafts accept between 1 and K + 1."""

    method: Text | None = Field(None, description="'off' where there is none")
    draft_tokens: Positive | None = Field(None, description="K")
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    forced: bool | None = None
    forced_source: Text | None = Field(None, description="where a forced value comes from")


class Timed(Frozen):
    """What the timed window holds."""

    phase: Phase | None = None
    prefill_in_window: bool | None = Field(None, description="whether prefill of any request runs inside the window")
    share: Share | None = Field(None, description="measured share of the end-to-end time that this phase takes")


class Repetitions(Frozen):
    """One figure for each repetition of the whole measurement."""

    metric: Metric
    series: Series
    interleaved: bool = Field(description="whether the arms took turns; repetition i of both arms is then a pair")

    @model_validator(mode="after")
    def _kind(self) -> "Repetitions":
        if self.series.unit.is_time != self.metric.is_time:
            raise ValueError(f"{self.metric} is not in {self.series.unit}")
        return self


class PerRequest(Frozen):
    """Arrays over requests, in one order."""

    ttft: Series | None = None
    latency: Series | None = None
    mean_itl: Series | None = Field(None, description="mean of each request's inter-token latencies")
    input_tokens: tuple[Count, ...] | None = None
    output_tokens: tuple[Count, ...] | None = None


class Result(Frozen):
    """What came out. Figures are means or medians over requests, as `statistic` says."""

    completed: Count | None = None
    failed: Count | None = None
    statistic: Literal["mean", "median"] | None = None
    op_time: Quantity | None = None
    step_time: Quantity | None = Field(None, description="one decode or verify step")
    ttft: Quantity | None = None
    tpot: Quantity | None = Field(None, description="time an output token after the first")
    itl: Quantity | None = None
    request_latency: Quantity | None = None
    tok_s_user: Quantity | None = None
    tok_s_user_definition: UserRate | None = None
    tok_s_system: Quantity | None = Field(None, description="output tokens a second over all requests")
    tok_s_gpu: Quantity | None = None
    repetitions: Repetitions | None = None
    per_request: PerRequest | None = None

    @model_validator(mode="after")
    def _figures(self) -> "Result":
        for metric in Metric:
            stated = getattr(self, metric)
            if stated is None:
                continue
            if stated.unit.is_time != metric.is_time:
                raise ValueError(f"{metric} is not in {stated.unit}")
            repeated = self.repetitions
            if repeated is not None and repeated.metric is metric:
                values = repeated.series.base
                if not min(values) * (1 - 1e-9) <= stated.base <= max(values) * (1 + 1e-9):
                    raise ValueError(f"{metric} lies outside its own repetitions")
        return self


class Accuracy(Frozen):
    """The exams of the same commit."""

    commit: Text
    sha256: Text = Field(description="of the bundle")
    passed: bool


class Floor(Frozen):
    """What one GPU cannot do without in the timed unit (a step, or an op); the time follows from its data sheet."""

    moved_bytes: Count
    flops: Count = 0


class Validity(Frozen):
    """Whether the figures are of a working system."""

    sane: bool | None = Field(None, description="whether a check of the outputs passed")
    repeated_ngrams: Share | None = Field(None, description="share of outputs' 8-grams seen before in the same output")
    accuracy: Accuracy | None = None
    floor: Floor | None = None


class Source(Frozen):
    """Where a record was read from, and what of it has no place in the record."""

    format: Text
    file: Text
    sha256: Text = Field(description="of the file, or of its line")
    other: dict[str, Any] = Field({}, description="fields as they stood")
    left_out: tuple[str, ...] = Field((), description="fields that only the file holds: generated texts")


class Measurement(Frozen):
    """One arm. See the module."""

    schema_version: Literal["fasttrack.measurement/1"] = "fasttrack.measurement/1"
    scope: Scope
    taken: date | None = None
    collectives: tuple[str, ...] | None = Field(None, description="those that ran; [] where none did")
    identity: Identity = Identity()
    hardware: Hardware = Hardware()
    topology: Topology = Topology()
    engine: Engine = Engine()
    workload: Workload = Workload()
    speculation: Speculation = Speculation()
    timed: Timed = Timed()
    result: Result = Result()
    validity: Validity = Validity()
    source: Source | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Measurement":
        speculation, hardware = self.speculation, self.hardware
        if speculation.method == "off" and (speculation.acceptance_length or 1) != 1:
            raise ValueError("speculation.acceptance_length: nothing is accepted where speculation is off")
        if speculation.method == "off" and speculation.forced:
            raise ValueError("speculation.forced: nothing is forced where speculation is off")
        if None not in (hardware.gpus, hardware.gpus_prefill, hardware.gpus_decode):
            if self.topology.disaggregated and hardware.gpus_prefill + hardware.gpus_decode != hardware.gpus:
                raise ValueError("hardware.gpus is not the sum of those for prefill and for decode")
        if (self.scope is Scope.OP) != (self.timed.phase is Phase.OP) and self.timed.phase is not None:
            raise ValueError("timed.phase: an op, and only an op, is timed as an op")
        return self


def known(measurement: Measurement, path: str) -> Any:
    """The value at a dotted path such as "hardware.sku", or None where it is unknown.

    Raises AttributeError for a path that no record has."""
    found: Any = measurement
    for name in path.split("."):
        found = getattr(found, name)
        if found is None:
            return None
    return found
