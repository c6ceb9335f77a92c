"""Shapes, strides and workloads of `kda_decode`. Knows no values and imports no tensor library."""

import random

from ....tensors import DType
from ...base import TensorRole, TensorSpec, Workload
from ..architecture import Architecture, KdaShard

# Serving stacks keep pages and rows 16-byte aligned; page strides and row strides are multiples of this.
_ALIGN_BYTES = 16

_BF16_STEP = _ALIGN_BYTES // DType.BF16.bytes
_F32_STEP = _ALIGN_BYTES // DType.F32.bytes

# A pool holds the null page, one page a row, and pages that belong to nobody in this step.
_SPARE_SLOTS = 4

# Past this element offset a 32-bit index is negative.
_INT32_ELEMENTS = 2**31


def shard_of(architecture: Architecture, workload: Workload) -> KdaShard:
    """The rank's share of a KDA layer that `workload` is about."""
    return architecture.kda_shard(workload.axes["tp"])


def workload(
    shard: KdaShard,
    name: str,
    rows: int,
    *,
    slots: int | None = None,
    projected_gap: int = 0,
    conv_gap: int = 8 * _BF16_STEP,
    state_gap: int = 8 * _F32_STEP,
    slots_stride: int = 1,
    held_out: bool = False,
) -> Workload:
    """A workload of `rows` rows. Gaps count elements between dense rows or pages; strides enter the axes."""
    return Workload(
        name=name,
        axes={
            "tp": shard.tp,
            "heads": shard.heads,
            "rows": rows,
            "slots": rows + 1 + _SPARE_SLOTS if slots is None else slots,
            "projected_stride": shard.projection_rows + projected_gap,
            "conv_page_stride": _conv_page(shard) + conv_gap,
            "state_page_stride": _state_page(shard) + state_gap,
            "slots_stride": slots_stride,
        },
        held_out=held_out,
    )


def varied(shard: KdaShard, base: Workload, buckets: tuple[int, ...], seed: int) -> Workload:
    """Another workload of the bucket that `base` falls into: rows, pool size and every stride redrawn."""
    rng = random.Random(f"kda_decode {base.name} {seed}")
    bucket = next(bucket for bucket in buckets if base.axes["rows"] <= bucket)
    below = max((other for other in buckets if other < bucket), default=0)
    # Any row count of the bucket but the declared one; odd, even and prime alike.
    rows = rng.choice(range(below + 1, bucket)) if below + 1 < bucket else bucket
    return workload(
        shard,
        f"{base.name}-v{seed}",
        rows,
        slots=rows + 1 + rng.randrange(0, 9),
        projected_gap=_BF16_STEP * rng.randrange(0, 65),
        conv_gap=_BF16_STEP * rng.randrange(1, 257),
        state_gap=_F32_STEP * rng.randrange(1, 257),
        slots_stride=rng.choice((1, 1, 2, 9)),
        held_out=base.held_out,
    )


def far(shard: KdaShard) -> Workload:
    """Three pages so far apart that the last one starts past element 2^31 in both pools.

    The storage is 8 GiB (recurrent) and 4 GiB (convolution), nearly all of it gaps: sparse memory will do.
    """
    conv, state = _conv_page(shard), _state_page(shard)
    return workload(
        shard,
        f"tp{shard.tp}-far",
        2,
        slots=3,
        conv_gap=_INT32_ELEMENTS // 2 + _BF16_STEP - conv,
        state_gap=_INT32_ELEMENTS // 2 + _F32_STEP - state,
        held_out=True,
    )


def tensors(shard: KdaShard, at: Workload) -> tuple[TensorSpec, ...]:
    """All tensors of the op at `at`, in the order of the contract."""
    axes = at.axes
    rows, slots, heads, channels, dim = axes["rows"], axes["slots"], shard.heads, shard.channels, shard.head_dim
    taps = shard.conv_width - 1
    return (
        _dense("f_b", DType.BF16, TensorRole.STATIC, (channels, shard.gate_rank)),
        _dense("conv_weight", DType.F32, TensorRole.STATIC, (3 * channels, shard.conv_width)),
        _dense("a_log", DType.F32, TensorRole.STATIC, (heads,)),
        _dense("dt_bias", DType.F32, TensorRole.STATIC, (channels,)),
        _dense("o_norm", DType.BF16, TensorRole.STATIC, (dim,)),
        TensorSpec(
            name="projected",
            dtype=DType.BF16,
            role=TensorRole.INPUT,
            shape=(rows, shard.projection_rows),
            strides=(axes["projected_stride"], 1),
        ),
        TensorSpec(
            name="slots", dtype=DType.I32, role=TensorRole.INPUT, shape=(rows,), strides=(axes["slots_stride"],)
        ),
        TensorSpec(
            name="conv_state",
            dtype=DType.BF16,
            role=TensorRole.STATE,
            shape=(slots, taps, 3 * channels),
            strides=(axes["conv_page_stride"], 3 * channels, 1),
        ),
        TensorSpec(
            name="recurrent_state",
            dtype=DType.F32,
            role=TensorRole.STATE,
            shape=(slots, heads, dim, dim),
            strides=(axes["state_page_stride"], dim * dim, dim, 1),
        ),
        _dense("out", DType.BF16, TensorRole.OUTPUT, (rows, channels)),
    )


def _conv_page(shard: KdaShard) -> int:
    return (shard.conv_width - 1) * 3 * shard.channels


def _state_page(shard: KdaShard) -> int:
    return shard.heads * shard.head_dim**2


def _dense(name: str, dtype: DType, role: TensorRole, shape: tuple[int, ...]) -> TensorSpec:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(name=name, dtype=dtype, role=role, shape=shape, strides=tuple(reversed(strides)))
