"""Where a rank's weights are found: attributes of nested objects, as engines and checkpoints keep them by layer."""

from typing import Any

from torch import Tensor

from .graph import Place
from .tensors import Rank


def weight(model: Any, place: Place, tensor: str, rank: Rank) -> Tensor:
    """The weight `tensor` of the op at `place`, of the rank's own slices.

    `model` has `layers[n].attention`, `.mlp`, `.attention_mix` and `.mlp_mix`, `final_mix` and `lm_head`. A layer's
    MoE has `w13` and `w2` with `packed` and `scale` (MXFP4 as in the checkpoint), and `latent_up` whole [d, L], as
    checkpoints replicate it, or this rank's rows of it. MLA has `kv_b`, whose rows are a head's keys, then its values.
    """
    part = model
    for step in place.weights.split(".") if place.weights else ():
        part = part[int(step)] if step.isdigit() else getattr(part, step)
    if tensor in ("up_key", "up_value"):
        heads = part.kv_b.unflatten(0, (rank.mla_heads, -1))
        key, value = heads.split([rank.shape.nope_dim, rank.shape.v_dim], 1)
        return key if tensor == "up_key" else value
    if tensor.startswith(("w13_", "w2_")):
        stack, _, attribute = tensor.partition("_")
        return getattr(getattr(part, stack), attribute)
    if tensor == "latent_up" and len(part.latent_up) != rank.columns:
        return part.latent_up[rank.rank * rank.columns : (rank.rank + 1) * rank.columns]
    return getattr(part, tensor)
