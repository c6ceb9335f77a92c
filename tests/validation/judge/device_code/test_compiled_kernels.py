"""Real kernels through the compile job: figures against a second tool, matrix types against the table of the ISA."""

import re
import subprocess
from pathlib import Path

import pytest

TOOLS = "backends/nvidia/bin"


def tool(name):
    import triton

    return Path(triton.__file__).parent / TOOLS / name


def figures(built):
    assert built.problems == ()
    (code,), (audit,) = built.codes, built.audits
    return code, audit


def reassembled(code, tmp_path):
    """ptxas run here on the PTX: its report, and the cubin that it makes."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptxas = get_ptxas(int(code.target.removeprefix("sm_"))).path
    (tmp_path / "k.ptx").write_text(code.ptx)
    run = subprocess.run(
        [ptxas, "-lineinfo", "-suppress-debug-info", "-v", "--regAllocOptLevel=2",
         f"--gpu-name={code.target}a", "k.ptx", "-o", "k.cubin"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return run.stderr, (tmp_path / "k.cubin").read_bytes()


def number(pattern, text):
    return int(re.search(pattern, text)[1])


@pytest.mark.parametrize("target", [90, 103])
def test_vector_add(lab, compiled, tmp_path, target):
    code, audit = figures(compiled(lab.ADD, target))
    report, cubin = reassembled(code, tmp_path)
    assert audit.registers == number(r"Used (\d+) registers", report)
    assert (audit.spill_store_bytes, audit.spill_load_bytes, audit.stack_bytes) == (0, 0, 0)
    assert (audit.local_loads, audit.local_stores) == (0, 0)
    assert audit.shared_bytes == 0
    assert audit.threads == 128
    assert audit.mma_types == () and audit.conversions == {}
    assert audit.target == f"sm_{target}"
    assert code.parameters == ("x", "y", "o", "n")
    assert code.entry == "add" and code.ctas == 1
    assert cubin == code.cubin, "the judge can assemble the PTX itself and gets the same machine code"


@pytest.mark.parametrize("target", [90, 103])
def test_a_product_fused_into_the_exchange_between_lanes_is_seen(lab, compiled, target):
    """One value a lane: the product meets the first exchange, unless it was rounded before (x y + 0 is not a product)."""
    uneven, even = (lab.variant("length", {"x": "*fp32", "o": "*fp32"}, {"EVEN": even}) for even in (False, True))
    assert figures(compiled(uneven, target))[1].uneven_sums >= 1
    assert figures(compiled(even, target))[1].uneven_sums == 0


@pytest.mark.parametrize("target", [90, 103])
def test_spills_are_seen(lab, compiled, tmp_path, target):
    kernel = lab.variant(
        "wide_sum", {"x": "*fp32", "o": "*fp32"}, {"ROWS": 64, "BLOCK": 64}, num_warps=1, maxnreg=64
    )
    code, audit = figures(compiled(kernel, target))
    report, _ = reassembled(code, tmp_path)
    assert audit.registers <= 64
    assert audit.spill_store_bytes == number(r"(\d+) bytes spill stores", report) > 0
    assert audit.spill_load_bytes == number(r"(\d+) bytes spill loads", report) > 0
    assert audit.stack_bytes == number(r"(\d+) bytes stack frame", report) > 0
    assert audit.local_loads > 0 and audit.local_stores > 0
    assert audit.threads == 32


@pytest.mark.parametrize(
    ("name", "arguments", "sm_90", "sm_103"),
    [
        ("bf16", ("bf16", 16, 32, 64), "HMMA.16816.F32.BF16", "HMMA.16816.F32.BF16"),
        ("fp16", ("fp16", 16, 32, 64), "HMMA.16816.F32", None),
        ("tf32", ("fp32", 16, 32, 64), "HMMA.1688.F32.TF32", None),
        ("bf16 warp group", ("bf16", 128, 64, 64), "HGMMA.64x64x16.F32.BF16", "tcgen05.f16.F32.BF16.BF16"),
        ("fp16 warp group", ("fp16", 128, 64, 64), "HGMMA.64x64x16.F32", "tcgen05.f16.F32.F16.F16"),
        ("tf32 warp group", ("fp32", 128, 64, 64), "HGMMA.64x64x8.F32.TF32", "tcgen05.tf32.F32.TF32.TF32"),
    ],
)
def test_matrix_types(lab, compiled, name, arguments, sm_90, sm_103):
    kernel = lab.gemm(*arguments)
    for target, expected in ((90, sm_90), (103, sm_103)):
        if expected is None:  # as on sm_90; not compiled again
            continue
        _, audit = figures(compiled(kernel, target))
        assert audit.mma_types == (expected,)


def test_fp16_accumulation_shows(lab, compiled):
    _, audit = figures(compiled(lab.gemm("fp16", 16, 32, 64, half=True, out="fp16")))
    assert audit.mma_types == ("HMMA.16816.F16",)


def test_ieee_precision_uses_no_matrix_unit(lab, compiled):
    _, audit = figures(compiled(lab.gemm("fp32", 16, 16, 16, precision="ieee")))
    assert audit.mma_types == ()


def test_tf32x3_has_three_times_the_products(lab, compiled):
    once, _ = figures(compiled(lab.gemm("fp32", 16, 32, 64)))
    thrice, audit = figures(compiled(lab.gemm("fp32", 16, 32, 64, precision="tf32x3")))
    assert audit.mma_types == ("HMMA.1688.F32.TF32",)
    assert thrice.sass.count("HMMA.1688.F32.TF32") == 3 * once.sass.count("HMMA.1688.F32.TF32")


@pytest.mark.parametrize("target", [90, 103])
def test_a_downcast_before_the_product_shows_as_conversion(lab, compiled, target):
    signature = {"a": "*fp32", "b": "*fp32", "c": "*fp32"}
    kernel = lab.variant("downcast_gemm", signature, {"M": 16, "N": 32, "K": 64})
    _, audit = figures(compiled(kernel, target))
    assert audit.mma_types == ("HMMA.16816.F32.BF16",)
    assert sum(count for name, count in audit.conversions.items() if name.startswith("F2FP.BF16.F32")) > 0
    _, honest = figures(compiled(lab.gemm("bf16", 16, 32, 64), target))
    assert honest.conversions == {}


def test_shared_memory_is_what_the_launch_must_ask_for(lab, compiled):
    code, audit = figures(compiled(lab.gemm("bf16", 128, 64, 64)))
    # Both operands in bf16: (128 * 64 + 64 * 64) * 2 bytes.
    assert code.shared_bytes == audit.shared_bytes == 24576


def test_code_size_is_that_of_the_text_section(lab, compiled, tmp_path):
    code, audit = figures(compiled(lab.ADD))
    (tmp_path / "k.cubin").write_bytes(code.cubin)
    elf = subprocess.run(
        [tool("cuobjdump"), "-elf", "k.cubin"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    # The section table: index, offset, size (hexadecimal), ..., name.
    size = int(re.search(r"^\s*\w+\s+\w+\s+(\w+)\s+.*\.text\.add\s*$", elf, re.MULTILINE)[1], 16)
    assert audit.code_bytes == size


def test_errors_of_the_source_come_back_with_their_line(lab, compiled):
    built = compiled(lab.variant("wrong", {"x": "*fp32"}))
    assert built.codes == () and built.audits == ()
    (problem,) = built.problems
    assert problem.reason == "compile.error" and "undefined_name" in problem.message
    assert (problem.kernel, problem.target) == ("kernel", "sm_90")


def test_too_much_shared_memory_is_a_problem_of_its_own(lab, compiled):
    (problem,) = compiled(lab.gemm("fp32", 128, 16, 512)).problems
    assert problem.reason == "compile.out_of_resources"
    assert "shared memory" in problem.message and "232448" in problem.message


@pytest.mark.parametrize(
    ("function", "reason"),
    [("missing", "compile.no_kernel"), ("tl", "compile.no_kernel"), ("add", "compile.signature")],
)
def test_a_plan_that_does_not_fit_the_source(lab, compiled, function, reason):
    (problem,) = compiled(lab.variant(function, {"x": "*fp32"})).problems
    assert problem.reason == reason


def test_a_fault_of_the_compiler_comes_back_with_what_it_said(lab, compiled):
    """Warp specialisation of plain loads is beyond Triton's compiler for sm_90: a failed pass, or an abort."""
    signature = {"a": "*bf16", "b": "*bf16", "o": "*fp32", "K": "i32"}
    (problem,) = compiled(lab.variant("specialised", signature, {"M": 128, "N": 128, "STEP": 64})).problems
    assert problem.reason in ("compile.error", "compile.crashed")
    assert len(problem.message.splitlines()) > 1, "more than the name of the exception"


RICH = """
import triton
import triton.language as tl

@triton.jit
def tiles(d, pair, T: tl.constexpr, SHAPE: tl.constexpr, o):
    x = d.load([0, 0]).to(T)
    i = tl.arange(0, SHAPE[0])[:, None] * SHAPE[1] + tl.arange(0, SHAPE[1])[None, :]
    tl.store(o + i, x.to(tl.float32) * tl.load(pair[0]) + pair[1][0] + pair[1][1])

@triton.jit
def table(peers, o):
    tl.store(o, tl.load(tl.load(peers + 1).to(tl.pointer_type(tl.float32))))
"""


@pytest.mark.parametrize("target", [90, 103])
def test_descriptors_tuples_and_element_types(lab, target):
    from fasttrack_validation.judge.device_code.build import build

    signature = {
        "d": "tensordesc<bf16[64, 64]>", "pair.0": "*fp32", "pair.1.0": "constexpr", "pair.1.1": "i32", "o": "*fp32",
        "T": "constexpr", "SHAPE": "constexpr",
    }  # fmt: skip
    constants = {"T": {"dtype": "float8e5"}, "SHAPE": [64, 64], "pair.1.0": 1}
    fields = lab.ADD.model_dump() | {
        "function": "tiles", "signature": signature, "constexprs": constants, "divisible_by_16": ("pair.0", "o"),
    }  # fmt: skip
    kernel = type(lab.ADD).model_validate(fields)
    code, audit = figures(build({"kernels.py": RICH}, {"kernel": kernel}, lab.run_job, targets=(target,)))
    assert code.parameters == ("d", "pair.0", "pair.1.1", "o") and code.trailing_scratch
    layout = code.tensor_maps["d"]
    # CUtensorMapDataType: BFLOAT16 is 9. A box holds the block in rows of at most the swizzle's width.
    assert (layout.element, layout.element_bytes, layout.doubled) == (9, 2, False)
    assert len(layout.box) == 2 and layout.box[0] == 64 and 64 % layout.box[1] == 0
    assert any(name.startswith("F2FP") and "E5M2" in name for name in audit.conversions)
    # A tensor map, then its shape (2 * i32) and strides (2 * i64), two pointers, a number, and two scratch pointers.
    entry = re.search(r"\.entry tiles\(([^)]*)\)", code.ptx)[1]
    assert entry.count(".param") == 1 + 2 + 2 + 3 + 2


def test_a_table_of_addresses(lab):
    from fasttrack_validation.judge.device_code.build import build

    kernel = lab.variant("table", {"peers": "*i64", "o": "*fp32"})
    code, _ = figures(build({"kernels.py": RICH}, {"kernel": kernel}, lab.run_job, targets=(90,)))
    assert code.parameters == ("peers", "o") and code.tensor_maps == {}


def test_an_address_is_no_number(lab, compiled):
    (problem,) = compiled(lab.variant("asks_where", {"x": "*fp32"})).problems
    assert problem.reason == "compile.address_as_number" and "asks_where" in problem.message


def test_one_run_of_the_disassembler_prints_what_two_would(lab, compiled, tmp_path):
    (code,) = compiled(lab.ADD, 90).codes
    (tmp_path / "kernel.cubin").write_bytes(code.cubin)
    apart = [
        subprocess.run([tool("cuobjdump"), option, tmp_path / "kernel.cubin"], check=True, capture_output=True, text=True).stdout
        for option in ("-res-usage", "-sass")
    ]
    assert [code.resource_usage, code.sass] == apart
