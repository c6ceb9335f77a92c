"""Intervals of registers against the numbers that they stand for, and places in PTX that compilers make."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack_validation.judge.device_code import cuda_compiler
from fasttrack_validation.judge.device_code import ptx_values as values
from fasttrack_validation.judge.device_code.ptx_code import read
from fasttrack_validation.judge.device_code.shared_places import Place, Places

COUNTS = st.integers(0, 5000)
RULES = {
    "added": (values.added, lambda a, b: a + b), "multiplied": (values.multiplied, lambda a, b: a * b),
    "anded": (values.anded, lambda a, b: a & b), "ored": (values.ored, lambda a, b: a | b),
    "xored": (values.ored, lambda a, b: a ^ b), "least": (values.least, min), "greatest": (values.greatest, max),
    "remainder": (values.remainder, lambda a, b: a % b if b else 0),
    "quotient": (values.quotient, lambda a, b: a // b if b else 0),
    "shifted right": (values.shifted_right, lambda a, b: a >> b),
    "shifted left": (values.shifted_left, lambda a, b: a << b),
}  # fmt: skip


def around(data, number):
    """An interval that holds a number; sometimes without an end."""
    low, high = number - data.draw(st.integers(0, number)), number + data.draw(COUNTS)
    return values.Value(None, low, data.draw(st.sampled_from([high, high, math.inf, number])))


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_an_interval_holds_what_comes_of_the_numbers_in_it(rule, data):
    of_intervals, of_numbers = RULES[rule]
    one = data.draw(COUNTS)
    other = data.draw(st.integers(0, 12) if "shifted" in rule else COUNTS)
    by = values.number(other) if "shifted" in rule else around(data, other)
    made, expected = of_intervals(around(data, one), by), of_numbers(one, other)
    assert made.base is None and made.low <= expected <= made.high


@given(data=st.data(), low=st.integers(-200, 200))
def test_addresses_stay_in_their_variable_and_move_by_what_is_added(data, low):
    number = data.draw(COUNTS)
    address = values.Value("memory", low, low + 16)
    moved = values.added(address, around(data, number))
    assert moved.base == "memory" and moved.low <= low + number <= moved.high
    assert values.subtracted(address, values.INDEX).low == -math.inf, "what is not bounded may lead anywhere below"
    assert values.added(address, address).base == values.ANYWHERE


KERNEL = """
.extern .shared .align 128 .b8 memory[];
.visible .entry k(.param .u64 k_param_0)
.maxntid 256, 1, 1
{
mov.u32 %r1, %tid.x;
mov.u32 %r2, memory;
BODY
ld.shared.u32 %r9, [ADDRESS];
}
"""
PLACES = {
    "a constant": ("", "memory+24", Place("memory", 24, 28)),
    "a thread's own": ("shl.b32 %r3, %r1, 2;\nadd.s32 %r4, %r2, %r3;", "%r4", Place("memory", 0, 1024)),
    "a warp's own": (
        "shr.u32 %r3, %r1, 5;\nmul.lo.s32 %r4, %r3, 512;\nadd.s32 %r5, %r2, %r4;", "%r5+8",
        Place("memory", 8, 12, per_warp=512, warps=8),
    ),
    "a ring that begins again": (
        "mov.u32 %r3, 0;\n$l:\nshl.b32 %r5, %r3, 14;\nadd.s32 %r6, %r2, %r5;\nadd.s32 %r4, %r3, 1;\n"
        "setp.eq.s32 %p1, %r4, 13;\n"
        "selp.b32 %r3, 0, %r4, %p1;\n@%p2 bra $l;", "%r6", Place("memory", 0, 12 * 16384 + 4),
    ),
    "a counter that stops": (
        "mov.u32 %r3, 0;\n$l:\nsetp.lt.u32 %p1, %r3, 13;\nselp.u32 %r4, 1, 0, %p1;\nadd.s32 %r3, %r3, %r4;\n"
        "@%p2 bra $l;\n"
        "shl.b32 %r5, %r3, 3;\nadd.s32 %r6, %r2, %r5;", "%r6", Place("memory", 0, 13 * 8 + 4),
    ),
    "n % 3": (
        "mul.hi.s32 %r3, %r20, 1431655766;\nshr.u32 %r4, %r3, 31;\nadd.s32 %r5, %r3, %r4;\nmul.lo.s32 %r6, %r5, 3;\n"
        "sub.s32 %r7, %r20, %r6;\nshl.b32 %r8, %r7, 8;\nadd.s32 %r10, %r2, %r8;", "%r10", Place("memory", 0, 516),
    ),
    "n % 2": (
        "shr.u32 %r3, %r20, 31;\nadd.s32 %r4, %r20, %r3;\nand.b32 %r5, %r4, -2;\nsub.s32 %r6, %r20, %r5;\n"
        "shl.b32 %r8, %r6, 8;\nadd.s32 %r10, %r2, %r8;", "%r10", Place("memory", 0, 260),
    ),
    "an index": ("shl.b32 %r3, %r20, 2;\nadd.s32 %r4, %r2, %r3;", "%r4+64", Place("memory", 64, math.inf)),
    "back from an address": ("shl.b32 %r3, %r20, 2;\nsub.s32 %r4, %r2, %r3;", "%r4+64", Place("memory", 0, 68)),
    "nobody knows": ("", "%r20", Place("?", 0, math.inf)),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_places(name):
    body, address, expected = PLACES[name]
    text = KERNEL.replace("BODY", body).replace("ADDRESS", address)
    code = read(text)
    (load,) = (one for one in code.instructions if one.name.startswith("ld.shared"))
    found = Places(text, code).named(load, address, 4)
    assert (found.variable, found.first, found.end, found.per_warp) == (
        expected.variable, expected.first, expected.end, expected.per_warp,
    )  # fmt: skip


@pytest.mark.parametrize("divisor", [3, 5, 6, 7, 8, 13, 48])
def test_remainders_that_the_compiler_makes(divisor):
    """Of an index into a ring of so many places. Not every unsigned quotient is a product and a shift."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    kinds = ["int"] + ["long long"] * (divisor != 8) + ["unsigned", "unsigned long long"] * (divisor < 6)
    for kind in kinds:
        body = f"extern __shared__ float s[]; x[0] = s[n % {divisor}];"
        source = f'extern "C" __global__ void k(float* x, {kind} n) {{ {body} }}'
        bits = "i64" if "long" in kind else "i32"
        variant = SimpleNamespace(
            file="k.cu", function="k", constexprs={}, signature={"p0": "*fp32", "p1": bits}, ordered=("p0", "p1"),
            options={"threads": 32, "cluster": 1},
        )  # fmt: skip
        text = cuda_compiler.compile_kernel({"k.cu": source}, variant, 90).ptx
        code = read(text)
        (load,) = (one for one in code.instructions if one.name.startswith("ld.shared"))
        found = Places(text, code).named(load, load.operands.partition("[")[2].rstrip("]"), 4)
        assert (found.first, found.end) == (0, 4 * divisor), (kind, text)


def test_places_that_meet():
    low, high = Place("memory", 0, 64), Place("memory", 64, 128)
    assert not low.meets(high, True) and low.meets(Place("memory", 63, 65), False)
    assert not low.meets(Place("other", 0, 64), True) and low.meets(Place("?", 0, math.inf), False)
    own, next_part = Place("memory", 0, 64, 128, 4), Place("memory", 64, 128, 128, 4)
    assert own.meets(own, False) and not own.meets(next_part, False)
    assert not own.meets(own, True) and not own.meets(next_part, True), "another warp's begins where this one's ends"
    assert Place("memory", 0, 256, 128, 4).meets(own, True), "longer than what lies between two warps"
    assert own.meets(Place("memory", 384, 400), True) and not own.meets(Place("memory", 512, 600), True)
