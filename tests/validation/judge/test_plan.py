"""The plan's rules: an honest pack passes; each broken rule is refused under its own reason; garbage never crashes."""

import copy
import json

import pytest
from fasttrack_validation.contracts.base import TensorSpec
from fasttrack_validation.judge.pack import KernelPack
from fasttrack_validation.judge.plan import MAX_LAUNCHES, MAX_PROBLEMS, addressed_to, source_functions, validate
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

SPECS = (
    # 4 rows of 64 at a stride of 96: the last element addressed is number 3 * 96 + 63, so 352 elements.
    TensorSpec(name="x", dtype="fp32", role="input", shape=(4, 64), strides=(96, 1)),
    TensorSpec(name="w", dtype="u8", role="static", shape=(64,), strides=(1,)),
    TensorSpec(name="h", dtype="bf16", role="input", shape=(64,), strides=(1,)),
    TensorSpec(name="o", dtype="fp32", role="output", shape=(256,), strides=(1,)),
)
X_BYTES = 352 * 4
FUNCTIONS = {"k.py": {"gemv": ("x", "w", "o", "n", "scale", "last", "BLOCK"), "touch": ("w", "BLOCK")}}
OPTIONS = {
    "num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None,
    "enable_fp_fusion": True, "launch_pdl": False, "launch_cooperative_grid": False,
}  # fmt: skip


def pointer(buffer, dtype, offset=0):
    return {"kind": "buffer", "buffer": buffer, "offset": offset, "dtype": dtype}


def scalar(kind, value):
    return {"kind": "scalar", "type": kind, "value": value}


HONEST = {
    "op": "op",
    "workload": "b4",
    "candidate_digest": "0" * 64,
    "kernels": {
        "gemv_1": {
            "file": "k.py", "function": "gemv",
            "signature": {
                "x": "*fp32", "w": "*i32", "o": "*fp32", "n": "i32", "scale": "fp32", "last": "u1",
                "BLOCK": "constexpr",
            },
            "constexprs": {"BLOCK": 64}, "divisible_by_16": ["x", "o", "n"], "options": OPTIONS,
        },
        "touch_1": {
            "file": "k.py", "function": "touch", "signature": {"w": "*u8", "BLOCK": "constexpr"},
            "constexprs": {"BLOCK": 64}, "divisible_by_16": ["w"], "options": OPTIONS,
        },
    },
    "launches": [
        {"kernel": "touch_1", "grid": [1, 1, 1], "arguments": {"w": pointer("packed", "u8")}, "stream": "side",
         "role": "prefetch"},
        {"kernel": "gemv_1", "grid": [4, 1, 1], "stream": "main", "waits": ["side"],
         "arguments": {
             "x": pointer("x", "fp32", 384), "w": pointer("w", "i32", 4), "o": pointer("part", "fp32", 16),
             "n": scalar("i32", 64), "scale": scalar("fp32", 0.5), "last": scalar("u1", True),
         }},
    ],
    "scratch": {"part": {"shape": [4, 64], "dtype": "fp32"}},
    "prepared": {"packed": {"shape": [64], "dtype": "u8"}},
    "toolchain": {"triton": "3.9.0"},
}  # fmt: skip


def broken(path, value):
    """HONEST with the leaf at `path` replaced (or added); a value of ... removes it."""
    pack = copy.deepcopy(HONEST)
    place = pack
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return pack


def problems(pack):
    return validate(KernelPack.model_validate(pack), SPECS, FUNCTIONS)


def test_the_honest_pack_is_valid():
    assert problems(HONEST) == ()


GEMV, TOUCH = ("kernels", "gemv_1"), ("kernels", "touch_1")
LAUNCH = ("launches", 1)
ARGUMENTS = (*LAUNCH, "arguments")

BROKEN = {
    "no such buffer": ("unknown_buffer", (*ARGUMENTS, "x", "buffer"), "y"),
    "offset at the end": ("offset", (*ARGUMENTS, "x", "offset"), X_BYTES),
    "offset in the last element, then over": ("offset", (*ARGUMENTS, "w", "offset"), 64),
    "offset beyond 64 bits": ("offset", (*ARGUMENTS, "x", "offset"), 1 << 200),
    "offset between elements": ("misaligned", (*ARGUMENTS, "w", "offset"), 2),
    "claim false for an offset": ("divisibility", (*ARGUMENTS, "x", "offset"), 8),
    "claim false for a scalar": ("divisibility", (*ARGUMENTS, "n", "value"), 63),
    "claim on a float": ("divisibility", (*GEMV, "divisible_by_16"), ["scale"]),
    "claim on a constant": ("divisibility", (*GEMV, "divisible_by_16"), ["BLOCK"]),
    "claim on nothing": ("divisibility", (*GEMV, "divisible_by_16"), ["nobody"]),
    "float read as another float": ("reinterpretation", (*ARGUMENTS, "x", "buffer"), "h"),
    "pointee differs from the kernel": ("argument_type", (*ARGUMENTS, "x", "dtype"), "i32"),
    "scalar for a pointer": ("argument_type", (*ARGUMENTS, "x"), scalar("i64", 4096)),
    "pointer for a scalar": ("argument_type", (*ARGUMENTS, "n"), pointer("x", "fp32")),
    "scalar of another type": ("argument_type", (*ARGUMENTS, "n", "type"), "i64"),
    "i32 above its range": ("scalar", (*ARGUMENTS, "n", "value"), 2**31),
    "i32 below its range": ("scalar", (*ARGUMENTS, "n", "value"), -(2**31) - 1),
    "bool as an integer": ("scalar", (*ARGUMENTS, "n", "value"), True),
    "integer as a bool": ("scalar", (*ARGUMENTS, "last", "value"), 1),
    "integer as a float": ("scalar", (*ARGUMENTS, "scale", "value"), 1),
    "fp32 above its range": ("scalar", (*ARGUMENTS, "scale", "value"), 3.5e38),
    "infinite scalar": ("scalar", (*ARGUMENTS, "scale", "value"), float("inf")),
    "scalar that is no number": ("scalar", (*ARGUMENTS, "scale", "value"), float("nan")),
    "argument left out": ("arguments", (*ARGUMENTS, "last"), ...),
    "argument too many": ("arguments", (*ARGUMENTS, "BLOCK"), scalar("i32", 64)),
    "constant of no parameter": ("constexpr", (*GEMV, "constexprs", "TILE"), 1),
    "constant left out": ("constexpr", (*GEMV, "constexprs", "BLOCK"), ...),
    "infinite constant": ("constexpr", (*GEMV, "constexprs", "BLOCK"), float("inf")),
    "huge constant": ("constexpr", (*GEMV, "constexprs", "BLOCK"), 1 << 64),
    "long constant": ("constexpr", (*GEMV, "constexprs", "BLOCK"), "x" * 257),
    "empty grid": ("grid", (*LAUNCH, "grid"), [0, 1, 1]),
    "negative grid": ("grid", (*LAUNCH, "grid"), [4, -1, 1]),
    "x too large": ("grid", (*LAUNCH, "grid"), [2**31, 1, 1]),
    "y too large": ("grid", (*LAUNCH, "grid"), [1, 65536, 1]),
    "z too large": ("grid", (*LAUNCH, "grid"), [1, 1, 65536]),
    "three warps": ("option", (*GEMV, "options", "num_warps"), 3),
    "64 warps": ("option", (*GEMV, "options", "num_warps"), 64),
    "warps as a bool": ("option", (*GEMV, "options", "num_warps"), True),
    "warps as a float": ("option", (*GEMV, "options", "num_warps"), 4.0),
    "no stages": ("option", (*GEMV, "options", "num_stages"), 0),
    "32 blocks in a cluster": ("option", (*GEMV, "options", "num_ctas"), 32),
    "too few registers": ("option", (*GEMV, "options", "maxnreg"), 8),
    "fusion by a string": ("option", (*GEMV, "options", "enable_fp_fusion"), "yes"),
    "assembler options": ("option", (*GEMV, "options", "ptx_options"), "-O0"),
    "option left out": ("option", (*GEMV, "options", "launch_pdl"), ...),
    "no such function": ("unknown_function", (*GEMV, "function"), "other"),
    "no such file": ("unknown_function", (*GEMV, "file"), "/etc/passwd"),
    "parameters of another kernel": ("signature", (*GEMV, "signature", "extra"), "i32"),
    "unknown pointee": ("type", (*GEMV, "signature", "x"), "*fp8e4nv"),
    "unknown scalar type": ("type", (*GEMV, "signature", "n"), "i31"),
    "host descriptor": ("type", (*GEMV, "signature", "x"), "tensordesc<fp32[64]>"),
    "launch of nothing": ("unknown_kernel", (*LAUNCH, "kernel"), "gemv_2"),
    "kernel never launched": ("unused_kernel", (*LAUNCH, "kernel"), "touch_1"),
    "key that is no name": ("kernel_name", ("kernels", "a b"), HONEST["kernels"]["touch_1"]),
    "waits for the future": ("wait", ("launches", 0, "waits"), ["main"]),
    "waits for itself": ("wait", (*LAUNCH, "waits"), ["main"]),
    "stream that is no name": ("stream", (*LAUNCH, "stream"), "a b"),
    "no launches": ("launch_count", ("launches",), []),
    "too many launches": ("launch_count", ("launches",), [HONEST["launches"][0]] * (MAX_LAUNCHES + 1)),
    "scratch over a tensor": ("buffer_name", ("scratch", "x"), {"shape": [4], "dtype": "fp32"}),
    "scratch over a prepared buffer": ("buffer_name", ("scratch", "packed"), {"shape": [64], "dtype": "u8"}),
    "scratch that is no name": ("buffer_name", ("scratch", "../x"), {"shape": [4], "dtype": "fp32"}),
    "too much scratch": ("scratch_size", ("scratch", "big"), {"shape": [1 << 28, 2], "dtype": "fp32"}),
    "too much prepared": ("prepared_size", ("prepared", "big"), {"shape": [1 << 30], "dtype": "u8"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_rule_has_its_reason(name):
    reason, path, value = BROKEN[name]
    found = problems(broken(path, value))
    assert f"plan.{reason}" in {problem.reason for problem in found}, found


def test_limits_themselves_are_allowed():
    assert problems(broken((*LAUNCH, "grid"), [2**31 - 1, 65535, 65535])) == ()
    assert problems(broken((*ARGUMENTS, "n", "value"), -(2**31))) == ()
    assert problems(broken((*ARGUMENTS, "n", "value"), 2**31 - 16)) == ()
    assert problems(broken((*ARGUMENTS, "w", "offset"), 60)) == ()
    assert problems(broken((*ARGUMENTS, "x", "offset"), X_BYTES - 16)) == ()
    assert problems(broken(("scratch", "big"), {"shape": [(1 << 28) - 256], "dtype": "fp32"})) == ()


def test_clusters_count_into_the_grid():
    pack = broken((*GEMV, "options", "num_ctas"), 2)
    pack["launches"][1]["grid"] = [2**30, 1, 1]
    assert [problem.reason for problem in problems(pack)] == ["plan.grid"]


def test_messages_are_bounded_and_name_the_value():
    (problem,) = problems(broken((*ARGUMENTS, "x", "buffer"), "y" * 100_000))
    assert "yyy" in problem.message and len(problem.message) < 500
    many = broken(("launches",), [{**HONEST["launches"][1], "kernel": "nothing"}] * 100)
    assert len(problems(many)) == MAX_PROBLEMS


def test_the_answer_is_for_the_question():
    pack = KernelPack.model_validate(HONEST)
    assert addressed_to(pack, "op", "b4", "0" * 64) == ()
    assert [p.reason for p in addressed_to(pack, "op", "b8", "0" * 64)] == ["plan.identity"]
    assert len(addressed_to(pack, "other", "b8", "1" * 64)) == 3


def test_kernels_of_a_source_and_their_parameters():
    text = "import triton\n@triton.jit\ndef f(a, b, /, c, *, D):\n    pass\nX = 1\n@triton.jit\ndef g():\n    pass\n"
    assert source_functions({"k.py": text, "e.py": ""}) == {"k.py": {"f": ("a", "b", "c", "D"), "g": ()}, "e.py": {}}


def leaves(value, path=()):
    if isinstance(value, dict | list) and value:
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(child, (*path, key))
    yield path


PATHS = [path for path in leaves(HONEST) if path]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text("ab_.* 1\ud7ff", max_size=8),
    st.sampled_from(["x", "main", "*fp32", "constexpr", "u1", "fp32", "gemv_1", 2**31, -1, [], {}]),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text("ab", max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=3))
def test_a_mutated_pack_is_equal_or_refused_or_still_within_the_rules(mutations):
    pack = copy.deepcopy(HONEST)
    for path, value in mutations:
        place = pack
        try:
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    try:
        parsed = KernelPack.model_validate(pack)
    except ValidationError:
        return
    if not validate(parsed, SPECS, FUNCTIONS):
        # Accepted: then its canonical form means the same, and every pointer lies inside of a buffer of the op.
        again = KernelPack.model_validate(json.loads(parsed.canonical_json()))
        assert again == parsed and validate(again, SPECS, FUNCTIONS) == ()
        sizes = {s.name: s.storage_elements * s.dtype.bytes for s in SPECS}
        for kind in (parsed.scratch, parsed.prepared):
            for name, buffer in kind.items():
                elements = 1
                for size in buffer.shape:
                    elements *= size
                sizes[name] = elements * buffer.dtype.bytes
        for launch in parsed.launches:
            assert all(size >= 1 for size in launch.grid)
            for argument in launch.arguments.values():
                if argument.kind == "buffer":
                    assert 0 <= argument.offset < max(sizes[argument.buffer], 1)


@settings(deadline=None)
@given(st.sampled_from([path for path in PATHS if path[0] in ("kernels", "launches")]), st.integers(2**40, 2**70))
def test_no_integer_of_the_plan_may_grow_beyond_its_limit(path, huge):
    """Wherever the honest pack has an integer that bounds work or memory, a huge one is refused."""
    place = HONEST
    for step in path:
        place = place[step]
    if type(place) is not int or "constexprs" in path:
        return
    try:
        assert problems(broken(path, huge))
    except ValidationError:
        pass
