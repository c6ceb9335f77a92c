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
FUNCTIONS = {
    "k.py": {
        "gemv": ("x", "w", "o", "n", "scale", "last", "BLOCK"), "touch": ("w", "BLOCK"),
        "tiles": ("x", "pair", "table", "T", "SHAPE"),
    },
    "k.cu": {},
}  # fmt: skip
OPTIONS = {
    "num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None,
    "enable_fp_fusion": True, "launch_pdl": False, "launch_cooperative_grid": False,
}  # fmt: skip


CUDA_OPTIONS = {
    "threads": 256, "max_registers": None, "cluster": 2, "launch_pdl": True, "launch_cooperative_grid": False,
}  # fmt: skip


def pointer(buffer, dtype, offset=0):
    return {"kind": "buffer", "buffer": buffer, "offset": offset, "dtype": dtype}


def scalar(kind, value):
    return {"kind": "scalar", "type": kind, "value": value}


def tensor_map(**changes):
    """The rows of x: 4 of 64 at a stride of 96, in boxes of 16 rows."""
    return {
        "kind": "tensor_map", "buffer": "x", "offset": 0, "dtype": "fp32", "shape": [4, 64], "strides": [96, 1],
        "block_shape": [16, 64], "swizzle": 0, **changes,
    }  # fmt: skip


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
        "tiles_1": {
            "file": "k.py", "function": "tiles",
            "signature": {
                "x": "tensordesc<fp32[16, 64]>", "pair.0": "*fp32", "pair.1": "constexpr", "table": "*i64",
                "T": "constexpr", "SHAPE": "constexpr",
            },
            "constexprs": {"T": {"dtype": "bfloat16"}, "SHAPE": [16, 64], "pair.1": 3},
            "divisible_by_16": ["pair.0"], "options": OPTIONS,
        },
        "reduce_1": {
            "language": "cuda", "file": "k.cu", "function": "reduce_rows",
            "signature": {"p0": "tensor_map", "p1": "*fp32", "p2": "i32", "p3": "fp32", "p4": "peers", "p5": "*i32"},
            "constexprs": {"TILE": 64, "T": "__nv_bfloat16"}, "divisible_by_16": [], "options": CUDA_OPTIONS,
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
        {"kernel": "tiles_1", "grid": [1, 2, 1],
         "arguments": {
             "x": tensor_map(swizzle=None), "pair.0": pointer("o", "fp32"),
             "table": {"kind": "peers", "buffers": [pointer("o", "fp32"), pointer("part", "fp32", 512)]},
         }},
        {"kernel": "reduce_1", "grid": [6, 1, 1], "shared_bytes": 232448,
         "arguments": {
             "p0": tensor_map(), "p1": pointer("o", "fp32"), "p2": scalar("i32", 4), "p3": scalar("fp32", 1.0),
             "p4": {"kind": "peers", "buffers": [pointer("o", "fp32"), pointer("part", "fp32", 512)]},
             "p5": pointer("flags", "i32", 8),
         }},
    ],
    "scratch": {"part": {"shape": [4, 64], "dtype": "fp32"}},
    "persistent": {"flags": {"shape": [8], "dtype": "i32", "initial": 255, "after": "restored"}},
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
    "unknown pointee": ("type", (*GEMV, "signature", "x"), "*fp8e4b15"),
    "unknown scalar type": ("type", (*GEMV, "signature", "n"), "i31"),
    "pointer for a descriptor": ("argument_type", (*GEMV, "signature", "x"), "tensordesc<fp32[64]>"),
    "descriptor of an unknown type": ("type", (*GEMV, "signature", "x"), "tensordesc<fp8e4b15[64]>"),
    "descriptor of six axes": ("type", (*GEMV, "signature", "x"), "tensordesc<fp32[1,1,1,1,1,64]>"),
    "descriptor by convolution": ("type", (*GEMV, "signature", "x"), "tensordesc_im2col<fp32[64]>"),
    "table for a kernel in Triton": ("type", (*GEMV, "signature", "x"), "peers"),
    "map for a kernel in Triton": ("type", (*GEMV, "signature", "x"), "tensor_map"),
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
    "persistent over a tensor": ("buffer_name", ("persistent", "x"), {"shape": [4], "dtype": "fp32"}),
    "persistent over scratch": ("buffer_name", ("persistent", "part"), {"shape": [4], "dtype": "fp32"}),
    "too much that persists": ("persistent_size", ("persistent", "big"), {"shape": [1 << 26], "dtype": "u8"}),
    "blocks of all launches": ("blocks", (*LAUNCH, "grid"), [1 << 20, 1, 1]),
    "too much prepared": ("prepared_size", ("prepared", "big"), {"shape": [1 << 30], "dtype": "u8"}),
}

TILES, REDUCE = ("kernels", "tiles_1"), ("kernels", "reduce_1")
TILED, REDUCED = ("launches", 2), ("launches", 3)
MAP, TABLE = (*REDUCED, "arguments", "p0"), (*REDUCED, "arguments", "p4")
BROKEN |= {
    "tuple without its first part": ("signature", (*TILES, "signature", "pair.0"), ...),
    "tuple with a gap": ("signature", (*TILES, "signature", "pair.3"), "i32"),
    "tuple and no tuple": ("signature", (*TILES, "signature", "pair"), "i32"),
    "part of no parameter": ("signature", (*TILES, "signature", "other.0"), "i32"),
    "part by another spelling": ("signature", (*TILES, "signature", "pair.00"), "i32"),
    "constant of no type": ("constexpr", (*TILES, "constexprs", "T"), {"dtype": "numpy"}),
    "tuple with a huge constant": ("constexpr", (*TILES, "constexprs", "SHAPE"), [1, 1 << 64]),
    "table of nothing": ("peers", (*TABLE, "buffers"), []),
    "table of a world": ("peers", (*TABLE, "buffers"), [pointer("o", "fp32")] * 73),
    "table of several types": ("peers", (*TABLE, "buffers"), [pointer("o", "fp32"), pointer("o", "i32")]),
    "table to no buffer": ("unknown_buffer", (*TABLE, "buffers", 1, "buffer"), "y"),
    "table past a buffer": ("offset", (*TABLE, "buffers", 1, "offset"), 1024),
    "table between elements": ("misaligned", (*TABLE, "buffers", 1, "offset"), 510),
    "table with other floats": ("reinterpretation", (*TABLE, "buffers"), [pointer("o", "bf16")]),
    "table for a pointer": ("argument_type", (*REDUCE, "signature", "p4"), "*fp32"),
    "pointer for a table": ("argument_type", TABLE, pointer("o", "fp32")),
    "table for a descriptor": ("argument_type", (*TILED, "arguments", "x"), HONEST["launches"][3]["arguments"]["p4"]),
    "descriptor of another box": ("argument_type", (*TILED, "arguments", "x", "block_shape"), [8, 64]),
    "descriptor of another type": ("argument_type", (*TILED, "arguments", "x", "dtype"), "i32"),
    "descriptor with a swizzle of its own": ("tensor_map", (*TILED, "arguments", "x", "swizzle"), 128),
    "map for a pointer": ("argument_type", (*REDUCE, "signature", "p0"), "*fp32"),
    "map to no buffer": ("unknown_buffer", (*MAP, "buffer"), "y"),
    "map past its buffer": ("offset", (*MAP, "shape"), [5, 64]),
    "map past its buffer by an offset": ("offset", (*MAP, "offset"), 16),
    "map over other floats": ("reinterpretation", (*MAP, "buffer"), "h"),
    "map without a swizzle": ("tensor_map", (*MAP, "swizzle"), None),
    "map at eight bytes": ("tensor_map", (*MAP, "offset"), 8),
    "map of nothing": ("tensor_map", (*MAP, "shape"), []),
    "map of other axes": ("tensor_map", (*MAP, "shape"), [4, 8, 8]),
    "map of no rows": ("tensor_map", (*MAP, "shape"), [0, 64]),
    "map of too many rows": ("tensor_map", (*MAP, "shape"), [2**32 + 1, 64]),
    "map of spread elements": ("tensor_map", (*MAP, "strides"), [96, 2]),
    "map of unaligned rows": ("tensor_map", (*MAP, "strides"), [66, 1]),
    "map that runs backwards": ("tensor_map", (*MAP, "strides"), [-96, 1]),
    "map of far rows": ("tensor_map", (*MAP, "strides"), [2**38, 1]),
    "box of no rows": ("tensor_map", (*MAP, "block_shape"), [0, 64]),
    "box of too many rows": ("tensor_map", (*MAP, "block_shape"), [257, 64]),
    "box beyond shared memory": ("tensor_map", (*MAP, "block_shape"), [256, 256]),
    "box of half rows": ("tensor_map", (*MAP, "block_shape"), [16, 2]),
    "box wider than its swizzle": ("tensor_map", (*MAP, "swizzle"), 128),
    "integers padded with NaN": ("tensor_map", MAP, tensor_map(dtype="i32", padding="nan")),
    "integers rounded to tf32": ("tensor_map", MAP, tensor_map(dtype="i32", round_to_tf32=True)),
    "CUDA in a Python file": ("unknown_function", (*REDUCE, "file"), "k.py"),
    "CUDA in no file": ("unknown_function", (*REDUCE, "file"), "other.cu"),
    "kernel by an expression": ("unknown_function", (*REDUCE, "function"), "f<int>"),
    "Triton in a CUDA file": ("unknown_function", (*REDUCE, "language"), "triton"),
    "parameters by name": ("signature", (*REDUCE, "signature", "x"), "i32"),
    "parameters with a gap": ("signature", (*REDUCE, "signature", "p1"), ...),
    "constant among parameters": ("type", (*REDUCE, "signature", "p2"), "constexpr"),
    "half by value": ("type", (*REDUCE, "signature", "p3"), "fp16"),
    "descriptor for CUDA": ("type", (*REDUCE, "signature", "p0"), "tensordesc<fp32[16, 64]>"),
    "constant pointer for CUDA": ("type", (*REDUCE, "signature", "p1"), "*kfp32"),
    "macro with code": ("constexpr", (*REDUCE, "constexprs", "TILE"), "64; asm(\"trap;\")"),
    "macro over lines": ("constexpr", (*REDUCE, "constexprs", "TILE"), "1\n#include <x>"),
    "macro with an option": ("constexpr", (*REDUCE, "constexprs", "A=1 -I/"), 1),
    "macro of nothing": ("constexpr", (*REDUCE, "constexprs", "TILE"), None),
    "macro of numbers": ("constexpr", (*REDUCE, "constexprs", "TILE"), [1, 2]),
    "infinite macro": ("constexpr", (*REDUCE, "constexprs", "TILE"), float("inf")),
    "specialised CUDA": ("divisibility", (*REDUCE, "divisible_by_16"), ["p1"]),
    "half a warp": ("option", (*REDUCE, "options", "threads"), 48),
    "too many threads": ("option", (*REDUCE, "options", "threads"), 1056),
    "no threads": ("option", (*REDUCE, "options", "threads"), 0),
    "large cluster": ("option", (*REDUCE, "options", "cluster"), 17),
    "register limit of a bool": ("option", (*REDUCE, "options", "max_registers"), True),
    "warps of CUDA": ("option", (*REDUCE, "options", "num_warps"), 8),
    "threads of Triton": ("option", (*GEMV, "options", "threads"), 128),
    "broken cluster": ("cluster", (*REDUCED, "grid"), [5, 1, 1]),
    "more shared memory than there is": ("shared_memory", (*REDUCED, "shared_bytes"), 232449),
    "negative shared memory": ("shared_memory", (*REDUCED, "shared_bytes"), -1),
    "shared memory of Triton": ("shared_memory", (*LAUNCH, "shared_bytes"), 1024),
}  # fmt: skip

# What a record cannot even hold.
MALFORMED = {
    "language": ((*REDUCE, "language"), "ptx"),
    "kind of argument": ((*MAP, "kind"), "address"),
    "swizzle": ((*MAP, "swizzle"), 16),
    "padding": ((*MAP, "padding"), "one"),
    "interleave": ((*MAP, "interleave"), 16),
    "offset of a map": ((*MAP, "offset"), -16),
    "size of a map": ((*MAP, "shape"), [4.5, 64]),
    "entry of a table": ((*TABLE, "buffers"), [scalar("i64", 4096)]),
    "nested tuple": ((*TILES, "constexprs", "SHAPE"), [[1], 2]),
    "initial value": (("persistent", "flags", "initial"), 256),
    "initial value by a bool": (("persistent", "flags", "initial"), True),
    "what is left after a step": (("persistent", "flags", "after"), "whatever"),
    "size of what persists": (("persistent", "flags", "shape"), [0]),
    "shared memory by a float": ((*REDUCED, "shared_bytes"), 1.5),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_no_record_holds_is_malformed(name):
    with pytest.raises(ValidationError):
        KernelPack.model_validate(broken(*MALFORMED[name]))


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_rule_has_its_reason(name):
    reason, path, value = BROKEN[name]
    found = problems(broken(path, value))
    assert f"plan.{reason}" in {problem.reason for problem in found}, found


def test_limits_themselves_are_allowed():
    # Three clusters of two blocks, two blocks and one block go to the other launches.
    assert problems(broken((*LAUNCH, "grid"), [2**20 - 9, 1, 1])) == ()
    assert problems(broken((*REDUCED, "grid"), [2, 65535, 1])) == ()
    assert problems(broken(MAP, tensor_map(swizzle=128, block_shape=[256, 32]))) == ()
    assert problems(broken(MAP, tensor_map(buffer="o", shape=[4, 64], strides=[64, 1]))) == ()
    assert problems(broken((*TABLE, "buffers", 1, "offset"), 1020)) == ()
    assert problems(broken((*REDUCE, "options", "threads"), 1024)) == ()
    assert problems(broken((*REDUCE, "constexprs", "TILE"), "Tile<2, cutlass::half_t>")) == ()
    assert problems(broken(("persistent", "big"), {"shape": [(1 << 26) - 32], "dtype": "u8"})) == ()
    assert problems(broken((*ARGUMENTS, "n", "value"), -(2**31))) == ()
    assert problems(broken((*ARGUMENTS, "n", "value"), 2**31 - 16)) == ()
    assert problems(broken((*ARGUMENTS, "w", "offset"), 60)) == ()
    assert problems(broken((*ARGUMENTS, "x", "offset"), X_BYTES - 16)) == ()
    # What the op itself holds (2624 bytes), and 128 MiB; a KiB of it is taken.
    tensors = X_BYTES + 64 + 128 + 1024
    assert problems(broken(("scratch", "big"), {"shape": [(1 << 27) + tensors - 1024], "dtype": "u8"})) == ()
    assert problems(broken(("scratch", "big"), {"shape": [(1 << 27) + tensors - 1023], "dtype": "u8"})) != ()


def test_clusters_count_into_the_grid():
    pack = broken((*GEMV, "options", "num_ctas"), 2)
    pack["launches"][1]["grid"] = [2**30, 1, 1]
    assert [problem.reason for problem in problems(pack)] == ["plan.grid", "plan.blocks"]
    # The three Triton kernels have their options in common: 2, 4 and (not doubled) 6 blocks go to the other launches.
    pack["launches"][1]["grid"] = [2**19 - 5, 1, 1]
    assert [problem.reason for problem in problems(pack)] == ["plan.blocks"]
    pack["launches"][1]["grid"] = [2**19 - 6, 1, 1]
    assert problems(pack) == ()


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
    assert source_functions({}, ["k.cu"]) == {"k.cu": {}}


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
        for kind in (parsed.scratch, parsed.prepared, parsed.persistent):
            for name, buffer in kind.items():
                elements = 1
                for size in buffer.shape:
                    elements *= size
                sizes[name] = elements * buffer.dtype.bytes
        for launch in parsed.launches:
            assert all(size >= 1 for size in launch.grid)
            for argument in launch.arguments.values():
                places = {"buffer": (argument,), "peers": getattr(argument, "buffers", ())}.get(argument.kind, ())
                for place in places:
                    assert 0 <= place.offset < max(sizes[place.buffer], 1)
                if argument.kind == "tensor_map":
                    last = sum((n - 1) * step for n, step in zip(argument.shape, argument.strides, strict=True))
                    assert 0 <= argument.offset + (last + 1) * argument.dtype.bytes <= sizes[argument.buffer]


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
