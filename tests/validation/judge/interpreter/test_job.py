"""Whole kernels against float64, the memory check, program order, and what only a GPU can run."""

import pytest
import torch

HEADER = "import triton\nimport triton.language as tl\n"
F32, BF16, I32, I64 = torch.float32, torch.bfloat16, torch.int32, torch.int64


def normal(seed: int, *shape: int, dtype=F32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


GEMV = """
@triton.jit
def kernel(W, X, Y, N, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    live = rows < N
    acc = tl.zeros([BN], tl.float32)
    for k in range(0, K, BK):
        cols = k + tl.arange(0, BK)
        w = tl.load(W + rows[:, None] * K + cols[None, :], mask=live[:, None], other=0.0)
        x = tl.load(X + cols)
        acc += tl.sum(w.to(tl.float32) * x.to(tl.float32)[None, :], 1)
    tl.store(Y + rows, acc.to(tl.bfloat16), mask=live)
"""


def gemv(interpreter, source=GEMV, n=100, k=256, **options):
    w, x = normal(1, n, k, dtype=BF16), normal(2, k, dtype=BF16)
    return (w, x), interpreter.run(
        source, {"W": w, "X": x, "Y": torch.zeros(n, dtype=BF16)}, scalars={"N": ("i32", n)},
        constexprs={"K": k, "BN": 32, "BK": 64}, grid=((n + 31) // 32, 1, 1), read_only=("W", "X"), **options,
    )  # fmt: skip


def test_bf16_gemv_with_a_masked_tail(interpreter):
    (w, x), (reply, after) = gemv(interpreter)
    assert reply["status"] == "ok" and reply["launches"][0]["programs"] == 4 and reply["seconds"] > 0
    expected = w.double() @ x.double()
    assert (after["Y"].double() - expected).abs().max() <= 2.0**-8 * expected.abs().max()
    assert torch.equal(after["W"], w) and torch.equal(after["X"], x)


def test_softmax(interpreter):
    source = """
@triton.jit
def kernel(X, Y, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(X + tl.program_id(0) * N + i, mask=i < N, other=float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(Y + tl.program_id(0) * N + i, e / tl.sum(e, 0), mask=i < N)
"""
    x = normal(3, 8, 100) * 5
    reply, after = interpreter.run(
        source,
        {"X": x, "Y": torch.zeros(8, 100)},
        scalars={"N": ("i32", 100)},
        constexprs={"BLOCK": 128},
        grid=(8, 1, 1),
    )
    assert reply["status"] == "ok", reply
    assert torch.allclose(after["Y"].double(), x.double().softmax(1), atol=1e-7)


ATOMIC = """
@triton.jit
def kernel(X, Y):
    i = tl.arange(0, 64)
    tl.atomic_add(Y + {lane}, tl.load(X + tl.program_id(0) * 64 + i).to(Y.dtype.element_ty){extra})
"""


@pytest.mark.parametrize("dtype", [F32, I32, BF16])
def test_atomic_add(interpreter, dtype):
    x = torch.ones(4, 64, dtype=F32)
    source = ATOMIC.replace("{lane}", "(i & 1)").replace("{extra}", ", mask=i < 63")
    reply, after = interpreter.run(source, {"X": x, "Y": torch.zeros(2, dtype=dtype)}, grid=(4, 1, 1))
    assert reply["status"] == "ok", reply
    assert after["Y"].tolist() == [4 * 32, 4 * 31]


def test_bf16_atomics_round_each_addition(interpreter):
    source = ATOMIC.replace("{lane}", "i * 0").replace("{extra}", "")
    reply, after = interpreter.run(source, {"X": torch.ones(8, 64), "Y": torch.zeros(1, dtype=BF16)},
                                   grid=(8, 1, 1))  # fmt: skip
    assert reply["status"] == "ok" and after["Y"].item() == 256  # 257 is no bf16: 256 + 1 rounds back


def test_float32_exchange(interpreter):
    source = "@triton.jit\ndef kernel(X, Y):\n    tl.store(Y, tl.atomic_xchg(X, 5.0))\n"
    reply, after = interpreter.run(source, {"X": torch.tensor([3.0]), "Y": torch.zeros(1)})
    assert reply["status"] == "ok" and after["X"].item() == 5.0 and after["Y"].item() == 3.0


def test_compare_and_swap(interpreter):
    source = "@triton.jit\ndef kernel(X, Y):\n    tl.store(Y, tl.atomic_cas(X, 3, 9))\n"
    reply, after = interpreter.run(source, {"X": torch.tensor([3], dtype=I32), "Y": torch.zeros(1, dtype=I32)})
    assert reply["status"] == "ok" and after["X"].item() == 9 and after["Y"].item() == 3


# The memory check

COPY = """
@triton.jit
def kernel(X, Y, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(X + i{load_mask}){store_mask})
"""


def copy(interpreter, load_mask="", store_mask="", n=100, **options):
    source = COPY.replace("{load_mask}", load_mask).replace("{store_mask}", store_mask)
    x = normal(4, n)
    reply, after = interpreter.run(
        source, {"X": x, "Y": torch.zeros(n)}, scalars={"N": ("i32", n)}, constexprs={"BLOCK": 32},
        grid=((n + 31) // 32, 1, 1), **options,
    )  # fmt: skip
    return x, reply, after


def test_masked_copy_passes(interpreter):
    x, reply, after = copy(interpreter, ", mask=i < N", ", mask=i < N", read_only=("X",))
    assert reply["status"] == "ok" and torch.equal(after["Y"], x)


def test_one_unmasked_read_past_the_end_is_a_violation(interpreter):
    _, reply, _ = copy(interpreter, "", ", mask=i < N")
    assert reply["status"] == "violation"
    details = reply["details"]
    assert details["access"] == "read" and details["parameter"] == "X" and details["fault"] == "past"
    assert details["distance"] == 0 and details["lanes"] == 28 and details["program"] == (3, 0, 0)
    assert "past the end of X" in reply["message"] and reply["launches"][0]["programs"] == 3


def test_one_lane_written_past_the_end_leaves_the_neighbour_alone(interpreter):
    _, reply, after = copy(interpreter, ", mask=i < N", ", mask=i <= N")
    details = reply["details"]
    assert reply["status"] == "violation" and details["access"] == "write" and details["lanes"] == 1
    assert details["parameter"] == "Y" and details["buffer_bytes"] == 400
    assert (after["Y"][96:] == 0).all()  # nothing of the faulty access was carried out


def test_reading_before_the_start(interpreter):
    source = "@triton.jit\ndef kernel(X, Y):\n    tl.store(Y, tl.load(X - 2))\n"
    reply, _ = interpreter.run(source, {"X": normal(1, 4), "Y": torch.zeros(1)})
    assert (
        reply["status"] == "violation" and reply["details"]["fault"] == "before" and reply["details"]["distance"] == 8
    )


def test_a_buffer_that_the_launch_was_not_given_is_out_of_bounds(interpreter):
    # Both buffers are mapped, 256 bytes apart; the launch that gets one of them may not reach the other.
    source = "@triton.jit\ndef kernel(X, Y):\n    tl.store(Y, tl.load(X + 128))\n"
    buffers = {"X": normal(1, 64), "Y": torch.zeros(1)}
    reply, _ = interpreter.run(source, buffers)
    assert reply["status"] == "ok"  # X + 512 bytes is Y, which this launch was given
    reply, _ = interpreter.run(source.replace("(X, Y)", "(X)").replace("Y,", "X,"), {"X": normal(1, 64)})
    assert reply["status"] == "violation" and reply["details"]["distance"] == 256


def test_an_address_made_from_a_number_is_checked(interpreter):
    source = "@triton.jit\ndef kernel(N):\n    tl.load(N.to(tl.pointer_type(tl.float32)))\n"
    reply, _ = interpreter.run(source, {}, scalars={"N": ("i64", 4096)})
    assert reply["status"] == "violation" and reply["details"]["parameter"] == "no parameter"


def test_writing_a_read_only_buffer(interpreter):
    _, reply, _ = copy(interpreter, ", mask=i < N", ", mask=i < N", read_only=("Y",))
    assert reply["status"] == "violation" and reply["details"]["fault"] == "read_only"


def test_atomics_write(interpreter):
    reply, _ = interpreter.run(
        ATOMIC.replace("{lane}", "i * 0").replace("{extra}", ""),
        {"X": torch.ones(64), "Y": torch.zeros(1)},
        read_only=("Y",),
    )
    assert reply["status"] == "violation" and reply["details"]["access"] == "write"


def test_prefetch_may_read_but_not_write(interpreter):
    _, reply, _ = copy(interpreter, ", mask=i < N", ", mask=i < N", role="prefetch")
    assert reply["status"] == "prefetch_writes" and reply["details"]["fault"] == "read_only"
    source = "@triton.jit\ndef kernel(X):\n    tl.load(X + tl.arange(0, 64))\n"
    reply, _ = interpreter.run(source, {"X": normal(1, 64)}, role="prefetch")
    assert reply["status"] == "ok"


def test_misaligned_access(interpreter):
    source = """
@triton.jit
def kernel(X, Y):
    p = (X + 1).to(tl.pointer_type(tl.float32))
    tl.store(Y, tl.load(p))
"""
    reply, _ = interpreter.run(source, {"X": torch.zeros(16, dtype=torch.uint8), "Y": torch.zeros(1)})
    assert reply["status"] == "violation" and reply["details"]["fault"] == "misaligned"
    reply, _ = interpreter.run(
        source.replace("X + 1", "X + 4"), {"X": torch.zeros(16, dtype=torch.uint8), "Y": torch.zeros(1)}
    )
    assert reply["status"] == "ok", reply


def test_an_argument_may_begin_inside_its_buffer(interpreter):
    source = "@triton.jit\ndef kernel(X, Y):\n    tl.store(Y, tl.load(X + {i}))\n"
    x = normal(1, 8)
    reply, after = interpreter.run(source.replace("{i}", "1"), {"X": x, "Y": torch.zeros(1)}, offsets={"X": 16})
    assert reply["status"] == "ok" and after["Y"].item() == x[5].item()
    reply, _ = interpreter.run(source.replace("{i}", "4"), {"X": x, "Y": torch.zeros(1)}, offsets={"X": 16})
    assert reply["status"] == "violation"


# 32-bit offsets

OFFSETS = """
@triton.jit
def kernel(Y, N, STEP: tl.constexpr):
    for k in {loop}(0, N):
        tl.store(Y + k, (k * STEP).to(tl.int64))
"""


@pytest.mark.parametrize("loop", ["range", "tl.range"])
def test_a_32_bit_overflow_of_a_loop_offset_shows(interpreter, loop):
    source = OFFSETS.replace("{loop}", loop)
    reply, after = interpreter.run(
        source, {"Y": torch.zeros(3, dtype=I64)}, scalars={"N": ("i32", 3)}, constexprs={"STEP": 1_500_000_000}
    )
    assert reply["status"] == "ok" and after["Y"].tolist() == [0, 1_500_000_000, 3_000_000_000 - 2**32]


def test_a_64_bit_bound_makes_a_64_bit_offset(interpreter):
    reply, after = interpreter.run(
        OFFSETS.replace("{loop}", "range"), {"Y": torch.zeros(3, dtype=I64)}, scalars={"N": ("i64", 3)},
        constexprs={"STEP": 1_500_000_000},
    )  # fmt: skip
    assert reply["status"] == "ok" and after["Y"].tolist() == [0, 1_500_000_000, 3_000_000_000]


def test_an_overflowing_row_offset_is_a_violation_and_its_64_bit_twin_is_not(interpreter):
    source = """
@triton.jit
def kernel(X, Y, STRIDE):
    row = tl.program_id(0){cast}
    tl.store(Y + row, tl.load(X + row * STRIDE - row * STRIDE + row), mask=row * STRIDE >= 0)
"""
    buffers = {"X": normal(1, 4), "Y": torch.zeros(4)}
    scalars = {"STRIDE": ("i32", 800_000_000)}
    _, narrow = interpreter.run(source.replace("{cast}", ""), buffers, scalars=scalars, grid=(4, 1, 1))
    _, wide = interpreter.run(source.replace("{cast}", ".to(tl.int64)"), buffers, scalars=scalars, grid=(4, 1, 1))
    assert torch.equal(wide["Y"], buffers["X"]) and narrow["Y"][3] == 0  # 2.4e9 wrapped to a negative number
    plain = "@triton.jit\ndef kernel(X, Y, S):\n    r = tl.program_id(0)\n    tl.store(Y + r, tl.load(X + r * S))\n"
    reply, _ = interpreter.run(plain, buffers, scalars={"S": ("i32", 800_000_000)}, grid=(4, 1, 1))
    assert reply["status"] == "violation"


# Program order

SHIFT = """
@triton.jit
def kernel(X, Y, N):
    i = tl.program_id(0)
    tl.store({target} + i, tl.load(X + i + 1, mask=i + 1 < N, other=0.0))
"""


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled:1"])
def test_a_race_between_programs_shows_in_every_program_order(interpreter, order):
    for target, reason in (("X", "race.between_programs"), ("Y", None)):
        source = SHIFT.replace("{target}", target)
        buffers = {"X": normal(1, 16), "Y": torch.zeros(16)}
        reply, after = interpreter.run(source, buffers, scalars={"N": ("i32", 16)}, grid=(16, 1, 1), order=order)
        assert (reply["conflict"] or {}).get("reason") == reason, reply
    assert torch.equal(after["Y"], torch.cat([buffers["X"][1:], torch.zeros(1)]))


def test_every_program_runs_once_in_any_order(interpreter):
    source = """
@triton.jit
def kernel(Y):
    at = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(Y + at, tl.load(Y + at) + 1)
"""
    for order in ("ascending", "descending", "shuffled:9"):
        reply, after = interpreter.run(source, {"Y": torch.zeros(24, dtype=I32)}, grid=(2, 3, 4), order=order)
        assert reply["launches"][0]["programs"] == 24 and (after["Y"] == 1).all()


def test_an_unknown_order_is_an_error(interpreter):
    reply, _ = interpreter.run("@triton.jit\ndef kernel(X):\n    tl.load(X)\n", {"X": normal(1, 1)}, order="sideways")
    assert reply["status"] == "error" and "sideways" in reply["message"]


# Python against the compiler


def test_and_or_not_are_elementwise_on_blocks(interpreter):
    a = torch.arange(64, dtype=I32)
    ours = interpreter.elementwise("((a > 10) and (a < 20) or not (a < 60)).to(tl.int32)", {"a": a}, I32)
    assert torch.equal(ours, (((a > 10) & (a < 20)) | ~(a < 60)).int())


def test_constants_short_circuit_as_the_compiler_does(interpreter):
    source = """
@triton.jit
def kernel(X, Y, HAS: tl.constexpr):
    if HAS and tl.load(X + 1000) > 0:
        tl.store(Y, 1.0)
"""
    buffers = {"X": normal(1, 4), "Y": torch.zeros(1)}
    assert interpreter.run(source, buffers, constexprs={"HAS": False})[0]["status"] == "ok"
    assert interpreter.run(source, buffers, constexprs={"HAS": True})[0]["status"] == "violation"


def test_run_time_conditions_do_not_short_circuit(interpreter):
    source = """
@triton.jit
def kernel(X, Y, N):
    if N > 100 and tl.load(X + N) > 0:
        tl.store(Y, 1.0)
"""
    reply, _ = interpreter.run(source, {"X": normal(1, 4), "Y": torch.zeros(1)}, scalars={"N": ("i32", 50)})
    assert reply["status"] == "violation"  # the compiled kernel loads, too


def test_builtin_min_and_max_are_elementwise(interpreter):
    a = torch.arange(64, dtype=I32)
    assert torch.equal(interpreter.elementwise("min(max(a, 10), 20)", {"a": a}, I32), a.clamp(10, 20))


def test_a_specialised_integer_is_still_an_i32(interpreter):
    source = "@triton.jit\ndef kernel(Y, S):\n    tl.store(Y, (S.to(tl.int64) + 1) * S)\n"
    reply, after = interpreter.run(source, {"Y": torch.zeros(1, dtype=I64)}, constexprs={"S": 1})
    assert reply["status"] == "ok" and after["Y"].item() == 2


def test_kernels_import_each_other(interpreter):
    helper = (
        "import triton\nimport triton.language as tl\nSCALE = tl.constexpr(3.0)\n"
        "@triton.jit\ndef scaled(x):\n    return x * SCALE\n"
    )
    source = "from .util.math import scaled\n@triton.jit\ndef kernel(X, Y):\n    tl.store(Y, scaled(tl.load(X)))\n"
    reply, after = interpreter.run(
        source, {"X": torch.tensor([2.0]), "Y": torch.zeros(1)}, files={"util/math.py": helper}
    )
    assert reply["status"] == "ok" and after["Y"].item() == 6.0


# Device functions


def test_libdevice_and_programmatic_launch(interpreter):
    x = normal(5, 128)
    source = """
from triton.language.extra import libdevice
@triton.jit
def kernel(X, Y):
    tl.extra.cuda.gdc_wait()
    i = tl.arange(0, 128)
    x = tl.load(X + i)
    tl.extra.cuda.gdc_launch_dependents()
    y = libdevice.tanh(x) + tl.extra.cuda.libdevice.exp(x) + libdevice.pow(libdevice.abs(x), 2.0)
    tl.store(Y + i, tl.where(libdevice.isnan(x) != 0, 0.0, y))
"""
    reply, after = interpreter.run(source, {"X": x, "Y": torch.zeros(128)})
    assert reply["status"] == "ok", reply
    expected = x.double().tanh() + x.double().exp() + x.double() ** 2
    assert torch.allclose(after["Y"].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "says"),
    [('tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.float32, True, 1)', "inline_asm_elementwise"),
     ("libdevice.erfcinv(x)", "erfcinv")],
)  # fmt: skip
def test_what_only_a_gpu_runs_is_unsupported(interpreter, body, says):
    source = "from triton.language.extra import libdevice\n@triton.jit\ndef kernel(X):\n    x = tl.load(X)\n"
    source += f"    tl.store(X, {body})\n"
    reply, _ = interpreter.run(source, {"X": normal(1, 1)})
    assert reply["status"] == "unsupported" and says in reply["message"]


# Errors


def test_an_error_cites_file_and_line(interpreter):
    source = (
        "@triton.jit\ndef kernel(X):\n    x = tl.load(X)\n    tl.static_assert(1 > 2, 'never')\n    tl.store(X, x)\n"
    )
    reply, _ = interpreter.run(source, {"X": normal(1, 1)})
    assert reply["status"] == "error" and reply["message"].startswith("k.py:6:") and "never" in reply["message"]


def test_a_missing_argument_is_an_error(interpreter):
    reply, _ = interpreter.run("@triton.jit\ndef kernel(X, N):\n    tl.store(X, N)\n", {"X": normal(1, 1)})
    assert reply["status"] == "error" and "N" in reply["message"]


def test_a_scalar_that_does_not_fit_its_type_is_an_error(interpreter):
    reply, _ = interpreter.run("@triton.jit\ndef kernel(X, N):\n    tl.store(X, N)\n", {"X": normal(1, 1)},
                               scalars={"N": ("i32", 2**31)})  # fmt: skip
    assert reply["status"] == "error" and "i32" in reply["message"]


def test_a_buffer_outside_the_mapping_is_an_error(interpreter):
    reply = interpreter.job(
        {
            "source": {"files": {"k.py": HEADER + "@triton.jit\ndef kernel(X):\n    tl.load(X)\n"}},
            "pack": {
                "op": "op", "workload": "w", "candidate_digest": "0", "scratch": {}, "prepared": {}, "toolchain": {},
                "kernels": {"k": {"file": "k.py", "function": "kernel", "signature": {}, "constexprs": {},
                                  "divisible_by_16": (), "options": {}}},
                "launches": [{"kernel": "k", "grid": (1, 1, 1),
                              "arguments": {"X": {"kind": "buffer", "buffer": "X", "offset": 0, "dtype": "fp32"}}}],
            },
            "buffers": {"X": {"offset": 1 << 40, "bytes": 4, "writable": True}},
            "order": "ascending",
        }
    )  # fmt: skip
    assert reply["status"] == "error" and "outside" in reply["message"]


ASSERTS = """
@triton.jit
def kernel(X, Y, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < N, other=-1.0)
    tl.device_assert(x >= 0, "no negative values", mask=i < N)
    tl.device_assert(N <= BLOCK)
    tl.store(Y + i, x, mask=i < N)
"""


@pytest.mark.parametrize(("value", "status"), [(0.0, "ok"), (-2.0, "failed_assertion")])
def test_a_kernels_own_assertion_must_hold(interpreter, value, status):
    """Lanes that the assertion's mask leaves out may hold anything, as the lanes behind N do here."""
    x = torch.ones(32)
    x[7] = value
    buffers = {"X": x, "Y": torch.zeros(32)}
    reply, _ = interpreter.run(ASSERTS, buffers, scalars={"N": ("i32", 20)}, constexprs={"BLOCK": 32})
    assert reply["status"] == status, reply
    if status != "ok":
        assert "element (7,)" in reply["message"] and "no negative values" in reply["message"]
    reply, _ = interpreter.run(ASSERTS, buffers, scalars={"N": ("i32", 5)}, constexprs={"BLOCK": 32})
    assert reply["status"] == "ok", "only the first five are looked at"


SHIFTED_BY = """
@triton.jit
def kernel(X, S, Y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(X + i) {op} tl.load(S + i))
"""


@pytest.mark.parametrize("op", ["<<", ">>"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_shift_counts_stay_below_the_width(interpreter, op, dtype):
    bits = torch.iinfo(dtype).bits
    x = torch.arange(1, 9, dtype=dtype)
    good = torch.tensor([0, 1, 2, 3, 4, 5, 6, bits - 1], dtype=dtype)
    run = lambda counts: interpreter.run(  # noqa: E731
        SHIFTED_BY.replace("{op}", op), {"X": x, "S": counts, "Y": torch.zeros(8, dtype=dtype)}, constexprs={"BLOCK": 8}
    )
    reply, after = run(good)
    assert reply["status"] == "ok", reply
    shifted = [(a << b if op == "<<" else a >> b) & (2**bits - 1) for a, b in zip(x.tolist(), good.tolist(), strict=True)]
    assert [value & (2**bits - 1) for value in after["Y"].tolist()] == shifted
    for bad in (bits, bits + 1, *((-1,) if dtype.is_signed else ())):
        counts = good.clone()
        counts[3] = bad
        reply, _ = run(counts)
        assert reply["status"] == "undefined_shift" and f"{bits} bits by {bad} at element (3,)" in reply["message"], reply
