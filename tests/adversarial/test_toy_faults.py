"""Each check of the judge has an exploit that it must reject for the stated reason, beside an honest twin that passes.

On the toy op (tests/support/toy_contract.py): a verdict takes about a second.
"""

import pytest
from judging import candidate, model_of, replaced
from toy_contract import KERNEL, Toy

from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Status


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with Judge(model_of(Toy()), cache=tmp_path_factory.mktemp("kernels")) as made:
        yield made


def verdict(judge, text, config=None):
    return judge.screen(candidate(text, "accumulate", config))


GRID = 'accumulate[(axes["rows"],)]('
LAST = "tl.store(out + row * WIDTH + columns, new.to(tl.bfloat16))"
PAGE = "tl.store(page + columns, new)"

# exploit -> (edit of the honest kernel, check, reason, words of the message)
EXPLOITS = {
    "tail row skipped": (
        (GRID, 'accumulate[(max(1, axes["rows"] - 1),)]('), "C4", "poison.left", "the last row of",
    ),
    "null page written": (
        ("if slot > 0:", "if slot >= 0:"), "C4", "state.foreign_page", "the null page (slot 0) was written",
    ),
    "dense page stride assumed": (
        ("buffers.x.stride(0), buffers.acc.stride(0)", "buffers.x.stride(0), 64"), "C4", None, "dense page stride",
    ),
    "dense row stride assumed": (
        ("buffers.x.stride(0), buffers.acc", "64, buffers.acc"), None, None, "unseen",
    ),
    "writes past its buffer": (
        (LAST, "tl.store(out + row * WIDTH + columns + WIDTH * tl.num_programs(0), new.to(tl.bfloat16))"),
        "C4", "execution.out_of_bounds", "past the end of out",
    ),
    "writes into the page gap": (
        (PAGE, "tl.store(page + columns, new)\n        tl.store(page + WIDTH + columns, new, mask=(columns < 2) & (slot == 1))"),
        "C4", "gap.written", "gap between its pages",
    ),
    "modifies an input": (
        (PAGE, "tl.store(page + columns, new)\n        tl.store(x + row * x_stride + columns, new.to(tl.bfloat16))"),
        "C4", "execution.out_of_bounds", "read-only",
    ),
    "reads the poison": (
        ("new = tl.load(page", "old = tl.load(out + row * WIDTH + columns).to(tl.float32)\n"
         "        new = tl.where(old > 0, 1e-3, 0.0) + tl.load(page"),
        "C14", "determinism.not_reproducible", "earlier output contents",
    ),
    "product added twice": (
        ("* tl.load(w + columns)\n", "* tl.load(w + columns) * 2\n"),
        "numerics", "numerics.median", "explained by: the product was added twice",
    ),
    "accumulates in bf16": (
        ("new = tl.load(page + columns) +", "new = tl.load(page + columns).to(tl.bfloat16).to(tl.float32) +"),
        "numerics", "numerics.median", "acc: the median of the relative error",
    ),
    "copies with torch": (
        ("def launch(ctx, buffers, axes, config):", "def launch(ctx, buffers, axes, config):\n    buffers.out.zero_()"),
        "record", None, "zero_",
    ),
    "launches nothing": (
        ("    accumulate[", "    return\n    accumulate["), "record", "record.no_launches", "no kernel",
    ),
}  # fmt: skip

@pytest.mark.parametrize("name", EXPLOITS)
def test_exploit_is_rejected_for_its_reason(judge, name):
    (old, new), check, reason, words = EXPLOITS[name]
    found = verdict(judge, replaced(KERNEL, old, new))
    assert found.status is Status.REJECTED, found.checks
    failed = next(c for c in found.checks if c.outcome == "fail")
    assert words in found.message
    if check:
        assert failed.check == check
    if reason:
        assert found.reason == reason


def test_neighbour_dependence_is_named(judge):
    """A row's result must not depend on another row's input, even by less than the tolerance."""
    text = replaced(
        KERNEL,
        "tl.store(page + columns, new)",
        "other = tl.load(x + ((row + 1) % tl.num_programs(0)) * x_stride + columns).to(tl.float32)\n"
        "        new += tl.where(tl.num_programs(0) > 1, other * 1e-7, 0.0)\n"
        "        tl.store(page + columns, new)",
    )
    found = verdict(judge, text)
    assert (found.status, found.reason) == (Status.REJECTED, "neighbour.dependence")
    assert "changed other rows of" in found.message


def test_honest_kernel_is_accepted(judge):
    found = verdict(judge, KERNEL)
    assert found.status is Status.ACCEPTED, found.checks
    assert {audit.target for audit in found.audits} == {"sm_90", "sm_103"}
    assert all(cell.kind == "not_measured" and "GPU" in cell.reason for cell in (timed.cell for timed in found.cells))


SCRATCH = '''
def scratch(axes, config):
    return {"partial": ((axes["rows"], 64), torch.float32)}

def launch(ctx, buffers, axes, config):
    product[(axes["rows"],)](buffers.x, buffers.w, buffers.partial, buffers.x.stride(0), WIDTH=64)
    with ctx.stream("side"):
        pass
    accumulate[(axes["rows"],)](
        buffers.partial, buffers.slots, buffers.acc, buffers.out, buffers.acc.stride(0), WIDTH=64,
    )
'''
TWO_LAUNCHES = '''
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
''' + SCRATCH
PREPARED = replaced(
    replaced(KERNEL, "tl.load(w + columns)", "tl.load(w + columns) * 0.5"),
    "def launch", "def prepare(ctx, static, axes, config):\n    return {\"doubled\": static.w * 2}\n\n\ndef launch",
).replace("buffers.w,", "buffers.doubled,")  # fmt: skip


@pytest.mark.parametrize("text", [TWO_LAUNCHES, PREPARED], ids=["scratch and two launches", "prepacked weights"])
def test_honest_twin_is_accepted(judge, text):
    found = verdict(judge, text)
    assert found.status is Status.ACCEPTED, (found.reason, found.message)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("if bool((static.w != 0).any()): raise RuntimeError('not today')", "not today"),
        ("return {'doubled': static.w.repeat(2) if bool((static.w != 0).any()) else static.w}", "bytes on real weights"),
    ],
    ids=["raises on real weights", "another shape on real weights"],
)
def test_prepare_that_behaves_otherwise_on_real_weights_is_an_outcome(judge, body, words):
    text = PREPARED.replace("    return {\"doubled\": static.w * 2}\n", f"    {body}\n    return {{'doubled': static.w * 2}}\n")
    found = verdict(judge, text)
    assert found.status is Status.REJECTED and found.reason == "execution.error"
    assert words in found.message


def test_toolchain_is_the_judges_own(judge):
    text = "import platform\nplatform.python_version = lambda: 'forged'\n" + KERNEL
    text = text.replace("platform.python_version = lambda: 'forged'\n", "").replace(
        "def launch(ctx, buffers, axes, config):",
        "def launch(ctx, buffers, axes, config):\n    platform.python_version = lambda: 'forged'",
    )
    found = verdict(judge, text)
    assert "forged" not in str(found.toolchain) and found.toolchain["triton"]


def test_scratch_that_was_never_written_is_noise(judge):
    text = TWO_LAUNCHES.replace("    tl.store(partial + row * WIDTH + columns, value)\n", "")
    found = verdict(judge, text)
    assert found.status is Status.REJECTED


def test_race_between_programs_shows_in_another_program_order(judge):
    """Each program reads the page that its predecessor updates: right only while programs run from first to last."""
    text = replaced(
        KERNEL,
        "    else:\n",
        "        before = tl.load(slots + tl.maximum(row - 1, 0)).to(tl.int64)\n"
        "        drift = tl.load(acc + tl.maximum(before, 1) * page_stride + columns) * 1e-3\n"
        "        tl.store(out + row * WIDTH + columns, (new + drift).to(tl.bfloat16), mask=row > 0)\n    else:\n",
    )
    found = verdict(judge, text)
    assert found.status is Status.REJECTED
    assert "determinism.not_reproducible" in {c.reason for c in found.checks}


def test_a_contract_that_a_trivial_answer_passes_rules_invalid():
    class Lax(Toy):
        @property
        def comparisons(self):
            return tuple(c.model_copy(update={"floor": 1e9}) for c in super().comparisons)

    with Judge(model_of(Lax())) as lax:
        found = lax.screen(candidate(KERNEL, "accumulate"))
    assert (found.status, found.reason) == (Status.INVALID, "task.insane")
    assert "zeros as out would pass" in found.message


def test_unsafe_mode_never_accepts():
    with Judge(model_of(Toy()), unsafe_no_sandbox=True) as unsafe:
        found = unsafe.screen(candidate(KERNEL, "accumulate"))
    assert found.status is Status.NOT_RUN
    assert "--unsafe-no-sandbox" in found.message
