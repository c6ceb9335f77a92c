"""Latent mixture of experts: routed on the full width, computed on the latent one, with a shared expert beside it."""

from collections.abc import Sequence

from torch import Tensor

from ..architecture import Architecture, Situ
from ..layer_weights import MoeWeights
from . import dense
from .norm import rms_norm
from .precision import Precision
from .router import choose, router_logits
from .unpack import values_of


def moe(y: Tensor, ranks: Sequence[MoeWeights], architecture: Architecture, precision: Precision) -> Tensor:
    """The layer's output [rows, d] from its normed input [rows, d]; `ranks` are the shards of one layer.

    What is replicated is computed once, with the first rank's copy. The latent norm is not linear, so it comes after
    the sum over ranks: a layer has two reductions that depend on each other.
    """
    first = ranks[0]
    ids, weights = choose(router_logits(y, first.router, precision), first.correction_bias, architecture.moe, precision)
    latent = precision.linear(y, first.latent_down)
    routed = precision.all_reduce([experts(latent, ids, weights, rank, architecture.situ, precision) for rank in ranks])
    normed = rms_norm(routed, first.latent_norm, architecture.eps.backbone, precision)
    shared = precision.all_reduce(
        [dense.partial(y, rank.shared_gate_up, rank.shared_down, architecture.situ, precision) for rank in ranks]
    )
    return precision.round(precision.linear(normed, first.latent_up) + shared)


def experts(
    latent: Tensor, ids: Tensor, weights: Tensor, rank: MoeWeights, constants: Situ, precision: Precision
) -> Tensor:
    """sum_k w_k W2_k situ(W13_k z), [rows, L]: this rank's partial sum over the expert intermediate size.

    latent z [rows, L]; ids and weights [rows, top_k]. Each expert's output is rounded, then scaled and summed in the
    arithmetic type, best expert first; the sum is rounded because it is what a rank sends.
    """
    outputs = latent.new_empty(*ids.shape, latent.shape[-1])
    for expert in ids.unique().tolist():
        row, place = (ids == expert).nonzero(as_tuple=True)
        w13, w2 = (values_of(stack, expert, precision) for stack in (rank.w13, rank.w2))
        outputs[row, place] = dense.partial(latent[row], w13, w2, constants, precision)
    return precision.round((weights[..., None] * outputs).sum(1))
