"""Memory that outlives a launch, read from section headers: files written by hand, and what NVRTC makes."""

import pytest
from elf_files import elf

from fasttrack_validation.judge.device_code.cubin import writable_globals
from fasttrack_validation.judge.device_code.cuda_compiler import compile_kernel
from fasttrack_validation.judge.device_code.ptx_globals import only_read
from fasttrack_validation.judge.pack import KernelVariant


def test_sizes_by_hand():
    assert writable_globals(elf({".text.k": 512, ".nv.constant3": 256, ".nv.shared.k": 64})) == 0
    assert writable_globals(elf({".nv.global": 256, ".text.k": 512, ".nv.global.init": 8})) == 264
    # A copy in another encoding of the same code, as cubins for sm_103 have it, is no memory.
    assert writable_globals(elf({".nv.global.init": 8, ".nv.merc.nv.global.init": 8, ".rela.nv.global.init": 24})) == 8


@pytest.mark.parametrize("cut", [0, 3, 63, 70, -1])
def test_what_cannot_be_read_is_an_error(cut):
    with pytest.raises(ValueError):
        writable_globals(elf({".nv.global": 4})[:cut])
    with pytest.raises(ValueError):
        writable_globals(b"\x7fELF\x01" + elf({})[5:])


VARIANT = KernelVariant(
    language="cuda", file="k.cu", function="k", signature={"p0": "*fp32"}, constexprs={}, divisible_by_16=(),
    options={"threads": 32, "max_registers": None, "cluster": 1, "launch_pdl": False, "launch_cooperative_grid": False},
)  # fmt: skip
KERNEL = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += table[threadIdx.x]; }'
SOURCES = {
    "written": ("__device__ float table[32];\n" + KERNEL.replace("; }", "; table[0] = 1; }"), 128),
    "with initial values": ("__device__ float table[32] = {1, 2};\n" + KERNEL.replace("; }", "; table[0] = 1; }"), 128),
    "counts its calls": ('extern "C" __global__ void k(float* x) { static int calls; x[0] = calls++; }', 4),
    "table in constant memory": ("__constant__ float table[32] = {1, 2};\n" + KERNEL, 0),
    "tile in shared memory": (
        'extern "C" __global__ void k(float* x) { __shared__ float t[32]; t[threadIdx.x] = x[threadIdx.x]; '
        "__syncthreads(); x[threadIdx.x] = t[31 - threadIdx.x]; }", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("target", [90, 103])
def test_what_the_compiler_makes(name, target):
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    text, expected = SOURCES[name]
    made = compile_kernel({"k.cu": text}, VARIANT, target)
    assert writable_globals(made.cubin) == expected and not only_read(made.ptx)


def entry(body):
    return f'extern "C" __global__ void k(float* x) {{ {body} }}'


READ = {
    "sin": entry("x[0] = sinf(x[1]);"),
    "sin in double precision, which calls": entry("x[0] = sin((double)x[1]);"),
    "constant table": "static __device__ constexpr float t[4] = {1, 2, 3, 4};\n" + entry("x[0] = t[(int)x[1] & 3];"),
    "table in a loop": "__device__ const int t[4] = {1, 2, 3, 4};\n" + entry("for (int i = 0; i < x[1]; i++) x[0] += t[i];"),
}  # fmt: skip
WRITTEN = {
    "atomic": "__device__ int t;\n" + entry("x[0] = atomicAdd(&t, 1);"),
    "through a pointer in memory": (
        "__device__ float t[4];\n__device__ float* p = t;\n" + entry("p[(int)x[0]] = 1; x[0] = t[(int)x[1]];")
    ),
    "its address leaves": "__device__ float t[4];\n" + entry("*(float**)x = t;"),
    "inline PTX": (
        "__device__ int t;\n" + entry('asm volatile("{.reg .u64 a; mov.u64 a, %0; st.u32 [a], 1;}" :: "l"(&t)); x[0] = t;')
    ),
    "by a function that is called": (
        "__device__ int t[4];\n__device__ __noinline__ void f(int* p) { p[0] = 2; }\n" + entry("f(t); x[0] = t[1];")
    ),
    "text of an assertion": "#include <cassert>\n" + entry("assert(x[0] > 0);"),
    "managed": "__managed__ int t;\n" + entry("x[0] = t;"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*READ, *WRITTEN])
@pytest.mark.parametrize("target", [90, 103])
def test_tables_are_told_from_what_can_be_written(name, target):
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    made = compile_kernel({"k.cu": (READ | WRITTEN)[name]}, VARIANT, target)
    assert writable_globals(made.cubin) > 0 and only_read(made.ptx) is (name in READ)


TABLE = ".global .align 4 .b8 t[16] = {1, 0};\n.entry k(.param .u64 x)\n{\n"
READS = "mov.u64 %rd1, t;\nadd.s64 %rd2, %rd1, 4;\nld.global.nc.u32 %r1, [%rd2];\nst.global.u32 [%rd9], %r1;\n}"


def test_addresses_are_followed_by_hand():
    assert only_read(TABLE + READS)
    assert only_read(TABLE + READS.replace("%rd9", "%rd3"))
    for write in ("st.global.u32 [%rd2], 1;", "red.global.add.u32 [%rd2+4], 1;", "@%p1 st.u32 [t], 1;", "unknown %rd2;",
                  "mov.b64 {%r7, %r8}, %rd2; mov.b64 %rd5, {%r7, %r8}; st.u32 [%rd5], 1;", "call elsewhere, (x);"):  # fmt: skip
        assert not only_read(TABLE + READS.replace("}", write + "\n}")), write
    assert not only_read(TABLE.replace(".global", ".global .attribute(.managed)") + READS)
    assert not only_read(READS) and not only_read("")


@pytest.mark.parametrize("target", [90, 103])
def test_triton_kernels_have_tables_of_the_compilers_and_no_variables(lab, compiled, target):
    (audit,) = compiled(lab.variant("wave", {"x": "*fp32", "o": "*fp32"}, {"BLOCK": 128}), target).audits
    (code,) = compiled(lab.variant("wave", {"x": "*fp32", "o": "*fp32"}, {"BLOCK": 128}), target).codes
    assert writable_globals(code.cubin) > 0 and audit.writable_globals == 0
