"""Whether this deployment can run the specialised decode path: every reason against it, not the first one."""

from dataclasses import dataclass
from enum import StrEnum

from .shape import PUBLISHED, Shape


class Backend(StrEnum):
    """`decode_backend` of an engine's configuration."""

    AUTO = "auto"
    """Specialised where nothing speaks against it"""
    STOCK = "stock"
    LATENCY_SPECIALIZED = "latency_specialized"
    """Specialised, or no start at all"""


class Reason(StrEnum):
    """What can speak against a deployment."""

    GPU = "gpu"
    MULTIPROCESSORS = "multiprocessors"
    TP = "tp"
    PARALLELISM = "parallelism"
    EXCHANGE = "exchange"
    MODEL = "model"
    LATENT_CACHE = "latent_cache"
    CONV_CACHE = "conv_cache"
    RECURRENT_CACHE = "recurrent_cache"
    DENSE_WEIGHTS = "dense_weights"
    EXPERT_WEIGHTS = "expert_weights"
    BATCH_INVARIANT = "batch_invariant"
    KV_TRANSFER = "kv_transfer"
    SPECULATION = "speculation"
    LORA = "lora"
    SLEEP_MODE = "sleep_mode"
    MICRO_BATCHES = "micro_batches"
    GRAPHS = "graphs"
    COMPILER = "compiler"


@dataclass(frozen=True)
class Objection:
    """One reason against a deployment, in words."""

    reason: Reason
    text: str


@dataclass(frozen=True)
class Environment:
    """A deployment, as far as the decode path depends on it. The plug-in of an engine fills it in, on every rank."""

    hardware: str
    """Name in the dispatch tables: h200, gb300"""
    capability: tuple[int, int]
    multiprocessors: int
    tp: int
    shape: Shape
    pp: int = 1
    ep: int = 1
    dcp: int = 1
    ranks_here: int = 1
    """Ranks whose exchange is in the hands of the caller: `tp` for simulated ranks and for one rank's shard alone"""
    latent_cache: str = "bf16"
    conv_cache: str = "bf16"
    recurrent_cache: str = "fp32"
    dense_weights: str = "bf16"
    expert_weights: str = "mxfp4-checkpoint"
    """Element type and layout after loading; engines repack experts"""
    batch_invariant: bool = False
    kv_connector: str | None = None
    speculation: str | None = None
    verify_width: int = 1
    """Tokens that a request brings to a step at most: 1 + draft length"""
    lora: bool = False
    sleep_mode: bool = False
    micro_batches: bool = False
    """Dual-batch overlap: two halves of a batch at once would share the buffers"""
    full_graphs: bool = True
    """Decode steps are captured whole"""
    compiler: bool = False
    """torch.compile traces the forward pass"""


@dataclass(frozen=True)
class Claim:
    """What the manifest claims for one kind of hardware and TP."""

    hardware: str
    tp: int
    rows: tuple[int, int]
    verify_width: int


@dataclass(frozen=True)
class Card:
    """What a hardware name of the tables stands for."""

    capability: tuple[int, int]
    multiprocessors: int


CARDS = {"h200": Card((9, 0), 132), "gb300": Card((10, 3), 148)}


def unsupported(environment: Environment, claims: tuple[Claim, ...], shape: Shape = PUBLISHED) -> tuple[Objection, ...]:
    """All that speaks against the specialised path here; nothing does where the answer is empty.

    `shape` is the model that the kernels are for. Depends on nothing but its arguments, so ranks that see the same
    configuration agree; what a rank sees alone (its GPU) an engine has to agree on before it starts.
    """
    found: list[Objection] = []

    def object_if(wrong: bool, reason: Reason, text: str) -> None:
        if wrong:
            found.append(Objection(reason, text))

    e = environment
    card = CARDS.get(e.hardware)
    here = [claim for claim in claims if claim.hardware == e.hardware]
    widths = sorted(claim.tp for claim in here)
    claim = next((claim for claim in here if claim.tp == e.tp), None)
    object_if(
        card is None or not here or e.capability != card.capability, Reason.GPU,
        f"{e.hardware} of compute capability {'.'.join(map(str, e.capability))}; there are kernels for "
        + ", ".join(f"{name} ({'.'.join(map(str, one.capability))})" for name, one in CARDS.items()),
    )  # fmt: skip
    object_if(
        card is not None and e.multiprocessors < card.multiprocessors, Reason.MULTIPROCESSORS,
        f"{e.multiprocessors} multiprocessors (a slice of a GPU?); grids are cut for "
        f"{card.multiprocessors if card else 'a whole GPU'}",
    )  # fmt: skip
    object_if(bool(here) and claim is None, Reason.TP, f"tensor parallelism {e.tp}; validated: {widths}")
    object_if(
        (e.pp, e.ep, e.dcp) != (1, 1, 1), Reason.PARALLELISM,
        f"pipeline {e.pp}, expert {e.ep} and decode-context {e.dcp} parallelism; each must be 1",
    )  # fmt: skip
    object_if(
        e.ranks_here != e.tp, Reason.EXCHANGE,
        f"{e.tp} ranks on GPUs of their own: steps do not run the exchange between GPUs yet",
    )  # fmt: skip
    different = e.shape.differences(shape)
    object_if(bool(different), Reason.MODEL, f"another model than the kernels' ({'; '.join(different)})")
    for reason, what, is_, must in (
        (Reason.LATENT_CACHE, "latent cache", e.latent_cache, "bf16"),
        (Reason.CONV_CACHE, "convolution cache", e.conv_cache, "bf16"),
        (Reason.RECURRENT_CACHE, "recurrent state", e.recurrent_cache, "fp32"),
        (Reason.DENSE_WEIGHTS, "dense weights", e.dense_weights, "bf16"),
        (Reason.EXPERT_WEIGHTS, "expert weights", e.expert_weights, "mxfp4-checkpoint"),
    ):
        object_if(is_ != must, reason, f"{what} in {is_}; kernels read {must}")
    object_if(e.batch_invariant, Reason.BATCH_INVARIANT, "batch-invariant mode: configurations depend on the batch")
    object_if(
        e.kv_connector is not None, Reason.KV_TRANSFER, f"connector {e.kv_connector} moves caches between steps"
    )
    most = claim.verify_width if claim else 1
    object_if(
        e.verify_width > most, Reason.SPECULATION,
        f"{e.speculation or 'speculation'} brings {e.verify_width} tokens a request to a step; validated: {most}",
    )  # fmt: skip
    object_if(e.lora, Reason.LORA, "LoRA adapters change weights that were repacked")
    object_if(e.sleep_mode, Reason.SLEEP_MODE, "sleep mode moves weights whose addresses are captured")
    object_if(e.micro_batches, Reason.MICRO_BATCHES, "two halves of a batch at once would share the step's buffers")
    object_if(
        not e.full_graphs, Reason.GRAPHS, "decode steps are not captured whole: launches would cost more than kernels"
    )
    object_if(e.compiler, Reason.COMPILER, "a compiler traces the forward pass; it cannot see through own kernels")
    return tuple(found)


class Unsupported(RuntimeError):
    """`latency_specialized` was asked for where it cannot run. `objections` are all reasons."""

    def __init__(self, objections: tuple[Objection, ...]) -> None:
        reasons = "\n".join(f"- {objection.text}" for objection in objections)
        super().__init__(f"decode_backend latency_specialized cannot run here:\n{reasons}")
        self.objections = objections


def specialised(backend: str, objections: tuple[Objection, ...]) -> bool:
    """Whether the specialised path is used. Raises Unsupported where it was demanded and cannot be; ValueError for
    another backend than `Backend` has."""
    chosen = Backend(backend)
    if chosen is Backend.LATENCY_SPECIALIZED and objections:
        raise Unsupported(objections)
    return chosen is not Backend.STOCK and not objections
