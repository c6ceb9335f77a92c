"""What honest host code turns into: every figure here is derived by hand from the candidate's text."""

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


def valid(pack, parameters, cuda=()):
    specs = tuple(TensorSpec.model_validate(t) for t in TENSORS)
    return validate(pack, specs, {"kernel.py": {"k": parameters}} | {file: {} for file in cuda})


def test_a_host_descriptor_is_a_tensor_map(record):
    answer, _ = record(
        """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def k(d, o):
    tl.store(o, tl.sum(d.load([0, 0])))

def launch(ctx, buffers, axes, config):
    rows = TensorDescriptor.from_tensor(buffers.x[1:], [2, 32], padding="nan")
    k[(1,)](rows, buffers.o)
"""
    )
    pack = pack_of(answer)
    assert only_kernel(pack).signature == {"d": "tensordesc<fp32[2, 32]>", "o": "*fp32"}
    assert pack.launches[0].arguments["d"].model_dump() == {
        "kind": "tensor_map", "buffer": "x", "offset": 96 * 4, "dtype": "fp32", "shape": (3, 64), "strides": (96, 1),
        "block_shape": (2, 32), "padding": "nan", "swizzle": None, "round_to_tf32": False,
    }  # fmt: skip
    assert valid(pack, ("d", "o")) == ()


def test_parts_of_tuples_are_parameters(record):
    answer, _ = record(
        """
@triton.jit
def k(pair, o, n):
    tl.store(o, tl.load(pair[0]) * pair[1] + pair[2][1])

def launch(ctx, buffers, axes, config):
    k[(1,)]((buffers.x, 3, (1, 2.5)), buffers.o, 32)
"""
    )
    pack = pack_of(answer)
    variant = only_kernel(pack)
    assert variant.signature == {
        "pair.0": "*fp32", "pair.1": "i32", "pair.2.0": "constexpr", "pair.2.1": "fp32", "o": "*fp32", "n": "i32",
    }  # fmt: skip
    assert variant.constexprs == {"pair.2.0": 1}
    assert set(variant.divisible_by_16) == {"pair.0", "o", "n"}
    assert pack.launches[0].arguments["pair.2.1"].value == 2.5
    assert valid(pack, ("pair", "o", "n")) == ()


def test_element_types_and_tuples_as_constants(record):
    answer, _ = record(
        """
@triton.jit
def k(o, T: tl.constexpr, SHAPE: tl.constexpr):
    tl.store(o, tl.zeros(SHAPE, T).to(tl.float32))

def launch(ctx, buffers, axes, config):
    k[(1,)](buffers.o, tl.bfloat16, (16, tl.int8, None))
    k[(1,)](buffers.o, tl.float8e5, (16, True, "x"))
"""
    )
    pack = pack_of(answer)
    first, second = (pack.kernels[launch.kernel].model_dump()["constexprs"] for launch in pack.launches)
    assert first == {"T": {"dtype": "bfloat16"}, "SHAPE": (16, {"dtype": "int8"}, None)}
    assert second == {"T": {"dtype": "float8e5"}, "SHAPE": (16, True, "x")}
    assert valid(pack, ("o", "T", "SHAPE")) == ()


FP8 = (*TENSORS, {"name": "e", "dtype": "fp8e4nv", "role": "input", "shape": (64,), "strides": (1,)})


def test_fp8_pointers(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    copy[(1,)](buffers.e, buffers.o, 5, BLOCK=32)
""",
        tensors=FP8,
    )
    pack = pack_of(answer)
    assert only_kernel(pack).signature["x"] == "*fp8e4nv"
    assert validate(pack, tuple(TensorSpec.model_validate(t) for t in FP8), PARAMETERS) == ()


def test_clusters_and_cooperative_grids_are_options(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    copy[(1,)](buffers.x, buffers.o, 5, BLOCK=32, num_ctas=2, launch_cooperative_grid=True)
"""
    )
    options = only_kernel(pack_of(answer)).options
    assert options["num_ctas"] == 2 and options["launch_cooperative_grid"] is True


def test_persistent_buffers_are_declared_and_addressed(record):
    answer, _ = record(
        """
def persistent(axes, config):
    return {"flags": ((axes["rows"],), torch.int32, 255, "epoch"), "box": ((8,), torch.float32)}

def launch(ctx, buffers, axes, config):
    copy[(1,)](buffers.box[2:], buffers.o, 5, BLOCK=32)
"""
    )
    pack = pack_of(answer)
    assert {name: buffer.model_dump(mode="json") for name, buffer in pack.persistent.items()} == {
        "flags": {"shape": [4], "dtype": "i32", "initial": 255, "after": "epoch"},
        "box": {"shape": [8], "dtype": "fp32", "initial": 0, "after": "restored"},
    }
    assert pack.launches[0].arguments["x"].model_dump() == {
        "kind": "buffer", "buffer": "box", "offset": 8, "dtype": "fp32",
    }  # fmt: skip


def test_a_table_of_peers_in_triton(record):
    answer, _ = record(
        """
@triton.jit
def k(table, o):
    tl.store(o, tl.load(tl.load(table + 1).to(tl.pointer_type(tl.float32))))

def launch(ctx, buffers, axes, config):
    k[(1,)](ctx.peers([buffers.x, buffers.x[1]]), buffers.o)
    k[(1,)](ctx.peers([buffers.o]), buffers.o)
    k[(1,)](ctx.peers([buffers.x, buffers.x[1]]), buffers.o)
"""
    )
    pack = pack_of(answer)
    assert only_kernel(pack).signature == {"table": "*i64", "o": "*fp32"}
    first, second, third = (launch.arguments["table"] for launch in pack.launches)
    assert first == third and len(second.buffers) == 1
    assert [(entry.buffer, entry.offset) for entry in first.buffers] == [("x", 0), ("x", 384)]
    assert valid(pack, ("table", "o")) == ()


def test_a_cuda_kernel(record):
    host = """
import torch

def launch(ctx, buffers, axes, config):
    gemv = ctx.cuda(
        "kernels/gemv.cu", "gemv", threads=256, constants={"TILE": 64, "T": "__nv_bfloat16", "FAST": True},
        max_registers=96, pdl=True, cluster=2,
    )
    rows = ctx.tensor_map(buffers.x[:, 32:], (4, 32), swizzle=128)
    with ctx.stream("side"):
        gemv[(4, axes["rows"])](
            rows, buffers.w, ctx.peers([buffers.o, buffers.o[2]]), 7, 0.5, True, ctx.scalar("u64", 2**40),
            buffers.x.view(torch.int32), shared_bytes=65536,
        )
"""
    answer, _ = record("", files={"kernel.py": host, "kernels/gemv.cu": "", "kernels/tile.cuh": ""})
    pack = pack_of(answer)
    variant = only_kernel(pack)
    assert (variant.language, variant.file, variant.function) == ("cuda", "kernels/gemv.cu", "gemv")
    assert variant.signature == {
        "p0": "tensor_map", "p1": "*bf16", "p2": "peers", "p3": "i32", "p4": "fp32", "p5": "u1", "p6": "u64",
        "p7": "*i32",
    }  # fmt: skip
    assert variant.constexprs == {"TILE": 64, "T": "__nv_bfloat16", "FAST": True} and variant.divisible_by_16 == ()
    assert variant.options == {
        "threads": 256, "max_registers": 96, "cluster": 2, "launch_pdl": True, "launch_cooperative_grid": False,
    }  # fmt: skip
    (launch,) = pack.launches
    assert launch.grid == (4, 4, 1) and launch.stream == "side" and launch.shared_bytes == 65536
    assert launch.arguments["p0"].model_dump() == {
        "kind": "tensor_map", "buffer": "x", "offset": 128, "dtype": "fp32", "shape": (4, 32), "strides": (96, 1),
        "block_shape": (4, 32), "padding": "zero", "swizzle": 128, "round_to_tf32": False,
    }  # fmt: skip
    assert [entry.offset for entry in launch.arguments["p2"].buffers] == [0, 512]
    assert launch.arguments["p6"].value == 2**40
    assert valid(pack, (), cuda=["kernels/gemv.cu"]) == ()
    assert KernelPack.model_validate_json(pack.model_dump_json()) == pack


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


def test_what_prepare_returns_is_declared_by_its_shapes(record):
    answer, blobs = record(PREPARE)
    assert blobs == [] and set(answer) == {"packs"}
    prepared = pack_of(answer).prepared
    assert {name: buffer.shape for name, buffer in prepared.items()} == {"packed": (8, 8), "scale": (8,)}


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        # Nothing is computed where shapes follow from shapes: a petabyte costs nothing.
        ("static.w.new_empty(1 << 40).view(-1, 1 << 20)[:, :2].contiguous()", (1 << 20, 2)),
        # It looks at a value, which is zero.
        ("static.w[: int(static.w.float().sum().item()) + 3]", (3, 8)),
        # It mixes in a tensor of its own.
        ("static.w.float() + torch.eye(8)", (8, 8)),
    ],
)
def test_prepare_is_asked_for_shapes_without_values_first(record, body, shape):
    text = f"import torch\n\ndef prepare(ctx, static, axes, config):\n    return {{'packed': {body}}}\n"
    answer, _ = record(text + PREPARE[PREPARE.index("\ndef launch") :].replace("scale", "packed"))
    assert pack_of(answer).prepared["packed"].shape == shape


def test_prints_are_fine(record):
    answer, _ = record(
        """
def launch(ctx, buffers, axes, config):
    print("launching", buffers.x.shape, buffers.x.stride(), buffers.x.dtype, buffers.x.data_ptr() % 16)
    copy[(1,)](buffers.x, buffers.o, 5, BLOCK=32)
"""
    )
    assert len(pack_of(answer).launches) == 1
