"""A kernel that does nothing but read: the ceiling that target floors refer to."""

import torch
import triton
import triton.language as tl

BLOCK = 4096
PROGRAMS_PER_MULTIPROCESSOR = 16


@triton.jit
def _read(data, sink, blocks, BLOCK: tl.constexpr):
    """Programs stride over `data` (int32); a value that no data holds would be stored, so nothing can be left out."""
    total = tl.zeros([BLOCK], dtype=tl.int32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        total |= tl.load(data + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    if tl.max(total) < 0:
        tl.store(sink, 1)


def read(data: torch.Tensor, sink: torch.Tensor) -> None:
    """Launches one read of all of `data`, [n] int32 of non-negative values, n a multiple of 4096."""
    programs = PROGRAMS_PER_MULTIPROCESSOR * torch.cuda.get_device_properties(data.device).multi_processor_count
    _read[(programs,)](data, sink, data.numel() // BLOCK, BLOCK=BLOCK, num_warps=8)
