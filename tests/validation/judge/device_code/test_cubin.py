"""Memory that outlives a launch, read from section headers: files written by hand, and what NVRTC makes."""

import pytest
from elf_files import elf

from fasttrack_validation.judge.device_code.cubin import writable_globals
from fasttrack_validation.judge.device_code.cuda_compiler import compile_kernel
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
    assert writable_globals(compile_kernel({"k.cu": text}, VARIANT, target).cubin) == expected
