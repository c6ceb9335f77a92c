"""The extended plan language under the judge: each rule has an exploit that it must reject, beside an honest twin.

On the toy op (tests/support/toy_contract.py).
"""

import pytest
from judged import skip_compiling
from judging import candidate, model_of, replaced
from toy_contract import KERNEL, Toy

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Outcome, Status


@pytest.fixture(scope="module")
def judge(tmp_path_factory, kept_sandboxes):
    with Judge(model_of(Toy()), cache=tmp_path_factory.mktemp("kernels")) as made:
        yield made


def verdict(judge, text):
    return judge.screen(candidate(text, "accumulate"))


@pytest.fixture
def uncompiled(judge, monkeypatch):
    """The judge, for what its plan or its trials reject: whether it compiles is beside the point."""
    skip_compiling(monkeypatch)
    return judge


def rejected(found):
    assert found.status is Status.REJECTED, (found.status, found.message)
    return found.reason


# Persistent buffers: a product that is handed over by a mailbox and taken back out of it.

MAILBOX = '''
import torch
import triton
import triton.language as tl


@triton.jit
def send(x, w, box, flags, x_stride, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    value = tl.load(x + row * x_stride + columns).to(tl.float32) * tl.load(w + columns)
    tl.store(box + row * WIDTH + columns, value)
    tl.store(flags + row, tl.load(flags + row) + 1)


@triton.jit
def accumulate(box, flags, slots, acc, out, page_stride, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    slot = tl.load(slots + row).to(tl.int64)
    sent = tl.load(flags + row)
    if slot > 0:
        page = acc + slot * page_stride
        new = tl.load(page + columns) + tl.load(box + row * WIDTH + columns)
        tl.store(page + columns, new)
        tl.store(out + row * WIDTH + columns, new.to(tl.bfloat16))
    else:
        tl.store(out + row * WIDTH + columns, tl.zeros((WIDTH,), tl.bfloat16))
    tl.store(box + row * WIDTH + columns, tl.zeros((WIDTH,), tl.float32))
    tl.store(flags + row, sent - 1)


def persistent(axes, config):
    return {"box": ((axes["rows"], 64), torch.float32), "flags": ((axes["rows"],), torch.int32, 255, "restored")}


def launch(ctx, buffers, axes, config):
    send[(axes["rows"],)](buffers.x, buffers.w, buffers.box, buffers.flags, buffers.x.stride(0), WIDTH=64)
    accumulate[(axes["rows"],)](
        buffers.box, buffers.flags, buffers.slots, buffers.acc, buffers.out, buffers.acc.stride(0), WIDTH=64,
    )
'''
CLEARED = "    tl.store(box + row * WIDTH + columns, tl.zeros((WIDTH,), tl.float32))\n"
COUNTED = "    tl.store(flags + row, sent - 1)\n"
EPOCH = replaced(replaced(MAILBOX, COUNTED, ""), '255, "restored"', '255, "epoch"')


@pytest.mark.parametrize("text", [MAILBOX, EPOCH], ids=["restored", "counting"])
def test_a_mailbox_is_accepted(judge, text):
    found = verdict(judge, text)
    assert found.status is Status.ACCEPTED, (found.reason, found.message)


@pytest.mark.parametrize(
    ("text", "words"),
    [(replaced(MAILBOX, CLEARED, ""), "box"), (replaced(MAILBOX, COUNTED, ""), "flags")],
    ids=["mail left", "counter left"],
)
def test_a_buffer_that_is_not_restored(uncompiled, text, words):
    found = verdict(uncompiled, text)
    assert rejected(found) == "persistent.not_restored" and words in found.message


@pytest.mark.parametrize(
    ("where", "step"), [("sent == 0", 1), ("sent == 2", 3)], ids=["answers from the first step", "a late surprise"]
)
def test_results_that_depend_on_earlier_steps(uncompiled, where, step):
    """The counter starts at -1 and is 0 in the first step: right there (or until the third), wrong afterwards."""
    wrong = f"tl.where({where}, 0.0, 1.0)" if step == 1 else f"tl.where({where}, 1.0, 0.0)"
    mail = "tl.load(box + row * WIDTH + columns)"
    text = replaced(EPOCH, f"{mail}\n", f"{mail} + {wrong}\n")
    found = verdict(uncompiled, text)
    assert rejected(found) == "persistent.carries_over"
    assert f"in step {step + 1 if step == 1 else step}" in found.message


# Prefetch launches.

WARM = """
@triton.jit
def warm(w, out, WIDTH: tl.constexpr):
    tl.load(w + tl.arange(0, WIDTH))
    {more}


def launch(ctx, buffers, axes, config):
    with ctx.prefetch():
        warm[(1,)](buffers.w, buffers.out, WIDTH=64)
"""
PREFETCHED = replaced(KERNEL, "def launch(ctx, buffers, axes, config):\n", WARM.format(more="pass")[1:])


def test_a_prefetch_is_accepted(judge):
    found = verdict(judge, PREFETCHED)
    assert found.status is Status.ACCEPTED, (found.reason, found.message)


def test_a_prefetch_that_writes(uncompiled):
    found = verdict(uncompiled, replaced(PREFETCHED, "    pass\n", "    tl.store(out, 0.0)\n"))
    assert rejected(found) == "prefetch.writes" and "out" in found.message


# CUDA C++.

CUDA = {
    "kernel.py": """
def launch(ctx, buffers, axes, config):
    accumulate = ctx.cuda("accumulate.cu", "accumulate", threads=64, constants={"WIDTH": 64})
    accumulate[(axes["rows"],)](
        buffers.x, buffers.w, buffers.slots, buffers.acc, buffers.out, buffers.x.stride(0), buffers.acc.stride(0),
        shared_bytes=config["shared"],
    )
""",
    "accumulate.cu": """
#include <cuda_bf16.h>

extern "C" __global__ void accumulate(
    const __nv_bfloat16* x, const float* w, const int* slots, float* acc, __nv_bfloat16* out, int x_stride, int page) {
    int row = blockIdx.x, column = threadIdx.x, slot = slots[row];
    float value = 0;
    if (slot > 0) {
        float* cell = acc + (long long)slot * page + column;
        *cell = value = *cell + __bfloat162float(x[row * x_stride + column]) * w[column];
    }
    out[row * WIDTH + column] = __float2bfloat16(value);
}
""",
}  # fmt: skip


def cuda(judge, shared=0, **edits):
    files = {name: replaced(text, *edits[name]) if name in edits else text for name, text in CUDA.items()}
    made = Candidate(op="accumulate", entry="kernel.py", files=files, config={"shared": shared})
    return judge.screen(made)


@pytest.fixture
def compiler():
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")


def test_a_cuda_kernel_is_compiled_and_audited_and_not_accepted(judge, compiler):
    found = cuda(judge)
    assert (found.status, found.reason) == (Status.NOT_RUN, "execution.needs_gpu"), found.message
    assert "accumulate.cu" in found.message and "compiled and audited for sm_90, sm_103" in found.message
    assert {audit.target for audit in found.audits} == {"sm_90", "sm_103"}
    outcomes = {check.check: check.outcome for check in found.checks}
    assert all(outcomes[name] is Outcome.PASS for name in ("record", "plan", "compile"))
    assert outcomes["execution"] is Outcome.NOT_RUN and "numerics" not in outcomes


def test_a_cuda_kernel_that_does_not_compile(judge, compiler):
    found = cuda(judge, **{"accumulate.cu": ("float value = 0;", "float value = nothing;")})
    assert rejected(found) == "compile.error" and "accumulate.cu(7)" in found.message


def test_an_argument_of_another_type(judge, compiler):
    found = cuda(judge, **{"kernel.py": ("buffers.x.stride(0),", "float(buffers.x.stride(0)),")})
    assert rejected(found) == "compile.signature" and "p5" in found.message


def test_shared_memory_is_counted_with_the_static_part(judge, compiler):
    tile = "__shared__ float tile[64]; tile[column] = w[column]; float value = tile[column ^ 1] * 0;"
    edit = ("float value = 0;", tile)
    found = cuda(judge, shared=232448, **{"accumulate.cu": edit})
    assert rejected(found) == "compile.out_of_resources" and str(232448 + 256) in found.message
    assert cuda(judge, shared=232448).reason == "execution.needs_gpu"


def test_an_include_from_outside(judge):
    found = cuda(judge, **{"accumulate.cu": ("#include <cuda_bf16.h>", '#include "/proc/self/environ"')})
    assert rejected(found) == "include" and "accumulate.cu:2" in found.message


# Plans that cost too much to look at.


def test_a_variant_for_every_call_is_refused(judge):
    """Constants that never repeat would be compiled one by one, for every target."""
    text = replaced(KERNEL, "WIDTH: tl.constexpr):", "WIDTH: tl.constexpr, N: tl.constexpr):")
    call = text[text.index("    accumulate[") :]
    many = "    for n in range(300):\n" + "".join(f"    {line}\n" for line in call.rstrip().split("\n"))
    text = text.replace(call, replaced(many, "WIDTH=64", "WIDTH=64, N=n"))
    found = verdict(judge, text)
    assert rejected(found) == "plan.too_many_variants" and "variants for 4 workloads, at most 256" in found.message
    assert found.seconds.get("compile") is None


@pytest.mark.parametrize(
    ("grid", "reason"),
    [("1 << 21", "plan.blocks"), ("1 << 18", "execution.unsupported")],
    ids=["anywhere", "interpreted"],
)
def test_a_grid_without_end_is_refused(uncompiled, grid, reason):
    found = verdict(uncompiled, replaced(KERNEL, '(axes["rows"],)', f"({grid},)"))
    assert rejected(found) == reason


def test_more_scratch_than_an_op_can_need(judge):
    declared = "def scratch(axes, config): return {'t': ((1 << 28,), torch.uint8)}\n\n\ndef launch"
    assert rejected(verdict(judge, replaced(KERNEL, "def launch", declared))) == "plan.scratch_size"
