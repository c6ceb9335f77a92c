"""Walks an op graph with the ops' own oracles, on simulated ranks in lockstep, over real weights in float64."""

from collections.abc import Sequence

import op_exam
import torch
from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.graph import EMBEDDING, Node, OpGraph, Source, Via
from fasttrack_validation.contracts.kimi_k3.layer_weights import ModelWeights
from fasttrack_validation.contracts.kimi_k3.step.kda import Core
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT
from torch import Tensor

Values = dict[str, Tensor]


def walk(
    graph: OpGraph, architecture: Architecture, weights: Sequence[ModelWeights], given: Sequence[Values]
) -> list[Values]:
    """Every value of every rank. `given` holds what the graph reads and nobody writes."""
    ranks = [dict(values) for values in given]
    for node in graph.nodes.values():
        # What a rank sends does not depend on what it receives in the same node: a first pass finds it.
        for _ in range(1 + any(source.via is Via.PEERS for source in node.sources)):
            done = [compute(node, architecture, weights, ranks, rank) for rank in range(len(ranks))]
            for values, written in zip(ranks, done, strict=True):
                values.update(written)
    return ranks


def compute(node: Node, architecture, weights, ranks: Sequence[Values], rank: int) -> Values:
    real = op_exam.REAL.op(node.op)
    contract = type(real)(architecture, real.policy)
    read = {}
    for tensor, sources in node.reads.items():
        values = [take(source, ranks, rank) for source in sources]
        if tensor == "blocks":
            values = [torch.stack(values)]
        (read[tensor],) = values
    if node.op == "kda_decode":
        static = ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")
    else:
        rows = len(ranks[0][EMBEDDING])
        workload = op_exam.declared(contract, len(ranks), rows)
        axes = {**workload.axes, **node.axes, "experts": architecture.moe.experts}
        if "cache" in read:
            axes["page_size"] = read["cache"].shape[1]
        workload = workload.model_copy(update={"axes": axes})
        static = [spec.name for spec in contract.tensors(workload) if spec.role is TensorRole.STATIC]
    inputs = {**read, **{name: weight(node, name, weights, architecture, rank) for name in static}}
    if node.op == "kda_decode":
        # The contract's oracle rounds the gate projection; these are the same stages without.
        result = Core(architecture, len(ranks), EXACT)(inputs)
    else:
        result = contract.oracle(inputs, workload)
    return {value: result[tensor] for tensor, value in node.writes.items()}


def take(source: Source, ranks: Sequence[Values], rank: int) -> Tensor:
    if source.via in (Via.HERE, Via.COLUMNS):
        value = ranks[rank][source.value]
        return value.chunk(len(ranks), 1)[rank] if source.via is Via.COLUMNS else value
    if source.via is Via.GATHERED:
        return torch.cat([values[source.value] for values in ranks], 1)
    if source.value not in ranks[0]:
        return torch.zeros(len(ranks) - 1, 1, 1)
    sent = torch.stack([values[source.value] for values in ranks])
    if source.via is Via.PEERS:
        return sent[[other for other in range(len(ranks)) if other != rank]]
    return sent.chunk(len(ranks), 2)[rank] if source.via is Via.RANK_COLUMNS else sent


def weight(node: Node, name: str, weights: Sequence[ModelWeights], architecture: Architecture, rank: int) -> Tensor:
    part = weights[rank]
    for step in node.weights.split(".") if node.weights else ():
        part = part[int(step)] if step.isdigit() else getattr(part, step)
    if name in ("up_key", "up_value"):
        heads = architecture.mla.heads // len(weights)
        key, value = part.kv_b.unflatten(0, (heads, -1)).split(
            [architecture.mla.qk_nope_head_dim, architecture.mla.v_head_dim], 1
        )
        return key if name == "up_key" else value
    if name.startswith(("w13_", "w2_")):
        stack, _, field = name.partition("_")
        return getattr(getattr(part, stack), field)
    if name in ("latent_up", "router", "latent_down"):
        return getattr(part, name).chunk(node.axes.get("shards") or len(weights))[rank if "shards" not in node.axes else 0]
    return getattr(part, name)
