"""Where a rank's weights are found: attributes of nested objects, as engines and checkpoints keep them by layer."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .graph import Place
from .tensors import Rank


def weights(model: Any, place: Place, rank: Rank) -> Mapping[str, Tensor]:
    """The weights of the op at `place`, this rank's own slices, by their names in the op's contract.

    `model` has `layers[n].attention`, `.mlp`, `.attention_mix` and `.mlp_mix`, `final_mix` and `lm_head`. A layer's
    MoE has `w13` and `w2` with `packed` and `scale` (MXFP4 as in the checkpoint), and `router` [E, d], `latent_down`
    [L, d] and `latent_up` [d, L] whole, as checkpoints replicate them, or this rank's rows. MLA has `kv_b`, whose rows
    are a head's keys, then its values.
    """
    return _WEIGHTS[place.op](_part(model, place), rank)


def _part(model: Any, place: Place) -> Any:
    if place.layer is None:
        return model.final_mix if place.weights else model
    layer = model.layers[place.layer]
    match place.weights.rpartition(".")[2]:
        case "attention":
            return layer.attention
        case "attention_mix":
            return layer.attention_mix
        case "mlp_mix":
            return layer.mlp_mix
    return layer.mlp


def _heads(w: Any, rank: Rank) -> tuple[Tensor, Tensor]:
    """Keys [h, nope, 512] and values [h, v, 512] of kv_b."""
    sizes = [rank.shape.nope_dim, rank.shape.v_dim]
    key, value = w.kv_b.unflatten(0, (rank.mla_heads, -1)).split(sizes, 1)
    return key, value


def _own_rows(weight: Tensor, rank: Rank, whole: int) -> Tensor:
    """This rank's part of a weight of `whole` rows, which may be all that is there."""
    rows = whole // rank.tp
    return weight if len(weight) == rows else weight[rank.rank * rows : (rank.rank + 1) * rows]


def _kda(w: Any, rank: Rank) -> Mapping[str, Tensor]:
    return {"f_b": w.f_b, "conv_weight": w.conv_weight, "a_log": w.a_log, "dt_bias": w.dt_bias, "o_norm": w.o_norm}


_WEIGHTS: dict[str, Callable[[Any, Rank], Mapping[str, Tensor]]] = {
    "attn_res_norm": lambda w, r: {"res_norm": w.res_norm, "res_proj": w.res_proj, "out_norm": w.out_norm},
    "in_projection": lambda w, r: {"in_proj": w.in_proj},
    "kda_decode": _kda,
    "kda_verify": _kda,
    "mla_projection": lambda w, r: {"qkv_a_g": w.qkv_a_g},
    "mla_query": lambda w, r: {
        "q_a_norm": w.q_a_norm, "kv_a_norm": w.kv_a_norm, "q_b": w.q_b, "up_key": _heads(w, r)[0]
    },
    "mla_core": lambda w, r: {},
    "mla_verify": lambda w, r: {},
    "mla_value": lambda w, r: {"up_value": _heads(w, r)[1]},
    "o_proj_residual": lambda w, r: {"o_proj": w.o_proj},
    "dense_up": lambda w, r: {"gate_up": w.gate_up},
    "dense_down": lambda w, r: {"down": w.down},
    "front": lambda w, r: {
        "router": _own_rows(w.router, r, r.shape.experts),
        "latent_down": _own_rows(w.latent_down, r, r.shape.latent), "shared_gate_up": w.shared_gate_up,
    },
    "routing": lambda w, r: {"correction_bias": w.correction_bias},
    "experts": lambda w, r: {
        "w13_packed": w.w13.packed, "w13_scale": w.w13.scale, "w2_packed": w.w2.packed, "w2_scale": w.w2.scale
    },
    "shared_down": lambda w, r: {"shared_down": w.shared_down},
    "latent_up": lambda w, r: {"latent_norm": w.latent_norm, "latent_up": _own_rows(w.latent_up, r, r.shape.hidden)},
    "head": lambda w, r: {"lm_head": w.lm_head},
}  # fmt: skip
