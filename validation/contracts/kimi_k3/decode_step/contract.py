"""The contract of `step`: a whole decode step, at the nano configuration."""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from ....errors import UserError
from ....tensors import DType
from ...base import Comparison, Cost, OpContract, TensorRole, TensorSpec, Workload
from ..architecture import Architecture
from ..op import output, static, tensor

if TYPE_CHECKING:
    from torch import Tensor

    from ...stock import StockPath

    Tensors = Mapping[str, Tensor]
    Path = Callable[[Tensors, Workload], dict[str, Tensor]]

_GROUP = 32
_BUCKETS = (1, 2, 4, 8)
_FLOOR = 2.0**-16


class DecodeStep(OpContract):
    """One token of each request through every layer, on the only rank of TP1: embedded rows in, logits out.

    At the nano configuration: every mechanism at tiny widths, so that a whole step can be drawn, interpreted and held
    against the float64 step oracle in seconds. Shapes: layer_weights.py; names: `l3_q_b`, `l3_mlp_mix_out_norm`,
    `final_mix_res_proj`, `lm_head`. The first mix reads one source, so it has no `res_norm` and no `res_proj`.

    static  of each layer what layer_weights.py lists (MXFP4 matrices as `w13_packed` and `w13_scale`); final mix; head
    input   embedding [rows, d] bf16; slots [rows] int32; page_table [rows, w] int32, lengths [rows] int32: as the ops
            `kda_decode` and `mla_query` have them, no row being padding
    state   l*_conv_state, l*_recurrent_state of KDA layers; l*_cache of MLA layers: as the ops have them
    output  logits [rows, vocabulary] bf16

    Which experts a layer uses is decided by its biases alone, which lie further apart than scores are large: a choice
    that hangs on roundings of the layers before has no right answer. So every row goes to the same experts, with weights
    of its own; choices by row are the exam of parts that route. Equations and rounding points: step/model.py.
    """

    model = "kimi_k3"
    op = "step"

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """TP1, up to eight rows."""
        if held_out:
            return tuple(self.vary(w, 0).model_copy(update={"held_out": True}) for w in self.workloads())
        return tuple(self._at(rows, f"tp1-b{rows}") for rows in _BUCKETS)

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Row count in the bucket, pool sizes and page size redrawn."""
        draw = random.Random(f"{workload.name} {seed}")
        bucket = next(bucket for bucket in _BUCKETS if workload.axes["rows"] <= bucket)
        rows = draw.choice([rows for rows in range(bucket // 2 + 1, bucket + 1) if rows % 2] or [bucket])
        return self._at(rows, f"{workload.name}-v{seed}", draw.choice((8, 16, 32)), draw.choice((2, 3, 4)), draw.choice((0, 1, 5)))

    def _at(self, rows: int, name: str, page_size: int = 16, width: int = 3, spare: int = 2) -> Workload:
        axes = {"tp": 1, "rows": rows, "slots": 1 + rows + spare, "page_size": page_size, "table_width": width}
        return Workload(name=name, axes=axes | {"pages": 1 + rows * width + spare})

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        a, axes = self.architecture, workload.axes
        rows = axes["rows"]
        return (
            *self.weights,
            tensor("embedding", DType.BF16, TensorRole.INPUT, (rows, a.hidden_size)),
            tensor("slots", DType.I32, TensorRole.INPUT, (rows,)),
            tensor("page_table", DType.I32, TensorRole.INPUT, (rows, axes["table_width"])),
            tensor("lengths", DType.I32, TensorRole.INPUT, (rows,)),
            *(spec for layer in range(a.layers) for spec in self._states(layer, axes)),
            output("logits", rows, a.vocab_size),
        )

    def _states(self, layer: int, axes: Mapping[str, int]) -> Iterator[TensorSpec]:
        a = self.architecture
        if layer in a.mla_layers:
            width = a.mla.kv_lora_rank + a.mla.qk_rope_head_dim
            yield tensor(f"l{layer}_cache", DType.BF16, TensorRole.STATE, (axes["pages"], axes["page_size"], width))
            return
        shard = a.kda_shard(1)
        window = (axes["slots"], shard.conv_width - 1, 3 * shard.channels)
        matrix = (axes["slots"], shard.heads, shard.head_dim, shard.head_dim)
        yield tensor(f"l{layer}_conv_state", DType.BF16, TensorRole.STATE, window)
        yield tensor(f"l{layer}_recurrent_state", DType.F32, TensorRole.STATE, matrix)

    @cached_property
    def weights(self) -> tuple[TensorSpec, ...]:
        """Every weight that the step reads."""
        a = self.architecture
        found = []
        for layer in range(a.layers):
            found += _mix(f"l{layer}_attention_mix", a, alone=layer == 0)
            found += (_kda if layer in a.kda_layers else _mla)(f"l{layer}", a)
            found += _mix(f"l{layer}_mlp_mix", a)
            found += (_dense if layer < a.moe.first_layer else _moe)(f"l{layer}", a)
        return (*found, *_mix("final_mix", a), static("lm_head", a.vocab_size, a.hidden_size))

    @cached_property
    def maths(self) -> ModuleType:
        """The module that draws inputs and computes (imports torch)."""
        return import_module(f"{__package__}.maths")

    @property
    def distributions(self) -> Mapping[str, str]:
        """See maths.py."""
        return self.maths.DISTRIBUTIONS

    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> "dict[str, Tensor]":
        """Contiguous CPU tensors: static, inputs and initial state. Equal arguments give equal bits."""
        return self.maths.draw(self, workload, distribution, seed)

    def oracle(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """The step oracle in float64, nothing rounded."""
        return self.maths.oracle(self, inputs, workload)

    def plain(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """The same step in float32, rounded as published."""
        return self.maths.plain(self, inputs, workload)

    def stock(self, device: str) -> "StockPath":
        """Raises UserError: the nano configuration has no stock path."""
        raise UserError(
            f"the step at the nano configuration has no stock path on {device!r}",
            "time layers at the true shapes (`layer:kda`, `layer:mla`, `layer:dense`)",
        )

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All calibrated: everything is computed from sums. Rows of a cache are (page, position)."""
        def calibrated(name: str) -> Comparison:
            return Comparison(tensor=name, kind="calibrated", floor=_FLOOR, row_axes=2 if name.endswith("cache") else 1)

        specs = self.tensors(self.workloads()[0])
        return tuple(calibrated(s.name) for s in specs if s.role in (TensorRole.STATE, TensorRole.OUTPUT))

    @property
    def hypotheses(self) -> "Mapping[str, Path]":
        """Known mistakes of a walk."""
        return {what: self.maths.bound(self, variant) for what, variant in self.maths.MISTAKES.items()}

    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """A slot or page belongs to the row that names it; a row of logits to itself."""
        if tensor not in self.produced:
            raise UserError(f"step does not produce {tensor!r}", f"it produces {', '.join(self.produced[:3])}, ...")
        if tensor == "logits":
            return index[0]
        if not tensor.endswith("_cache"):
            rows = (inputs["slots"] == index[0]).nonzero()
            return int(rows[0]) if len(rows) else None
        size = inputs[tensor].shape[1]
        for row, length in enumerate(inputs["lengths"].tolist()):
            if index[0] in inputs["page_table"][row, : -(-length // size)].tolist():
                return row
        return None

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Redraws the row's embedding, its slots and its cached rows."""
        return self.maths.redrawn(self, inputs, workload, row, seed)

    def cost(self, workload: Workload) -> Cost:
        """Weights once, of experts those that a layer uses; full tables. Products with weights alone are counted."""
        moe, rows = self.architecture.moe, workload.axes["rows"]
        weights = flops = 0
        for spec in self.weights:
            elements = spec.storage_elements
            if spec.name.endswith(("_packed", "_scale")):
                elements = elements * moe.top_k // moe.experts
            weights += elements * spec.dtype.bytes
            if len(spec.shape) > 1 and not spec.name.endswith("_scale"):
                flops += 2 * rows * elements * (2 if spec.name.endswith("_packed") else 1)
        rest = [spec for spec in self.tensors(workload) if spec.role is not TensorRole.STATIC]
        sizes = {spec.name: spec.storage_elements * spec.dtype.bytes for spec in rest}
        states = sum(size * rows // workload.axes["slots"] for name, size in sizes.items() if "_state" in name)
        caches = sum(size for name, size in sizes.items() if name.endswith("_cache"))
        inputs = sum(sizes[name] for name in ("embedding", "slots", "page_table", "lengths"))
        return Cost(bytes_read=weights + inputs + states + caches, bytes_written=sizes["logits"] + states, flops=flops)


def _mix(prefix: str, a: Architecture, *, alone: bool = False) -> list[TensorSpec]:
    names = ("out_norm",) if alone else ("res_norm", "res_proj", "out_norm")
    return [static(f"{prefix}_{name}", a.hidden_size) for name in names]


def _kda(prefix: str, a: Architecture) -> list[TensorSpec]:
    shard, d = a.kda_shard(1), a.hidden_size
    return [
        static(f"{prefix}_in_proj", shard.projection_rows, d),
        static(f"{prefix}_f_b", shard.channels, shard.gate_rank),
        static(f"{prefix}_conv_weight", 3 * shard.channels, shard.conv_width, dtype=DType.F32),
        static(f"{prefix}_a_log", shard.heads, dtype=DType.F32),
        static(f"{prefix}_dt_bias", shard.channels, dtype=DType.F32),
        static(f"{prefix}_o_norm", shard.head_dim),
        static(f"{prefix}_o_proj", d, shard.channels),
    ]


def _mla(prefix: str, a: Architecture) -> list[TensorSpec]:
    mla, d = a.mla, a.hidden_size
    channels = mla.heads * mla.v_head_dim
    return [
        static(f"{prefix}_qkv_a_g", mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim + channels, d),
        static(f"{prefix}_q_a_norm", mla.q_lora_rank),
        static(f"{prefix}_kv_a_norm", mla.kv_lora_rank),
        static(f"{prefix}_q_b", mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank),
        static(f"{prefix}_kv_b", mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        static(f"{prefix}_o_proj", d, channels),
    ]


def _dense(prefix: str, a: Architecture) -> list[TensorSpec]:
    n, d = a.dense_intermediate_size, a.hidden_size
    return [static(f"{prefix}_gate_up", 2 * n, d), static(f"{prefix}_down", d, n)]


def _moe(prefix: str, a: Architecture) -> list[TensorSpec]:
    moe, d = a.moe, a.hidden_size
    experts, latent, channels = moe.experts, moe.latent_size, moe.expert_intermediate_size
    shared = moe.shared_experts * channels
    return [
        static(f"{prefix}_router", experts, d),
        static(f"{prefix}_correction_bias", experts, dtype=DType.F32),
        static(f"{prefix}_latent_down", latent, d),
        static(f"{prefix}_latent_norm", latent),
        static(f"{prefix}_latent_up", d, latent),
        static(f"{prefix}_w13_packed", experts, 2 * channels, latent // 2, dtype=DType.U8),
        static(f"{prefix}_w13_scale", experts, 2 * channels, latent // _GROUP, dtype=DType.U8),
        static(f"{prefix}_w2_packed", experts, latent, channels // 2, dtype=DType.U8),
        static(f"{prefix}_w2_scale", experts, latent, channels // _GROUP, dtype=DType.U8),
        static(f"{prefix}_shared_gate_up", 2 * shared, d),
        static(f"{prefix}_shared_down", d, shared),
    ]
