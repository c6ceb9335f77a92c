"""A kernel that starts early (programmatic dependent launch) must wait before it reads what the one before wrote.

Such a race is mostly won, on a GPU as well, so it is read from the machine code.
"""

import pytest
from judging import candidate, model_of, replaced
from toy_contract import Toy

from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Status

HONEST = """
import torch
import triton
import triton.language as tl


@triton.jit
def product(x, w, mid, x_stride, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    weight = tl.load(w + columns)
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(mid + row * WIDTH + columns, tl.load(x + row * x_stride + columns).to(tl.float32) * weight)


@triton.jit
def add(mid, slots, acc, out, page_stride, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    tl.extra.cuda.gdc_wait()
    slot = tl.load(slots + row).to(tl.int64)
    if slot > 0:
        page = acc + slot * page_stride
        new = tl.load(page + columns) + tl.load(mid + row * WIDTH + columns)
        tl.store(page + columns, new)
        tl.store(out + row * WIDTH + columns, new.to(tl.bfloat16))
    else:
        tl.store(out + row * WIDTH + columns, tl.zeros((WIDTH,), tl.bfloat16))


def scratch(axes, config):
    return {"mid": ((axes["rows"], 64), torch.float32)}


def launch(ctx, buffers, axes, config):
    product[(axes["rows"],)](buffers.x, buffers.w, buffers.mid, buffers.x.stride(0), WIDTH=64, launch_pdl=True)
    add[(axes["rows"],)](
        buffers.mid, buffers.slots, buffers.acc, buffers.out, buffers.acc.stride(0), WIDTH=64, launch_pdl=True
    )
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory, kept_sandboxes):
    with Judge(model_of(Toy()), cache=tmp_path_factory.mktemp("kernels"), device="cpu") as made:
        yield made


@pytest.mark.slow
def test_kernels_that_wait_are_accepted(judge):
    found = judge.screen(candidate(HONEST, "accumulate"))
    assert found.status is Status.ACCEPTED, (found.reason, found.message)


@pytest.mark.slow
def test_a_kernel_that_never_waits(judge):
    text = replaced(HONEST, "    tl.extra.cuda.gdc_wait()\n    slot =", "    slot =")
    found = judge.screen(candidate(text, "accumulate"))
    assert (found.status, found.reason) == (Status.REJECTED, "compile.never_waits")
    assert found.message.startswith("add-")
