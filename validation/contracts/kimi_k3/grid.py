"""Kimi K3's performance grid: layers of both kinds and whole steps on one rank of TP 8 and 16."""

from collections.abc import Mapping, Sequence
from functools import cache

from ...errors import UserError
from ..base import OpContract
from ..grid import CellSpec, Grid, Shard, Span
from .architecture import Architecture
from .graph import OpGraph, step

ROWS = (1, 2, 4, 8, 16, 32, 64)
VERIFY_ROWS = (8, 16, 32, 64)
VERIFY_WIDTH = 8
CONTEXTS = (1024, 32768, 131072)
STEP_CONTEXTS = (1024, 32768)
REPLICATED = ("front", "latent_up")
"""Ops whose weights the stock path reads whole"""
TPS = (8, 16)
STEP_TP = 16
"""All layers of TP 16 fit one card of 141 GB"""

KDA, MLA, STEP = "kda_moe", "mla_moe", "step"
LAYER = {KDA: 13, MLA: 15}
"""The layer whose bookkeeping a cell of each kind has: two banked streams beside the newest one, which other ranks
finished. The same layers are examined in a whole step, or others of their kind where a row's choice hangs on a rounding"""


class KimiK3Grid(Grid):
    """See the module."""

    def __init__(
        self, architecture: Architecture, ops: Mapping[str, OpContract], layers: Mapping[str, int] = LAYER
    ) -> None:
        self._architecture, self._ops, self._layers = architecture, ops, layers

    def cells(self, hardware: str) -> tuple[CellSpec, ...]:
        """The same for every hardware."""
        found = []
        for tp in TPS:
            for width, rows in ((1, ROWS), (VERIFY_WIDTH, VERIFY_ROWS)):
                found += [CellSpec(span=Span.LAYER, kind=KDA, tp=tp, rows=n, width=width) for n in rows]
                found += [
                    CellSpec(span=Span.LAYER, kind=MLA, tp=tp, rows=n, width=width, context=context)
                    for context in CONTEXTS for n in rows
                ]  # fmt: skip
        found += [
            CellSpec(span=Span.STEP, kind=STEP, tp=STEP_TP, rows=n, context=context)
            for context in STEP_CONTEXTS for n in ROWS
        ]  # fmt: skip
        return tuple(found)

    def excluded(self, spec: CellSpec, verify_width: int) -> str | None:
        """Verify steps beyond the kernels' width."""
        if spec.width > verify_width:
            tokens = "1 token" if verify_width == 1 else f"{verify_width} tokens"
            return f"kernels take {tokens} a request, this is a verify step of {spec.width}"
        return None

    @property
    def layers(self) -> Mapping[str, int]:
        """Those with experts; the dense one is of neither kind."""
        return {kind: len(self._with_experts(kind)) for kind in (KDA, MLA)}

    def _with_experts(self, kind: str) -> list[int]:
        of = self._architecture
        return [n for n in {KDA: of.kda_layers, MLA: of.mla_layers}[kind] if n >= of.moe.first_layer]

    def ops(self, spec: CellSpec) -> tuple[str, ...]:
        """Of the layer, or of the whole step."""
        graph, _ = self._graphs(spec.width)
        names = graph.nodes if spec.span is Span.STEP else graph.layer(self._layers[spec.kind])
        return tuple(sorted({graph.nodes[name].op for name in names}))

    @cache  # noqa: B019 - a grid lives as long as a command
    def _graphs(self, tokens: int) -> tuple[OpGraph, OpGraph]:
        """The step of the specialised path, and that of the stock path."""
        return step(self._architecture, tokens=tokens), step(self._architecture, REPLICATED, tokens=tokens)

    def shard(self, spec: CellSpec, hardware: str) -> Shard:
        """Raises UserError for a cell that `excluded` names."""
        if why := self.excluded(spec, VERIFY_WIDTH):
            raise UserError(f"{spec.key}: {why}", "choose another cell")
        from .compared_shard import ComparedShard
        from .rank_shard import RankShard
        from .step_shard import StepShard

        graphs = self._graphs(spec.width)

        def part(names: Sequence[str]) -> ComparedShard:
            return ComparedShard(*(RankShard(self._architecture, self._ops, spec, graph, names) for graph in graphs))

        if spec.span is Span.STEP:
            examined = [
                [first, *(n for n in self._with_experts(kind) if n != first)] for kind, first in self._layers.items()
            ]
            return StepShard(self._architecture, spec, part, tuple(graphs[0].nodes), examined)
        return part(graphs[0].layer(self._layers[spec.kind]))


def grid(architecture: Architecture, ops: Mapping[str, OpContract]) -> Grid:
    """The grid of the published model, or of another size of it."""
    return KimiK3Grid(architecture, ops)
