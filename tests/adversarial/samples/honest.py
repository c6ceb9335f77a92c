"""Honest twins: correct kernels that do the like of what the exploits do. Each must be accepted."""

from judging import replaced
from toy_contract import KERNEL
from toy_norm import KERNEL as NORM_KERNEL

PRODUCT = '    product[(axes["rows"],)](buffers.x, buffers.w, buffers.partial, buffers.x.stride(0), WIDTH=64)\n'
_ACCUMULATE = '''    accumulate[(axes["rows"],)](
        buffers.partial, buffers.slots, buffers.acc, buffers.out, buffers.acc.stride(0), WIDTH=64,
    )
'''
TWO_LAUNCHES = (
    '''
import torch
import triton
import triton.language as tl


@triton.jit
def product(x, w, partial, x_stride, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    value = tl.load(x + row * x_stride + columns).to(tl.float32) * tl.load(w + columns)
    tl.store(partial + row * WIDTH + columns, value)


@triton.jit
def accumulate(partial, slots, acc, out, page_stride, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    slot = tl.load(slots + row).to(tl.int64)
    if slot > 0:
        page = acc + slot * page_stride
        new = tl.load(page + columns) + tl.load(partial + row * WIDTH + columns)
        tl.store(page + columns, new)
        tl.store(out + row * WIDTH + columns, new.to(tl.bfloat16))
    else:
        tl.store(out + row * WIDTH + columns, tl.zeros((WIDTH,), tl.bfloat16))


def scratch(axes, config):
    return {"partial": ((axes["rows"], 64), torch.float32)}


def launch(ctx, buffers, axes, config):
'''
    + PRODUCT
    + _ACCUMULATE
)
STREAMS = replaced(
    replaced(TWO_LAUNCHES, PRODUCT, '    with ctx.stream("side"):\n    ' + PRODUCT),
    _ACCUMULATE, '    ctx.wait("side")\n' + _ACCUMULATE,
)  # fmt: skip
WAIT = "    tl.extra.cuda.gdc_wait()\n"
DEPENDENT = replaced(
    replaced(TWO_LAUNCHES, "    slot = tl.load(slots + row)", WAIT + "    slot = tl.load(slots + row)"),
    "buffers.acc.stride(0), WIDTH=64,", "buffers.acc.stride(0), WIDTH=64, launch_pdl=True,",
)  # fmt: skip
PREPARED = replaced(
    replaced(KERNEL, "tl.load(w + columns)", "tl.load(w + columns) * 0.5"),
    "def launch", "def prepare(ctx, static, axes, config):\n    return {\"doubled\": static.w * 2}\n\n\ndef launch",
).replace("buffers.w,", "buffers.doubled,")  # fmt: skip

COUNT = "tl.atomic_add(arrived, 1)"
LAST_BLOCK = (
    '''
import torch
import triton
import triton.language as tl


@triton.jit
def reset(arrived):
    tl.store(arrived, 0)


@triton.jit
def accumulate(x, w, slots, acc, out, partial, arrived, x_stride, page_stride, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    value = tl.load(x + row * x_stride + columns).to(tl.float32) * tl.load(w + columns)
    tl.store(partial + row * WIDTH + columns, value)
    tl.debug_barrier()
    before = '''
    + COUNT
    + '''
    if before == ROWS - 1:
        for other in range(0, ROWS):
            slot = tl.load(slots + other).to(tl.int64)
            if slot > 0:
                page = acc + slot * page_stride
                new = tl.load(page + columns) + tl.load(partial + other * WIDTH + columns)
                tl.store(page + columns, new)
                tl.store(out + other * WIDTH + columns, new.to(tl.bfloat16))
            else:
                tl.store(out + other * WIDTH + columns, tl.zeros((WIDTH,), tl.bfloat16))


def scratch(axes, config):
    return {"partial": ((axes["rows"], 64), torch.float32), "arrived": ((1,), torch.int32)}


def launch(ctx, buffers, axes, config):
    reset[(1,)](buffers.arrived)
    accumulate[(axes["rows"],)](
        buffers.x, buffers.w, buffers.slots, buffers.acc, buffers.out, buffers.partial, buffers.arrived,
        buffers.x.stride(0), buffers.acc.stride(0), WIDTH=64, ROWS=axes["rows"],
    )
'''
)
MASKED = replaced(
    TWO_LAUNCHES, "tl.load(partial + row * WIDTH + columns)",
    "tl.sum(tl.load(partial + row * WIDTH + columns[:, None] + tl.arange(0, 2)[None, :] * 4096,\n"
    "                               mask=tl.arange(0, 2)[None, :] < 1, other=0.0), axis=1)",
)  # fmt: skip
REDUNDANT = replaced(TWO_LAUNCHES, 'product[(axes["rows"],)]', 'product[(axes["rows"], 2)]')
PREFETCH = replaced(
    replaced(KERNEL, "@triton.jit\n", '@triton.jit\ndef warm(w, WIDTH: tl.constexpr):\n'
             '    tl.load(w + tl.arange(0, WIDTH))\n\n\n@triton.jit\n'),
    "def launch(ctx, buffers, axes, config):\n",
    "def launch(ctx, buffers, axes, config):\n    with ctx.prefetch():\n        warm[(1,)](buffers.w, WIDTH=64)\n",
)  # fmt: skip
HINTS = replaced(
    KERNEL, "columns = tl.arange(0, WIDTH)",
    "columns = tl.max_contiguous(tl.multiple_of(tl.arange(0, WIDTH), WIDTH), WIDTH)\n    tl.assume(row >= 0)\n"
    "    x_stride = tl.multiple_of(x_stride, 8) + ((row + 1) >> 31)\n    tl.device_assert(row >= 0, \"rows count from zero\")",
)  # fmt: skip

LOOPS = replaced(
    KERNEL, "        tl.store(page + columns, new)\n",
    "        for i in range(0, 3):\n            new += i - 1\n        for i in range(0, 2):\n            new += 2 * i - 1\n"
    "        i = row * 0\n        new += i\n        for j in tl.static_range(0, 3):\n            new += 0\n        new += j - 2\n"
    "        tl.store(page + columns, new)\n",
)  # fmt: skip

HONEST = {
    "plain": ("accumulate", KERNEL),
    "scratch written before read": ("accumulate", TWO_LAUNCHES),
    "several streams": ("accumulate", STREAMS),
    "programmatic dependent launch": ("accumulate", DEPENDENT),
    "prepacked weights": ("accumulate", PREPARED),
    "last block reduces": ("accumulate", LAST_BLOCK),
    "masked lanes read nothing": ("accumulate", MASKED),
    "redundant programs write the same": ("accumulate", REDUNDANT),
    "prefetch": ("accumulate", PREFETCH),
    "true hints": ("accumulate", HINTS),
    "loops": ("accumulate", LOOPS),
    "normalise": ("normalise", NORM_KERNEL),
}
"""name -> (op, text). In-place state is part of every `accumulate`."""
