"""The stock path of a connected part of the op graph: ops one after the other, fused where the layer's path fuses them.

Imports triton, fla and cuda-bindings: reach it through `stock.part`, which says what is missing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ....errors import UserError
from ...base import OpContract, TensorRole, Workload
from ...stock import Packs, StockRun
from ..graph import Node, OpGraph, Via
from ..layer_weights import Mxfp4
from . import ops
from .mla_core import attend
from .mlp import Moe, PackedExperts

Given = Mapping[str, Tensor]
Step = Callable[[], None]


def prepare(
    graph: OpGraph,
    names: Iterable[str],
    contracts: Mapping[str, OpContract],
    tensors: Given,
    workloads: Mapping[str, Workload],
    *,
    rank: int = 0,
    packs: Packs | None = None,
) -> StockRun:
    """A run of the nodes `names` of `graph` in order; `contracts` by op, `workloads` by node.

    `tensors` holds on the GPU, as "node.tensor" (5.experts.x, 5.front.router), whatever a node reads that no node of
    the part hands on within this rank: weights, states, page tables, what other ranks sent, outer inputs. A stack of
    sources (`blocks`) is always given; those that the part writes itself are copied into it. `rank` says which columns
    are this rank's; `packs` keeps experts that are repacked for other parts with the same ones. The outputs are those of
    `graph.interface(names)`. Raises UserError where a part is none, or a
    tensor is missing.
    """
    chosen = set(names)
    part = graph.interface(chosen)
    nodes = [node for name, node in graph.nodes.items() if name in chosen]
    walk = _Walk(contracts, tensors, workloads, rank, {} if packs is None else packs)
    while nodes:
        fusion = next((f for f in _FUSIONS if f.fits(nodes, part.outputs)), None)
        taken = len(fusion.ops) if fusion else 1
        if fusion:
            fusion.bind(walk, nodes[:taken])
        else:
            walk.alone(nodes[0])
        nodes = nodes[taken:]

    def run() -> None:
        for step in walk.steps:
            step()

    return StockRun(run, {value: walk.values[value] for value in part.outputs})


class _Walk:
    """Binds node after node and keeps what each leaves."""

    def __init__(self, contracts, tensors: Given, workloads: Mapping[str, Workload], rank: int, packs: Packs) -> None:
        self.contracts = contracts
        self.packs = packs
        self.workloads = workloads
        self.values: dict[str, Tensor] = {}
        self.steps: list[Step] = []
        self._tensors = tensors
        self._rank = rank

    def alone(self, node: Node) -> None:
        """A node by the stock path of its op."""
        workload = self.workloads[node.name]
        run = ops.prepare(self.contracts[node.op], self.read(node), workload)
        self.steps.append(run.run)
        self.values.update({value: run.outputs[tensor] for tensor, value in node.writes.items()})

    def read(self, node: Node) -> dict[str, Tensor]:
        """The tensors that the op of `node` reads."""
        specs = self.contracts[node.op].tensors(self.workloads[node.name])
        names = [spec.name for spec in specs if spec.role is not TensorRole.OUTPUT]
        return {name: self._tensor(node, name) for name in names}

    def given(self, node: Node, name: str) -> Tensor:
        """A tensor that comes from outside the part."""
        key = f"{node.name}.{name}"
        if key not in self._tensors:
            raise UserError(f"{key} is not given, and no node of the part writes it", "see the part's interface")
        return self._tensors[key]

    def _tensor(self, node: Node, name: str) -> Tensor:
        sources = node.reads.get(name, ())
        stacked = name == "blocks"
        if not stacked and sources and sources[0].value in self.values and sources[0].via in (Via.HERE, Via.COLUMNS):
            value = self.values[sources[0].value]
            if sources[0].via is Via.HERE:
                return value
            columns = value.shape[1] // self.workloads[node.name].axes["tp"]
            return value[:, self._rank * columns : (self._rank + 1) * columns]
        given = self.given(node, name)
        if stacked:
            for place, source in enumerate(sources):
                if source.value in self.values and source.via is Via.HERE:
                    self.steps.append(lambda to=given[place], what=self.values[source.value]: to.copy_(what))
        return given


@dataclass(frozen=True)
class _Fusion:
    """Nodes that are bound together if they follow each other and nobody outside reads what is between them."""

    ops: tuple[str, ...]
    inner: tuple[str, ...]
    """Tensors of theirs that do not come to be"""
    bind: Callable[[_Walk, list[Node]], None]

    def fits(self, nodes: list[Node], outputs: tuple[str, ...]) -> bool:
        """Whether the next of `nodes` are these."""
        found = nodes[: len(self.ops)]
        between = {value for node in found for tensor, value in node.writes.items() if tensor in self.inner}
        return tuple(node.op for node in found) == self.ops and not between & set(outputs)


def _attention(walk: _Walk, nodes: list[Node]) -> None:
    """No copy that puts both parts of the query side by side."""
    query, core = nodes
    contract, axes = walk.contracts[query.op], walk.workloads[query.name].axes
    t, pieces = walk.read(query), ops.mla(contract.architecture, axes["tp"])
    paging = ops.paging(t, walk.workloads[core.name].axes.get("tokens", 1))
    sizes = contract.architecture.mla
    context = t["projected"].new_empty(axes["rows"], axes["heads"], sizes.kv_lora_rank)

    def run() -> None:
        low = pieces.norm_insert(t["projected"], t["q_a_norm"], t["kv_a_norm"], t["cache"], paging)
        absorbed, unrotated = pieces.query(low, t["q_b"], t["up_key"])
        attend(absorbed, unrotated, t["cache"], paging, sizes, context, pieces.processors)

    walk.steps.append(run)
    walk.values |= {query.writes["cache"]: t["cache"], core.writes["context"]: context}


def _mixture(walk: _Walk, nodes: list[Node]) -> None:
    """The MoE up to its exchange on two streams: choice and grouping in one launch, latents scaled by their product."""
    front, routing, experts, shared = nodes
    architecture = walk.contracts[front.op].architecture
    axes = walk.workloads[experts.name].axes
    t = walk.read(front) | {"correction_bias": walk.given(routing, "correction_bias")}
    t |= {name: walk.given(experts, name) for name in ("w13_packed", "w13_scale", "w2_packed", "w2_scale")}
    whole = architecture.moe.model_copy(update={"experts": axes["experts"]})
    moe = Moe(architecture.model_copy(update={"moe": whole}), axes["channels"])
    mxfp4 = tuple(t[name] for name in ("w13_packed", "w13_scale", "w2_packed", "w2_scale"))
    key = tuple(tensor.data_ptr() for tensor in mxfp4)
    if key not in walk.packs:
        walk.packs[key] = moe.experts.pack(Mxfp4(*mxfp4[:2]), Mxfp4(*mxfp4[2:]))
    w13, w2 = walk.packs[key]
    weights = PackedExperts(
        t["router"],
        t["correction_bias"],
        torch.cat([t["latent_down"], t["shared_gate_up"]]),
        walk.given(shared, walk.contracts[shared.op].weight_name),
        w13,
        w2,
    )
    rows = t["x"].shape[0]
    routed, partial = t["x"].new_empty(rows, whole.latent_size), t["x"].new_empty(rows, architecture.hidden_size)
    walk.steps.append(lambda: moe.partials(t["x"], weights, lambda part: part, (routed, partial)))
    walk.values |= {experts.writes["routed"]: routed, shared.writes["partial"]: partial}


_FUSIONS = (
    _Fusion(("mla_query", "mla_core"), ("query",), _attention),
    _Fusion(("mla_query", "mla_verify"), ("query",), _attention),
    _Fusion(
        ("front", "routing", "experts", "shared_down"),
        ("logits", "latent", "shared", "ids", "weights"),
        _mixture,
    ),
)
