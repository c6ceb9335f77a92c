"""What honest host code turns into: every figure here is derived by hand from the candidate's text."""

import struct
from textwrap import dedent

import pytest
from fasttrack_validation.contracts.base import TensorSpec
from fasttrack_validation.judge.pack import KernelPack
from fasttrack_validation.judge.plan import validate

TENSORS = (
    {"name": "x", "dtype": "fp32", "role": "input", "shape": (4, 64), "strides": (96, 1)},
    {"name": "w", "dtype": "bf16", "role": "static", "shape": (8, 8), "strides": (8, 1)},
    {"name": "o", "dtype": "fp32", "role": "output", "shape": (4, 64), "strides": (64, 1)},
)

PARAMETERS = {"kernel.py": {"copy": ("x", "o", "n", "BLOCK")}}


def pack_of(answer):
    assert "rejected" not in answer, answer
    (pack,) = answer["packs"]
    return KernelPack.model_validate(pack)


def only_kernel(pack):
    (variant,) = pack.kernels.values()
    return variant


def test_a_plain_launch(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    copy[(axes["rows"],)](buffers.x, buffers.o, 256, BLOCK=config["block"], num_warps=8)
""",
        config={"block": 64},
    )
    pack = pack_of(answer)
    variant = only_kernel(pack)
    assert (variant.file, variant.function) == ("kernel.py", "copy")
    assert variant.signature == {"x": "*fp32", "o": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    assert variant.constexprs == {"BLOCK": 64}
    assert variant.divisible_by_16 == ("x", "o", "n")
    assert variant.options == {
        "num_warps": 8, "num_stages": 3, "num_ctas": 1, "maxnreg": None,
        "enable_fp_fusion": True, "launch_pdl": False, "launch_cooperative_grid": False,
    }  # fmt: skip
    (launch,) = pack.launches
    assert launch.grid == (4, 1, 1)
    assert list(launch.arguments) == ["x", "o", "n"]
    assert launch.arguments["x"].buffer == "x" and launch.arguments["x"].offset == 0
    assert launch.arguments["n"].value == 256 and launch.arguments["n"].type == "i32"
    assert validate(pack, tuple(TensorSpec.model_validate(t) for t in TENSORS), PARAMETERS) == ()



def test_views_become_byte_offsets_and_lose_divisibility(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    row = buffers.x[1]                  # 96 elements of 4 bytes further
    copy[(1,)](row[1:], buffers.o, 63, BLOCK=64)
"""
    )
    pack = pack_of(answer)
    assert pack.launches[0].arguments["x"].offset == (96 + 1) * 4
    assert only_kernel(pack).divisible_by_16 == ("o",)


def test_reinterpreted_bits_keep_their_buffer(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    copy[(1,)](buffers.w.view(torch.int32), buffers.o.view(torch.int32), 32, BLOCK=32)
"""
    )
    pack = pack_of(answer)
    assert only_kernel(pack).signature["x"] == "*i32"
    assert pack.launches[0].arguments["x"].buffer == "w"


@pytest.mark.parametrize(
    ("expression", "kind", "value"),
    [("7", "i32", 7), ("2**40", "i64", 2**40), ("2.5", "fp32", 2.5), ("True", "u1", True), ("-16", "i32", -16)],
)
def test_scalars_are_typed(record, expression, kind, value):
    answer, _ = record(
        f"""
def launch(ctx, buffers, axes, config):
    copy[(1,)](buffers.x, buffers.o, {expression}, BLOCK=32)
"""
    )
    argument = pack_of(answer).launches[0].arguments["n"]
    assert (argument.type, argument.value, type(argument.value)) == (kind, value, type(value))


def test_one_and_none_are_baked(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    copy[(1,)](buffers.x, buffers.o, 1, BLOCK=32)
    copy[(1,)](buffers.x, None, 1, BLOCK=32)
"""
    )
    pack = pack_of(answer)
    first, second = (pack.kernels[launch.kernel] for launch in pack.launches)
    assert first.constexprs == {"n": 1, "BLOCK": 32}
    assert second.constexprs == {"o": None, "n": 1, "BLOCK": 32}
    assert list(pack.launches[1].arguments) == ["x"]


def test_equal_specialisations_share_one_variant(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    for n in (16, 32, 48, 17):
        copy[lambda meta: (triton.cdiv(n, meta["BLOCK"]), 2)](buffers.x, buffers.o, n, BLOCK=16)
"""
    )
    pack = pack_of(answer)
    assert len(pack.kernels) == 2, "17 is not divisible by 16"
    assert [launch.grid for launch in pack.launches] == [(1, 2, 1), (2, 2, 1), (3, 2, 1), (2, 2, 1)]


def test_streams_waits_and_roles(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    def go(): copy[(1,)](buffers.x, buffers.o, 5, BLOCK=32, launch_pdl=True)
    go()
    with ctx.stream("side"):
        go()
        with ctx.prefetch():
            go()
    go()
    ctx.wait("side")
    go()
    with ctx.stream("side"):
        go()
"""
    )
    pack = pack_of(answer)
    assert [(launch.stream, launch.waits, launch.role.value) for launch in pack.launches] == [
        ("main", (), "compute"),
        ("side", ("main",), "compute"),
        ("side", (), "prefetch"),
        ("main", (), "compute"),
        ("main", ("side",), "compute"),
        ("side", ("main",), "compute"),
    ]
    assert only_kernel(pack).options["launch_pdl"] is True


def test_heuristics_and_a_single_autotune_config(record):
    answer, _ = record(
        """
@triton.autotune(configs=[triton.Config({}, num_warps=2)], key=["n"])
@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def tuned(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)

def launch(ctx, buffers, axes, config):
    tuned[(1,)](buffers.x, buffers.o, 33)
"""
    )
    variant = only_kernel(pack_of(answer))
    assert variant.function == "tuned"
    assert variant.constexprs == {"BLOCK": 64}
    assert variant.options["num_warps"] == 2


def test_files_import_each_other_relatively(record):
    kernels = dedent("""
        import triton
        import triton.language as tl

        @triton.jit
        def fill(o):
            tl.store(o, 1.0)
    """)
    host = "from .parts.kernels import fill\n\ndef launch(ctx, b, axes, config):\n    fill[(1,)](b.o)\n"
    answer, _ = record("", files={"host.py": host, "parts/kernels.py": kernels}, entry="host.py")
    assert only_kernel(pack_of(answer)).file == "parts/kernels.py"


def test_context_has_the_device_facts(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    facts = ctx.hardware
    assert (facts.name, facts.capability, facts.max_shared) == ("H200", 90, 232448)
    copy[(facts.multiprocessors,)](buffers.x, buffers.o, 5, BLOCK=32)
"""
    )
    assert pack_of(answer).launches[0].grid == (132, 1, 1)


def test_scratch_is_declared_and_addressed(record):
    answer, _ = record(
        """
def scratch(axes, config):
    return {"partial": ((axes["rows"], 32), torch.bfloat16)}

def launch(ctx, buffers, axes, config):
    copy[(1,)](buffers.partial[2], buffers.o, 5, BLOCK=32)
"""
    )
    pack = pack_of(answer)
    assert pack.scratch["partial"].shape == (4, 32) and pack.scratch["partial"].dtype == "bf16"
    assert pack.launches[0].arguments["x"].model_dump() == {
        "kind": "buffer", "buffer": "partial", "offset": 2 * 32 * 2, "dtype": "bf16",
    }  # fmt: skip


PREPARE = """
def prepare(ctx, static, axes, config):
    return {"packed": static.w.t().contiguous(), "scale": static.w.float().sum(dim=1)}

def launch(ctx, buffers, axes, config):
    copy[(1,)](buffers.scale, buffers.o, 8, BLOCK=32)
    copy[(1,)](buffers.packed, buffers.o, 8, BLOCK=32)
"""


def test_prepare_sees_the_static_values_and_hands_back_bytes(record):
    # bf16 holds the integers up to 256 exactly: its bits are the upper half of the float32's.
    values = [struct.unpack("<I", struct.pack("<f", float(n)))[0] >> 16 for n in range(64)]
    memory = b"\xff" * 6 + struct.pack("<64H", *values)
    answer, blobs = record(PREPARE, static={"w": {"offset": 6, "bytes": 128}}, memory=(memory,))
    assert answer["prepared"] == [["b4", "packed"], ["b4", "scale"]]
    transposed = [values[8 * (n % 8) + n // 8] for n in range(64)]
    assert blobs[0] == struct.pack("<64H", *transposed)
    assert blobs[1] == struct.pack("<8f", *(sum(range(8 * row, 8 * row + 8)) for row in range(8)))


def test_prepare_without_values_gives_the_same_plan_and_no_bytes(record):
    with_values, _ = record(PREPARE, static={"w": {"offset": 0, "bytes": 128}}, memory=(b"\x01" * 128,))
    without, blobs = record(PREPARE)
    assert pack_of(with_values) == pack_of(without)
    assert blobs == [] and without["prepared"] == []
    prepared = pack_of(without).prepared
    assert {name: buffer.shape for name, buffer in prepared.items()} == {"packed": (8, 8), "scale": (8,)}


def test_prints_are_fine(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    print("launching", buffers.x.shape, buffers.x.stride(), buffers.x.dtype, buffers.x.data_ptr() % 16)
    copy[(1,)](buffers.x, buffers.o, 5, BLOCK=32)
"""
    )
    assert len(pack_of(answer).launches) == 1
