"""Parsers on excerpts as the tools print them, and on garbage."""

from collections import Counter

import pytest
from fasttrack_validation.judge.device_code import sass
from hypothesis import given, settings
from hypothesis import strategies as st

PTXAS = """\
ptxas-blackwell info    : 0 bytes gmem
ptxas-blackwell info    : Compiling entry function 'spill' for 'sm_90a'
ptxas-blackwell info    : Function properties for spill
    2144 bytes stack frame, 2684 bytes spill stores, 3276 bytes spill loads
ptxas-blackwell info    : Used 255 registers, used 1 barriers, 2144 bytes cumulative stack size, 512 bytes smem
ptxas-blackwell info    : Compile time = 21094.080 ms
"""

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function spill:
  REG:255 STACK:2144 SHARED:1024 LOCAL:0 CONSTANT[0]:560 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

SASS = """
\tcode for sm_90a
\t\tFunction : mm
\t.headerflags\t@"EF_CUDA_ACCELERATORS EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                          /* 0x00000a00ff017b82 */
                                                                                   /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDL.LU R3, [R1+0x8] ;                           /* 0x0000080001037983 */
                                                                                   /* 0x000fe20000300800 */
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R56, gdesc[UR16].tnspB, RZ, !UPT ;  /* 0x40e00000103879f0 */
                                                                                   /* 0x000fe20000000800 */
        /*0030*/              @UP1 STL.64 [R1], R2 ;                               /* 0x0000000201007387 */
                                                                                   /* 0x000fe20000000800 */
        /*0040*/                   F2FP.BF16.F32.PACK_AB R4, R5, R4 ;              /* 0x000000050404723e */
                                                                                   /* 0x000fe20000000800 */
        /*0050*/                   HFMA2.BF16_V2 R4, R5, R4, R6 ;                  /* 0x000000050404723e */
                                                                                   /* 0x000fe20000000800 */
        /*0060*/                   EXIT ;                                          /* 0x000000000000794d */
                                                                                   /* 0x000fe20000000800 */
"""


def tcgen05(kind="f16", before="mov.b32 \t%r66, 135333008;", descriptor="%r66"):
    return f"""
.reqntid 128
\t{before}
\t@%p7 tcgen05.mma.cta_group::1.kind::{kind} [ %r208 + 0 ], %rd20, %rd21, {descriptor}, %p6;
"""


def test_ptxas_report():
    assert sass.ptxas_report(PTXAS) == sass.PtxasReport(
        registers=255, stack_bytes=2144, spill_store_bytes=2684, spill_load_bytes=3276, static_shared_bytes=512
    )


def test_resource_usage():
    usage = sass.resource_usage(USAGE)
    assert list(usage) == ["spill"]
    assert (usage["spill"]["REG"], usage["spill"]["STACK"], usage["spill"]["LOCAL"]) == (255, 2144, 0)


def test_listing():
    counts = sass.instructions(SASS)
    assert counts == Counter(
        ["LDC", "LDL.LU", "HGMMA.64x64x16.F32.BF16", "STL.64", "F2FP.BF16.F32.PACK_AB", "HFMA2.BF16_V2", "EXIT"]
    )
    assert sass.code_bytes(SASS) == 0x70
    assert sass.local_accesses(counts) == (1, 1)
    assert sass.barriers(Counter({"BAR.SYNC.DEFER_BLOCKING": 3, "BAR.ARV": 1, "BARRIER": 9, "BRA": 5})) == 4
    assert sass.conversions(counts) == {"F2FP.BF16.F32.PACK_AB": 1}
    assert sass.matrix_types(counts, "") == ("HGMMA.64x64x16.F32.BF16",)


# Three exchanges of one sum: the first product fused into the exchanged value, then the same with the product rounded
# first. What q k + shfl(q k) leaves differs between lanes; what p + shfl(p) leaves does not.
FUSED = """
        /*3ef0*/                   FMUL R16, R188.reuse, R211.reuse ;
        /*3f20*/                   SHFL.BFLY PT, R23, R16, 0x10, 0x1f ;
        /*3f40*/                   FFMA R23, R188, R211, R23 ;
        /*3f60*/                   SHFL.BFLY PT, R18, R23, 0x8, 0x1f ;
        /*3fb0*/                   FADD R18, R23, R18 ;
        /*3fd0*/                   SHFL.BFLY PT, R19, R18, 0x4, 0x1f ;
        /*4010*/                   FADD R19, R18, R19 ;
        /*4020*/                   FFMA R7, R18, R19, R20 ;
"""
ROUNDED = FUSED.replace("FMUL R16, R188.reuse, R211.reuse", "FFMA R16, R188, R211, RZ").replace(
    "FFMA R23, R188, R211, R23", "FADD R23, R16, R23"
)


def test_sums_that_differ_between_lanes_are_counted():
    assert sass.uneven_sums(FUSED) == 1
    assert sass.uneven_sums(ROUNDED) == 0
    assert sass.uneven_sums(FUSED.replace("SHFL.BFLY PT, R23", "SHFL.IDX PT, R23")) == 0
    # What a register held before it was written again does not count.
    assert sass.uneven_sums(FUSED.replace("FFMA R23,", "MOV R23, R5 ;\n        /*3f41*/                   FFMA R23,")) == 0


# 0x8110490: bits 4-5 are 01 (fp32), 7-9 and 10-12 are 001 (bf16); 0x8110010 has 000 there; 0x8100910 has 010.
@pytest.mark.parametrize(
    ("kind", "descriptor", "types"),
    [
        ("f16", 0x8110490, "F32.BF16.BF16"),
        ("f16", 0x8110010, "F32.F16.F16"),
        ("f16", 0x8110000, "F16.F16.F16"),
        ("tf32", 0x8100910, "F32.TF32.TF32"),
        ("f8f6f4", 0x8100010, "F32.E4M3.E4M3"),
        ("f8f6f4", 0x8100010 | 1 << 7 | 5 << 10, "F32.E5M2.E2M1"),
        ("mxf8f6f4", 0x8100000, "F32.E4M3.E4M3"),
        ("mxf4", 0x8100000 | 1 << 7 | 1 << 10, "F32.E2M1.E2M1"),
        ("f16", 0x8110010 | 7 << 7, "unknown"),
    ],
)
def test_tensor_memory_products_are_told_by_the_descriptor(kind, descriptor, types):
    register = tcgen05(kind, f"mov.b32 %r66, {descriptor};")
    immediate = tcgen05(kind, "", str(descriptor))
    assert sass.tcgen05_types(register) == sass.tcgen05_types(immediate) == (f"tcgen05.{kind}.{types}",)


@pytest.mark.parametrize(
    "before",
    [
        "",
        "ld.param.b32 %r66, [p];",
        "mov.b32 %r66, 135333008;\n\tadd.s32 %r66, %r66, %r1;",
        "mov.b32 %r66, %r65;",
        "ld.global.v2.b32 {%r65, %r66}, [%rd1];\n\tmov.b32 %r66, 135333008;",
    ],
)
def test_a_descriptor_that_is_no_constant_cannot_be_told(before):
    assert sass.tcgen05_types(tcgen05(before=before)) == ("tcgen05.f16.unknown",)


def test_a_descriptor_of_two_constants_gives_both():
    ptx = tcgen05(before=f"@%p1 mov.b32 %r66, {0x8110490};\n\t@!%p1 mov.b32 %r66, {0x8110010};")
    assert sass.tcgen05_types(ptx) == ("tcgen05.f16.F32.BF16.BF16", "tcgen05.f16.F32.F16.F16")


def test_products_that_ptx_does_not_show_are_unknown():
    assert sass.matrix_types(Counter(["UTCHMMA", "HMMA.16816.F32"]), "") == ("HMMA.16816.F32", "UTCHMMA.unknown")


def test_required_threads():
    assert sass.required_threads(".reqntid 128\n") == 128
    assert sass.required_threads(".reqntid 32, 4, 2\n") == 256
    assert sass.required_threads(".maxntid 128\n") is None


FRAGMENTS = st.lists(
    st.one_of(
        st.text("aR0.;/*{}[]%,@: \n\u00e9", max_size=30),
        st.sampled_from([*PTXAS.splitlines(), *USAGE.splitlines(), *SASS.splitlines(), *tcgen05().splitlines()]),
        st.sampled_from(["{", "}", "[", "]", ";", ",", "%r66", "tcgen05.mma.kind::f16 ", "mov.b32 %r1, 99999999999;"]),
    ),
    max_size=12,
).map("\n".join)


@settings(deadline=None)
@given(FRAGMENTS, st.integers(0, 200), st.integers(0, 200))
def test_garbage_gives_answers_of_the_right_type(text, start, length):
    for piece in (text, text[start : start + length]):
        report = sass.ptxas_report(piece)
        assert report is None or report.registers >= 0
        assert all(isinstance(value, dict) for value in sass.resource_usage(piece).values())
        counts = sass.instructions(piece)
        assert sass.code_bytes(piece) == 16 * sum(counts.values())
        assert set(sass.conversions(counts)) <= set(counts)
        assert all(kind.startswith("tcgen05.") for kind in sass.tcgen05_types(piece))
        assert isinstance(sass.matrix_types(counts, piece), tuple)
        assert sass.required_threads(piece) is None or sass.required_threads(piece) >= 0


@settings(deadline=None)
@given(st.lists(st.sampled_from(["HMMA.16816.F32", "F2F.F64.F32", "LDL.64", "STL", "FFMA"]), max_size=20))
def test_counting_is_counting(mnemonics):
    listing = "\n".join(
        f"        /*{16 * n:04x}*/                   {name} R0, R1 ;  /* 0x0000000000000000 */"
        for n, name in enumerate(mnemonics)
    )
    assert sass.instructions(listing) == Counter(mnemonics)
