"""The decode step of one rank, place by place: what each op reads, and which value it leaves.

The same walk as the contract's op graph (a test holds one against the other), in terms of this directory alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .shape import Shape

EMBEDDING = "embedding"
LOGITS = "head.logits"


class Via(StrEnum):
    """How a value reaches its reader; the last four wait for other ranks."""

    HERE = "here"
    COLUMNS = "columns"
    """This rank's channels of a whole stream"""
    GATHERED = "gathered"
    """All ranks' channels side by side"""
    PEERS = "peers"
    """Every other rank's, stacked in rank order"""
    RANKS = "ranks"
    """Every rank's, stacked in rank order"""
    RANK_COLUMNS = "rank_columns"
    """This rank's channels of every rank's"""


EXCHANGED = frozenset((Via.GATHERED, Via.PEERS, Via.RANKS, Via.RANK_COLUMNS))


@dataclass(frozen=True)
class Source:
    """One value as one reader takes it."""

    value: str
    via: Via = Via.HERE


@dataclass(frozen=True)
class Place:
    """One op at one place of the step."""

    name: str
    op: str
    reads: Mapping[str, tuple[Source, ...]]
    """Tensor -> where it comes from; several sources are stacked"""
    writes: Mapping[str, str]
    """Tensor -> value; a state that is updated in place is both read and written"""
    weights: str
    """Attributes from the rank's weights to this place's: layers.3.attention"""
    axes: Mapping[str, int] = field(default_factory=dict)

    @property
    def layer(self) -> int | None:
        """The layer's number; None behind the last one."""
        number = self.name.partition(".")[0]
        return int(number) if number.isdigit() else None

    @property
    def sources(self) -> tuple[Source, ...]:
        """Everything that is read, weights apart."""
        return tuple(source for sources in self.reads.values() for source in sources)


@dataclass(frozen=True)
class Walk:
    """Places in order, and how the stream and its banks stand behind them."""

    places: tuple[Place, ...]
    stream: Source
    banks: tuple[Source, ...]


def step(shape: Shape, tokens: int = 1) -> Walk:
    """The whole step, from the embedded rows to this rank's logits.

    A verify step has several rows of each request, `tokens`. All ops but the cores of KDA and MLA work row by row (rows of
    a request have its page table, and lengths one apart); of those, rows of a request share a state and cached rows, so
    that they are other ops there.
    """
    walk = _Walker(shape, Source(EMBEDDING), (), tokens)
    for number in range(shape.layers):
        walk.layer(number)
    walk.end()
    return walk.done()


def layer(shape: Shape, number: int, stream: Source, banks: Iterable[Source]) -> Walk:
    """One layer behind `stream` and `banks`."""
    walk = _Walker(shape, stream, banks)
    walk.layer(number)
    return walk.done()


class _Walker:
    def __init__(self, shape: Shape, stream: Source, banks: Iterable[Source], tokens: int = 1) -> None:
        self.shape, self.stream, self.banks, self.tokens = shape, stream, list(banks), tokens
        self.places: list[Place] = []

    def done(self) -> Walk:
        return Walk(tuple(self.places), self.stream, tuple(self.banks))

    def layer(self, number: int) -> None:
        begins = self.shape.begins(number)
        x = self._mix(f"{number}.attention_mix", f"layers.{number}.attention_mix")
        if begins:
            self.banks.append(self.stream)
        out = self._kda(number, x) if number in self.shape.kda_layers else self._mla(number, x)
        residual = None if begins else self.stream
        weights = f"layers.{number}.attention"
        self._reduced(f"{number}.o_proj_residual", "o_proj_residual", weights, out, residual, int(begins))
        x = self._mix(f"{number}.mlp_mix", f"layers.{number}.mlp_mix")
        if number < self.shape.first_moe:
            weights = f"layers.{number}.mlp"
            out = self._place(f"{number}.dense_up", "dense_up", weights, {"x": x}, ("activation",))["activation"]
            self._reduced(f"{number}.dense_down", "dense_down", weights, out, self.stream, 0)
        else:
            self._moe(number, x)

    def end(self) -> None:
        x = self._mix("final_mix", "final_mix")
        self._place("head", "head", "", {"x": x}, ("logits",))

    def _mix(self, name: str, weights: str) -> str:
        reads: dict = {"stream": (self.stream,)}
        if self.banks:
            reads["blocks"] = tuple(self.banks)
        return self._place(name, "attn_res_norm", weights, reads, ("x",), {"blocks": len(self.banks)})["x"]

    def _kda(self, number: int, x: str) -> str:
        weights = f"layers.{number}.attention"
        read = self._place(f"{number}.in_projection", "in_projection", weights, {"x": x}, ("projected",))
        states = {name: f"{number}.{name}" for name in ("conv_state", "recurrent_state")}
        reads = {**read, "slots": "slots", **states}
        core = "kda_decode" if self.tokens == 1 else "kda_verify"
        return self._place(f"{number}.{core}", core, weights, reads, (*states, "out"))["out"]

    def _mla(self, number: int, x: str) -> str:
        weights = f"layers.{number}.attention"
        projected = self._place(f"{number}.mla_projection", "mla_projection", weights, {"x": x}, ("projected",))
        paged = {"page_table": "page_table", "lengths": "lengths"}
        reads = {**projected, **paged, "cache": f"{number}.cache"}
        query = self._place(f"{number}.mla_query", "mla_query", weights, reads, ("query", "cache"))
        core, axes = ("mla_core", {}) if self.tokens == 1 else ("mla_verify", {"tokens": self.tokens})
        context = self._place(f"{number}.{core}", core, weights, {**paged, **query}, ("context",), axes)
        return self._place(f"{number}.mla_value", "mla_value", weights, {**context, **projected}, ("out",))["out"]

    def _moe(self, number: int, x: str) -> None:
        weights = f"layers.{number}.mlp"
        front = self._place(f"{number}.front", "front", weights, {"x": x}, ("logits", "latent", "shared"))
        # Every rank has its own rows of router and latent down-projection.
        logits, latent = ((Source(front[name], Via.GATHERED),) for name in ("logits", "latent"))
        routing = self._place(f"{number}.routing", "routing", weights, {"logits": logits}, ("ids", "weights"))
        experts = self._place(f"{number}.experts", "experts", weights, {"x": latent, **routing}, ("routed",))
        shared = self._place(
            f"{number}.shared_down", "shared_down", weights, {"x": front["shared"]}, ("partial",)
        )
        split = self.stream.via is Via.GATHERED
        reads = {
            "routed": (Source(experts["routed"], Via.RANKS),),
            "shared": (Source(shared["partial"], Via.RANK_COLUMNS),),
            "residual": (Source(self.stream.value, Via.HERE if split else Via.COLUMNS),),
        }
        stream = self._place(f"{number}.latent_up", "latent_up", weights, reads, ("stream",))["stream"]
        self.stream = Source(stream, Via.GATHERED)

    def _reduced(self, name: str, op: str, weights: str, x: str, residual: Source | None, restart: int) -> None:
        reads: dict = {"x": x, "peers": (Source(f"{name}.partial", Via.PEERS),)}
        if residual:
            reads["residual"] = (residual,)
        written = self._place(name, op, weights, reads, ("partial", "stream"), {"restart": restart})
        self.stream = Source(written["stream"])

    def _place(
        self, name: str, op: str, weights: str, reads: Mapping, writes: Iterable[str],
        axes: Mapping[str, int] | None = None,
    ) -> dict[str, str]:  # fmt: skip
        """Appends a place and gives what it writes: tensor -> value."""
        written = {tensor: f"{name}.{tensor}" for tensor in writes}
        sources = {
            tensor: (Source(read),) if isinstance(read, str) else tuple(read) for tensor, read in reads.items()
        }
        self.places.append(Place(name, op, sources, written, weights, axes or {}))
        return written
