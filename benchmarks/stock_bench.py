"""What the benchmarks of the stock path share: cold copies, captured replays, weights drawn on the GPU."""

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fasttrack_validation.contracts.base import TensorSpec
from fasttrack_validation.tensors import DType, torch_dtype

REPLAYS = 15
COLD = 1 << 28
"""Bytes that a timed piece rotates over, several times the L2 cache"""


def replay_us(runs: Sequence[Callable[[], object]]) -> float:
    """Median time of one of `runs`, which replay as one graph, microseconds."""
    from fasttrack_validation.contracts.kimi_k3.stock.graph import capture

    return timed_us(capture(lambda: [run() for run in runs]).replay, len(runs))


def timed_us(replay: Callable[[], None], calls: int = 1) -> float:
    """Median time of one of the `calls` in a `replay`, microseconds, by events around it."""
    times = []
    for _ in range(REPLAYS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / calls)
    return statistics.median(times[2:])


def launches(run: Callable[[], object]) -> tuple[str, ...]:
    """The kernels of one captured call, and other nodes that do something."""
    from fasttrack_validation.contracts.kimi_k3.stock.graph import capture

    captured = capture(run)
    return captured.kernels + captured.others


def read_ceiling() -> float:
    """TB/s of a reduction over 2 GB."""
    big = torch.empty(1 << 30, dtype=torch.bfloat16, device="cuda").normal_()
    return big.nbytes / timed_us(lambda: big.view(torch.int64).amax()) / 1e6


def copies_of(nbytes: int, least: int = 3, most: int = 64) -> int:
    """How many copies of `nbytes` make a rotation cold."""
    return min(most, max(least, -(-COLD // max(nbytes, 1))))


def placed(spec: TensorSpec, value: Tensor) -> Tensor:
    """A copy of `value` on the GPU with the strides of `spec`."""
    storage = torch.zeros(max(spec.storage_elements, 1), dtype=value.dtype, device="cuda")
    laid = storage.as_strided(spec.shape, spec.strides)
    return laid.copy_(value)


def drawn(spec: TensorSpec, rows: int) -> Tensor:
    """Values of the right kind and scale for a timing, on the GPU; indices point at pages and experts of their own."""
    shape = spec.shape
    if spec.name == "page_table":
        value = 1 + torch.arange(shape[0] * shape[1], device="cuda", dtype=torch.int32).view(shape)
    elif spec.name == "slots":
        value = 1 + torch.arange(shape[0], device="cuda", dtype=torch.int32)
    elif spec.name == "ids":
        value = torch.rand(rows, 64, device="cuda").topk(shape[1]).indices.int()
    elif spec.dtype is DType.U8 and spec.name.endswith("scale"):
        value = torch.randint(118, 121, shape, device="cuda", dtype=torch.uint8)
    elif spec.dtype is DType.U8:
        value = torch.randint(0, 256, shape, device="cuda", dtype=torch.uint8)
    else:
        scale = shape[-1] ** -0.5 if spec.role.value == "static" and len(shape) > 1 else 1.0
        value = (torch.randn(shape, device="cuda") * scale).to(torch_dtype(spec.dtype))
    return placed(spec, value)
