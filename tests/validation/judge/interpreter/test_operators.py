"""Each operator of the corrected interpreter, bit for bit against torch, and that the stock one fails.

torch's CPU bf16 operators compute in float32 and round once: an independent implementation of the same rule.
"""

import math
from importlib.metadata import version

import pytest
import torch

BF16, F16, F32, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int32
COUNT = 1 << 16


def every_bf16(shuffle: int | None = None) -> torch.Tensor:
    order = (
        torch.arange(COUNT)
        if shuffle is None
        else torch.randperm(COUNT, generator=torch.Generator().manual_seed(shuffle))
    )
    return order.to(torch.int32).sub(32768).to(torch.int16).view(BF16)


def moderate(seed: int, dtype=BF16, count=COUNT) -> torch.Tensor:
    return (torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Bit patterns with every NaN made the same."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    nan = tensor.float().isnan() if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)
    return torch.where(nan, torch.full_like(tensor.view(kind), 77), tensor.view(kind))


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    wrong = bits(ours) != bits(theirs)
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()}: {ours[wrong][:4]} instead of {theirs[wrong][:4]}"


# name, expression, torch's value, output type
BINARY = [
    ("add", "a + b", lambda a, b: a + b, BF16),
    ("sub", "a - b", lambda a, b: a - b, BF16),
    ("mul", "a * b", lambda a, b: a * b, BF16),
    ("div", "(a / b).to(tl.bfloat16)", lambda a, b: (a.float() / b.float()).bfloat16(), BF16),
    ("mul_constant", "a * 2.5 + 0.1", lambda a, b: a * 2.5 + torch.tensor(0.1, dtype=BF16), BF16),
    ("neg", "-a", lambda a, b: -a, BF16),
    ("lt", "(a < b).to(tl.int32)", lambda a, b: (a < b).int(), I32),
    ("ge", "(a >= b).to(tl.int32)", lambda a, b: (a >= b).int(), I32),
    ("eq", "(a == b).to(tl.int32)", lambda a, b: (a == b).int(), I32),
    ("ne", "(a != b).to(tl.int32)", lambda a, b: (a != b).int(), I32),
    ("two_comparisons", "((a < b) & (b < 1.0)).to(tl.int32)", lambda a, b: ((a < b) & (b < 1)).int(), I32),
    ("where", "tl.where(a > b, a, b)", lambda a, b: torch.where(a > b, a, b), BF16),
    ("abs", "tl.abs(a)", lambda a, b: a.abs(), BF16),
    ("sqrt", "tl.sqrt(a.to(tl.float32)).to(tl.bfloat16)", lambda a, b: a.float().sqrt().bfloat16(), BF16),
    ("to_float32", "a.to(tl.float32)", lambda a, b: a.float(), F32),
    ("to_float16", "a.to(tl.float16)", lambda a, b: a.half(), F16),
    ("through_float32", "(a.to(tl.float32) * b.to(tl.float32)).to(tl.bfloat16)",
     lambda a, b: (a.float() * b.float()).bfloat16(), BF16),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "expected", "dtype"), [c[1:] for c in BINARY], ids=[c[0] for c in BINARY])
def test_bf16_operator_on_every_pattern(interpreter, expression, expected, dtype):
    a, b = every_bf16(), every_bf16(shuffle=5)
    assert_same(interpreter.elementwise(expression, {"a": a, "b": b}, dtype), expected(a, b))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extrema_ignore_nan_and_order_numbers(interpreter, name):
    a, b = every_bf16(), every_bf16(shuffle=6)
    expected = torch.where(a.isnan(), b, torch.where(b.isnan(), a, getattr(torch, name)(a, b)))
    ours = interpreter.elementwise(f"tl.{name}(a, b)", {"a": a, "b": b}, BF16)
    zero = (a == 0) & (b == 0)  # the sign of max(-0, 0) is left open
    assert_same(ours[~zero], expected[~zero])


def test_clamp(interpreter):
    a = every_bf16()
    ours = interpreter.elementwise("tl.clamp(a, -1.5, 2.0)", {"a": a}, BF16)
    number = ~a.isnan()
    assert_same(ours[number], a.clamp(-1.5, 2.0)[number])


@pytest.mark.parametrize(("name", "reference"), [("exp", torch.exp), ("log", torch.log), ("sin", torch.sin),
                                                 ("exp2", torch.exp2), ("rsqrt", torch.rsqrt), ("erf", torch.erf),
                                                 ("sigmoid", torch.sigmoid)])  # fmt: skip
def test_float32_functions_within_two_ulp_of_float64(interpreter, name, reference):
    x = moderate(3, F32).abs() + 0.01
    ours = interpreter.elementwise(f"tl.{name}(a)", {"a": x}, F32).double()
    expected = reference(x.double())
    assert ((ours - expected).abs() <= 2.5e-7 * expected.abs().clamp_min(0.25)).all()


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_fma_rounds_once(interpreter, dtype):
    a, b, c = (moderate(seed, dtype, 1 << 14) for seed in (1, 2, 3))
    c[: 1 << 13] = -(a * b)[: 1 << 13]  # only the rounding error of the product is left
    ours = interpreter.elementwise("tl.fma(a, b, c)", {"a": a, "b": b, "c": c}, dtype)
    exact = a.double() * b.double() + c.double()  # products of 24-bit significands are exact in float64
    assert_same(ours[: 1 << 13], exact[: 1 << 13].to(dtype))
    assert (ours.double() - exact).abs().max() <= 2.0 ** {BF16: -9, F16: -12, F32: -24}[dtype] * exact.abs().max() * 2


@pytest.mark.parametrize("kind", [torch.int8, torch.int32, torch.int64])
def test_integers_to_bf16_and_back(interpreter, kind):
    limit = 127 if kind is torch.int8 else 1 << 30
    values = torch.randint(-limit, limit, (4096,), generator=torch.Generator().manual_seed(4)).to(kind)
    assert_same(interpreter.elementwise("a.to(tl.bfloat16)", {"a": values}, BF16), values.to(BF16))
    back = moderate(9, BF16, 4096) * 30
    name = {torch.int8: "int8", torch.int32: "int32", torch.int64: "int64"}[kind]
    assert_same(
        interpreter.elementwise(f"a.to(tl.{name})", {"a": back.clamp(-120, 120)}, kind), back.clamp(-120, 120).to(kind)
    )


def test_float_to_int_saturates_as_the_gpu_does(interpreter):
    values = torch.tensor([3e9, -3e9, math.inf, -math.inf, math.nan, 2.0**31, -(2.0**31), -1.9] * 128)
    ours = interpreter.elementwise("a.to(tl.int32)", {"a": values}, I32)[:8]
    top, bottom = 2**31 - 1, -(2**31)
    assert ours.tolist() == [top, bottom, top, bottom, 0, top, bottom, -1]


def test_fp8_conversions(interpreter):
    codes = torch.arange(256, dtype=torch.uint8).repeat(4)
    for name, dtype in (("float8e4nv", torch.float8_e4m3fn), ("float8e5", torch.float8_e5m2)):
        ours = interpreter.elementwise(f"a.to(tl.{name}, bitcast=True).to(tl.float32)", {"a": codes}, F32)
        assert_same(ours, codes.view(dtype).float())
        x = moderate(8, F32) * 20
        ours = interpreter.elementwise(f"a.to(tl.{name}).to(tl.uint8, bitcast=True)", {"a": x}, torch.uint8)
        assert_same(ours, x.to(dtype).view(torch.uint8))


ROWS = """
@triton.jit
def kernel(X, Y, N: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(X + row * N + tl.arange(0, N))
    {body}
"""
SCALAR = ROWS.replace("{body}", "y = {expression}\n    tl.store(Y + row, y)")
VECTOR = ROWS.replace("{body}", "y = {expression}\n    tl.store(Y + row * N + tl.arange(0, N), y)")


def rows(interpreter, template, expression, x, y):
    reply, after = interpreter.run(
        template.replace("{expression}", expression),
        {"X": x, "Y": y},
        constexprs={"N": x.shape[1]},
        grid=(x.shape[0], 1, 1),
    )
    assert reply["status"] == "ok", reply
    return after["Y"]


def halving_sum(x: torch.Tensor) -> torch.Tensor:
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = x[:, :half] + x[:, half:]  # torch rounds each sum to the type
    return x[:, 0]


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_sum_rounds_at_every_step_of_a_halving_tree(interpreter, dtype):
    x = moderate(1, dtype, 64 * 128).reshape(64, 128)
    ours = rows(interpreter, SCALAR, "tl.sum(x, 0)", x, torch.zeros(64, dtype=dtype))
    assert_same(ours, halving_sum(x))
    assert (ours != x.float().sum(1).to(dtype)).any()  # a float32 sum would hide the error


def test_float32_sum_is_accurate(interpreter):
    x = moderate(1, F32, 64 * 128).reshape(64, 128)
    ours = rows(interpreter, SCALAR, "tl.sum(x, 0)", x, torch.zeros(64))
    assert torch.allclose(ours.double(), x.double().sum(1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("name", ["max", "min"])
def test_row_extrema(interpreter, dtype, name):
    x = moderate(2, dtype, 64 * 128).reshape(64, 128)
    x[3, 5] = math.nan
    ours = rows(interpreter, SCALAR, f"tl.{name}(x, 0)", x, torch.zeros(64, dtype=dtype))
    fill = -math.inf if name == "max" else math.inf
    assert_same(ours, getattr(x.nan_to_num(fill), f"a{name}")(1))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_row_positions(interpreter, dtype, name):
    x = torch.stack([torch.randperm(128, generator=torch.Generator().manual_seed(i)) - 64 for i in range(64)]).to(dtype)
    ours = rows(interpreter, SCALAR, f"tl.{name}(x, 0)", x, torch.zeros(64, dtype=I32))
    assert_same(ours, getattr(x, name)(1).int())


def test_argmax_of_nothing_but_nan_is_an_index(interpreter):
    x = torch.full((1, 128), math.nan)
    assert 0 <= rows(interpreter, SCALAR, "tl.argmax(x, 0)", x, torch.zeros(1, dtype=I32)).item() < 128


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_sort(interpreter, dtype):
    x = moderate(5, dtype, 4 * 64).reshape(4, 64)
    assert_same(rows(interpreter, VECTOR, "tl.sort(x)", x, torch.zeros_like(x)), x.sort(1).values)


def test_cumsum_rounds_each_step(interpreter):
    x = moderate(6, BF16, 4 * 128).reshape(4, 128)
    expected = x.clone()
    for i in range(1, 128):
        expected[:, i] = expected[:, i - 1] + x[:, i]
    if version("triton").startswith("3.8"):  # whose language widens bf16 before it scans
        expected = x.double().cumsum(1).float().bfloat16()
    assert_same(rows(interpreter, VECTOR, "tl.cumsum(x, 0)", x, torch.zeros_like(x)), expected)


COMBINE = """
@triton.jit
def weighted(a, b):
    return tl.where((a > b) and (a > 0.0), a, b)
@triton.jit
def decay(ga, xa, gb, xb):
    return ga * gb, xa * gb + xb
"""


def test_reduce_with_a_combine_function(interpreter):
    x = moderate(7, F32, 8 * 128).reshape(8, 128)
    ours = rows(interpreter, COMBINE + SCALAR, "tl.reduce(x, 0, weighted)", x, torch.zeros(8))
    assert_same(ours, x.amax(1))


def test_associative_scan_of_pairs(interpreter):
    x = moderate(8, F32, 4 * 64).reshape(4, 64)
    template = COMBINE + VECTOR.replace(
        "y = {expression}", "g = tl.full([N], 0.5, tl.float32)\n    _, y = {expression}"
    )
    ours = rows(interpreter, template, "tl.associative_scan((g, x), 0, decay)", x, torch.zeros_like(x))
    expected, state = torch.zeros(4, 64, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for i in range(64):
        state = state * 0.5 + x[:, i].double()
        expected[:, i] = state
    assert torch.allclose(ours.double(), expected, rtol=1e-5, atol=1e-5)


DOT = """
@triton.jit
def kernel(A, B, Y, PRECISION: tl.constexpr):
    i = tl.arange(0, 32)
    a = tl.load(A + i[:, None] * 32 + i[None, :])
    b = tl.load(B + i[:, None] * 32 + i[None, :])
    tl.store(Y + i[:, None] * 32 + i[None, :], tl.dot(a, b, input_precision=PRECISION))
"""


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_dot_of_halves_accumulates_in_float32(interpreter, dtype):
    a, b = (moderate(s, dtype, 1024).reshape(32, 32) for s in (1, 2))
    reply, after = interpreter.run(DOT, {"A": a, "B": b, "Y": torch.zeros(32, 32)}, constexprs={"PRECISION": None})
    assert reply["status"] == "ok", reply
    expected = a.double() @ b.double()
    assert (after["Y"].double() - expected).abs().max() < 1e-4


def test_dot_of_float32_rounds_operands_to_tf32_when_asked(interpreter):
    a, b = (moderate(s, F32, 1024).reshape(32, 32) for s in (1, 2))
    errors = {}
    for precision in ("tf32", "ieee"):
        _, after = interpreter.run(DOT, {"A": a, "B": b, "Y": torch.zeros(32, 32)}, constexprs={"PRECISION": precision})
        expected = a.double() @ b.double()
        errors[precision] = float((after["Y"].double() - expected).norm() / expected.norm())
    assert errors["ieee"] < 1e-6 and 5e-5 < errors["tf32"] < 1e-3


def test_dot_scaled_keeps_the_range_of_bf16(interpreter):
    source = """
@triton.jit
def kernel(A, B, S, Y):
    m = tl.arange(0, 16)
    k = tl.arange(0, 64)
    a = tl.load(A + m[:, None] * 64 + k[None, :])
    b = tl.load(B + tl.arange(0, 32)[:, None] * 16 + m[None, :])
    s = tl.load(S + m[:, None] * 2 + tl.arange(0, 2)[None, :])
    tl.store(Y + m[:, None] * 16 + m[None, :], tl.dot_scaled(a, None, "bf16", b, s, "e2m1"))
"""
    a = (moderate(1, F32, 1024) * 1e6).bfloat16().reshape(16, 64)  # fp16 ends at 65504
    b = torch.randint(0, 256, (32, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    s = torch.randint(120, 134, (16, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    reply, after = interpreter.run(source, {"A": a, "B": b, "S": s, "Y": torch.zeros(16, 16)})
    assert reply["status"] == "ok", reply
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    values = torch.stack([table[(b & 15).long()], table[(b >> 4).long()]], 1).reshape(64, 16)
    scale = torch.exp2(s.double() - 127).repeat_interleave(32, 1).T
    expected = a.double() @ (values * scale)
    assert (after["Y"].double() - expected).abs().max() < 1e-5 * expected.abs().max()


FAULTS = ["add", "mul", "sub", "neg", "mul_constant", "lt", "where", "to_float32", "through_float32"]


@pytest.mark.parametrize("name", FAULTS)
def test_the_stock_interpreter_fails_the_same_test(stock_interpreter, name):
    _, expression, expected, dtype = next(case for case in BINARY if case[0] == name)
    a, b = every_bf16(), every_bf16(shuffle=5)
    try:
        ours = stock_interpreter.elementwise(expression, {"a": a, "b": b}, dtype)
    except AssertionError as crash:
        assert "AttributeError" in str(crash)  # 3.8 has no bf16 constants
        return
    assert (bits(ours) != bits(expected(a, b))).any()


STOCK_ROWS = {
    "sum": ("tl.sum(x, 0)", halving_sum, BF16),
    "fma": (
        "tl.sum(tl.fma(x, x, x).to(tl.float32), 0)",
        lambda x: (x.double() ** 2 + x).bfloat16().float().sum(1),
        F32,
    ),
    "from_int": ("tl.sum(tl.arange(0, N).to(tl.bfloat16).to(tl.float32), 0)", lambda x: torch.full((4,), 8128.0), F32),
}


@pytest.mark.parametrize(("expression", "expected", "dtype"), STOCK_ROWS.values(), ids=STOCK_ROWS.keys())
def test_the_stock_interpreter_fails_on_rows_too(interpreter, stock_interpreter, expression, expected, dtype):
    x = moderate(2, BF16, 4 * 128).reshape(4, 128)
    ours = rows(interpreter, SCALAR, expression, x, torch.zeros(4, dtype=dtype))
    assert torch.allclose(ours.double(), expected(x).double(), rtol=1e-6, atol=1e-4)
    source = SCALAR.replace("{expression}", expression)
    reply, after = stock_interpreter.run(
        source, {"X": x, "Y": torch.zeros(4, dtype=dtype)}, constexprs={"N": 128}, grid=(4, 1, 1)
    )
    assert reply["status"] == "crash" or not torch.allclose(after["Y"].double(), expected(x).double(), rtol=1e-2)


SHAPES = """
@triton.jit
def kernel(A, B, Y, Z):
    i = tl.arange(0, 32)
    at = i[:, None] * 32 + i[None, :]
    s = tl.load(A + 5)
    row = tl.load(A + i)
    column = tl.load(B + i * 32)[:, None]
    block = tl.load(B + at)
    tl.store(Y + at, {expression})
    tl.store(Z + at, ({expression} > s).to(tl.int32) + (row[None, :] != block).to(tl.int32))
"""


@pytest.mark.parametrize("dtype", [F32, I32])
@pytest.mark.parametrize(
    "expression",
    ["block + block", "block * s", "s - block", "column * row", "row[None, :] + column", "3 - block", "block * 7",
     "(column - s) + block * row"],
)  # fmt: skip
def test_short_cuts_broadcast_as_torch_does(interpreter, dtype, expression):
    a, b = (moderate(seed, F32, 1024).mul(100).to(dtype).reshape(32, 32) for seed in (1, 2))
    buffers = {"A": a, "B": b, "Y": torch.zeros(32, 32, dtype=dtype), "Z": torch.zeros(32, 32, dtype=I32)}
    reply, after = interpreter.run(SHAPES.replace("{expression}", expression), buffers)
    assert reply["status"] == "ok", reply
    values = {"s": a[0, 5], "row": a[0], "column": b[:, :1], "block": b}
    expected = eval(expression, {}, values)
    assert_same(after["Y"], expected.expand(32, 32).contiguous())
    assert torch.equal(after["Z"], (expected > a[0, 5]).int() + (a[:1] != b).int())


def test_float32_division_is_correctly_rounded(interpreter):
    a, b = moderate(1, F32), moderate(2, F32)
    assert_same(interpreter.elementwise("a / b", {"a": a, "b": b}, F32), a / b)


def test_int32_wraps(interpreter):
    a = torch.full((1024,), 2**31 - 1, dtype=I32)
    assert interpreter.elementwise("a + a * 3", {"a": a}, I32)[0].item() == -4
