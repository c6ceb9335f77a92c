"""The tensors of each op on one rank: shapes, types, and the axes that a kernel is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .shape import Shape

BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32


@dataclass(frozen=True)
class Layout:
    """How a tensor lies: what axes are read from. `torch.Tensor` has the same two."""

    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self.sizes

    def stride(self, axis: int) -> int:
        """Elements from one index of `axis` to the next."""
        return self.steps[axis]


def dense(*sizes: int) -> Layout:
    """Without gaps."""
    steps, step = [], 1
    for size in reversed(sizes):
        steps.append(step)
        step *= size
    return Layout(sizes, tuple(reversed(steps)))


@dataclass(frozen=True)
class Rank:
    """One rank's sizes."""

    shape: Shape
    tp: int
    rank: int = 0

    @property
    def kda_heads(self) -> int:
        """Heads of KDA."""
        return self.shape.kda_heads // self.tp

    @property
    def mla_heads(self) -> int:
        """Heads of MLA."""
        return self.shape.mla_heads // self.tp

    @property
    def kda_channels(self) -> int:
        """Channels of each of q, k, v and the gate."""
        return self.kda_heads * self.shape.kda_head_dim

    @property
    def kda_width(self) -> int:
        """Columns of the in-projection: q | k | v | gate | f_a | beta, padded to 16."""
        return -(-(4 * self.kda_channels + self.shape.kda_head_dim + self.kda_heads) // 16) * 16

    @property
    def mla_width(self) -> int:
        """Columns of the MLA projection: q_a | kv_a | gate."""
        return self.shape.q_rank + self.shape.latent_row + self.mla_heads * self.shape.v_dim

    @property
    def columns(self) -> int:
        """Channels of the stream that this rank finishes."""
        return self.shape.hidden // self.tp

    @property
    def shared(self) -> int:
        """Channels of the shared expert."""
        return self.shape.shared_experts * self.shape.expert_intermediate // self.tp

    def output(self, op: str, tensor: str, rows: int) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and type of what an op leaves."""
        s, heads = self.shape, self.mla_heads
        return {
            ("attn_res_norm", "x"): ((rows, s.hidden), BF16),
            ("in_projection", "projected"): ((rows, self.kda_width), BF16),
            ("kda_decode", "out"): ((rows, self.kda_channels), BF16),
            ("kda_verify", "out"): ((rows, self.kda_channels), BF16),
            ("mla_projection", "projected"): ((rows, self.mla_width), BF16),
            ("mla_query", "query"): ((rows, heads, s.latent_row), BF16),
            ("mla_core", "context"): ((rows, heads, s.kv_rank), BF16),
            ("mla_verify", "context"): ((rows, heads, s.kv_rank), BF16),
            ("mla_value", "out"): ((rows, heads * s.v_dim), BF16),
            ("o_proj_residual", "partial"): ((rows, s.hidden), BF16),
            ("o_proj_residual", "stream"): ((rows, s.hidden), BF16),
            ("dense_up", "activation"): ((rows, s.dense_intermediate // self.tp), BF16),
            ("dense_down", "partial"): ((rows, s.hidden), BF16),
            ("dense_down", "stream"): ((rows, s.hidden), BF16),
            ("front", "logits"): ((rows, s.experts // self.tp), F32),
            ("front", "latent"): ((rows, s.latent // self.tp), BF16),
            ("front", "shared"): ((rows, self.shared), BF16),
            ("routing", "ids"): ((rows, s.top_k), I32),
            ("routing", "weights"): ((rows, s.top_k), F32),
            ("experts", "routed"): ((rows, s.latent), BF16),
            ("shared_down", "partial"): ((rows, s.hidden), BF16),
            ("latent_up", "stream"): ((rows, self.columns), BF16),
            ("head", "logits"): ((rows, s.vocabulary // self.tp), BF16),
        }[op, tensor]


    def gathered(self, op: str, tensor: str, rows: int) -> tuple[tuple[int, ...], torch.dtype]:
        """The same of all ranks, their columns side by side."""
        (count, columns), dtype = self.output(op, tensor, rows)
        return (count, self.tp * columns), dtype


GATHERED = ("front.logits", "front.latent", "latent_up.stream")
"""What every rank computes some columns of, and reads whole"""

STATIC = {
    "attn_res_norm": ("res_norm", "res_proj", "out_norm"),
    "in_projection": ("in_proj",),
    "kda_decode": ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm"),
    "kda_verify": ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm"),
    "mla_projection": ("qkv_a_g",),
    "mla_query": ("q_a_norm", "kv_a_norm", "q_b", "up_key"),
    "mla_core": (),
    "mla_verify": (),
    "mla_value": ("up_value",),
    "o_proj_residual": ("o_proj",),
    "dense_up": ("gate_up",),
    "dense_down": ("down",),
    "front": ("router", "latent_down", "shared_gate_up"),
    "routing": ("correction_bias",),
    "experts": ("w13_packed", "w13_scale", "w2_packed", "w2_scale"),
    "shared_down": ("shared_down",),
    "latent_up": ("latent_norm", "latent_up"),
    "head": ("lm_head",),
}
"""Op -> its weights, which `prepare` may repack."""

Layouts = Mapping[str, Layout | torch.Tensor]


def axes(op: str, at: Layouts, rank: Rank, rows: int, place: Mapping[str, int]) -> dict[str, int]:
    """All that a kernel of `op` may depend on. `at`: how its inputs and states lie; `place`: what its place decides."""
    return {"tp": rank.tp, "rows": rows, **_AXES[op](at, rank, rows), **place}


def _linear(n: Callable[[Rank], int], k: Callable[[Rank], int]):
    return lambda at, rank, rows: {"n": n(rank), "k": k(rank), "x_stride": at["x"].stride(0)}


def _attn_res_norm(at: Layouts, rank: Rank, rows: int) -> dict[str, int]:
    banked = at["blocks"] if "blocks" in at else dense(1, rows, rank.shape.hidden)
    strides = {"block_stride": banked.stride(0), "block_row_stride": banked.stride(1)}
    return {"stream_stride": at["stream"].stride(0), **strides}


def _kda_decode(at: Layouts, rank: Rank, rows: int) -> dict[str, int]:
    return {
        "heads": rank.kda_heads, "slots": at["conv_state"].shape[0], "projected_stride": at["projected"].stride(0),
        "conv_page_stride": at["conv_state"].stride(0), "state_page_stride": at["recurrent_state"].stride(0),
        "slots_stride": at["slots"].stride(0),
    }  # fmt: skip


def _kda_verify(at: Layouts, rank: Rank, rows: int) -> dict[str, int]:
    # One page to read, and one for each token.
    return {**_kda_decode(at, rank, rows), "tokens": at["slots"].shape[1] - 1}


def _reduced(k: Callable[[Rank], int]):
    def found(at: Layouts, rank: Rank, rows: int) -> dict[str, int]:
        residual = at["residual"] if "residual" in at else dense(rows, rank.shape.hidden)
        return {
            "k": k(rank), "x_stride": at["x"].stride(0), "residual_stride": residual.stride(0),
            "peer_row_stride": at["peers"].stride(1), "peer_stride": at["peers"].stride(0),
        }  # fmt: skip

    return found


def _latent_up(at: Layouts, rank: Rank, rows: int) -> dict[str, int]:
    strides = {
        f"{name}_{axis}stride": at[name].stride(number)
        for name in ("routed", "shared") for number, axis in ((1, "row_"), (0, ""))
    }  # fmt: skip
    return {"columns": rank.columns, **strides, "residual_stride": at["residual"].stride(0)}


def _paged(at: Layouts, rank: Rank, rows: int) -> dict[str, int]:
    table, cache = at["page_table"], at["cache"]
    return {
        "heads": rank.mla_heads, "page_size": cache.shape[1], "table_width": table.shape[1],
        "table_stride": table.stride(0), "pages": cache.shape[0], "page_stride": cache.stride(0),
    }  # fmt: skip


def _gated(at: Layouts, rank: Rank, rows: int) -> dict[str, int]:
    return {"width": rank.mla_width, "projected_stride": at["projected"].stride(0)}


_AXES: dict[str, Callable[[Layouts, Rank, int], dict[str, int]]] = {
    "attn_res_norm": _attn_res_norm,
    "in_projection": _linear(lambda r: r.kda_width, lambda r: r.shape.hidden),
    "kda_decode": _kda_decode,
    "kda_verify": _kda_verify,
    "mla_projection": _linear(lambda r: r.mla_width, lambda r: r.shape.hidden),
    "mla_query": lambda at, r, rows: {**_paged(at, r, rows), **_gated(at, r, rows)},
    "mla_core": _paged,
    "mla_verify": _paged,
    "mla_value": lambda at, r, rows: {"heads": r.mla_heads, **_gated(at, r, rows)},
    "o_proj_residual": _reduced(lambda r: r.kda_channels),
    "dense_up": lambda at, r, rows: {"channels": r.shape.dense_intermediate // r.tp, "x_stride": at["x"].stride(0)},
    "dense_down": _reduced(lambda r: r.shape.dense_intermediate // r.tp),
    "front": lambda at, r, rows: {"shared": r.shared, "shards": r.tp, "x_stride": at["x"].stride(0)},
    "routing": lambda at, r, rows: {"logits_stride": at["logits"].stride(0)},
    "experts": lambda at, r, rows: {
        "experts": r.shape.experts, "channels": r.shape.expert_intermediate // r.tp, "x_stride": at["x"].stride(0),
    },
    "shared_down": _linear(lambda r: r.shape.hidden, lambda r: r.shared),
    "latent_up": _latent_up,
    "head": _linear(lambda r: r.shape.vocabulary // r.tp, lambda r: r.shape.hidden),
}  # fmt: skip
