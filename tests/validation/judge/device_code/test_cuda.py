"""CUDA C++ through the compile job: figures against a second tool, parameters against the source, faults by reason."""

import re
import sys

import pytest
from fasttrack_validation.judge.device_code.build import build
from fasttrack_validation.judge.pack import KernelVariant

pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")

KERNELS = """
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <mma.h>
#include "tile.cuh"

extern "C" __global__ void __launch_bounds__(256) scale(const float* x, __nv_bfloat16* o, int n, float s, bool last) {
    extern __shared__ float tile[];
    __shared__ float fixed[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    if (threadIdx.x < 64) fixed[threadIdx.x] = s;
    __syncthreads();
    if (i < n) o[i] = __float2bfloat16(TILE * twice(tile[threadIdx.x ^ 1]) * fixed[threadIdx.x & 63] + last);
}

extern "C" __global__ void product(const T* a, const T* b, float* c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, T, row_major> x;
    fragment<matrix_b, 16, 16, 16, T, col_major> y;
    fragment<accumulator, 16, 16, 16, float> r;
    fill_fragment(r, 0.0f);
    load_matrix_sync(x, a, 16);
    load_matrix_sync(y, b, 16);
    mma_sync(r, x, y, r);
    store_matrix_sync(c, r, 16, mem_row_major);
}

extern "C" __global__ void crowded(const float* x, float* o, int steps) {
    float v[128];
    for (int i = 0; i < 128; i++) v[i] = x[i * 32 + threadIdx.x];
    for (int s = 0; s < steps; s++) {
        float sum = 0;
        for (int i = 0; i < 128; i++) sum += v[i];
        for (int i = 0; i < 128; i++) v[i] = v[i] * sum + v[(i * 7 + 3) % 128];
    }
    for (int i = 0; i < 128; i++) o[i * 32 + threadIdx.x] = v[i];
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) mapped(
    const __grid_constant__ CUtensorMap map, float* const* peers, int64_t n, double d, uint8_t c, short h) {
    peers[0][threadIdx.x] = reinterpret_cast<const char*>(&map)[n] + d + c + h;
}
"""
FILES = {"kernels/k.cu": KERNELS, "kernels/tile.cuh": "__device__ inline float twice(float x) { return 2 * x; }\n"}


def variant(function, *kinds, file="kernels/k.cu", constants=None, **options):
    return KernelVariant(
        language="cuda", file=file, function=function, divisible_by_16=(),
        signature={f"p{n}": kind for n, kind in enumerate(kinds)},
        constexprs=constants or {"TILE": 3, "T": "__nv_bfloat16"},
        options={
            "threads": 256, "max_registers": None, "cluster": 1, "launch_pdl": False, "launch_cooperative_grid": False,
            **options,
        },
    )  # fmt: skip


SCALE = variant("scale", "*fp32", "*bf16", "i32", "fp32", "u1")
MAPPED = variant("mapped", "tensor_map", "peers", "i64", "fp64", "u8", "i16", threads=32, cluster=4)


@pytest.fixture(scope="module")
def made(lab):
    """made(variant, target, files) -> Built, each compiled once."""
    known = {}

    def call(kernel, target=90, files=FILES):
        key = (kernel.digest(), target, tuple(files.items()))
        if key not in known:
            known[key] = build({}, {"kernel": kernel}, lab.run_job, targets=(target,), cuda_files=files)
        return known[key]

    return call


def figures(built):
    assert built.problems == ()
    return built.codes[0], built.audits[0]


def problem(built):
    assert built.codes == () and built.audits == ()
    return built.problems[0]


@pytest.mark.parametrize("target", [90, 103])
def test_a_kernel_is_compiled_and_audited(made, target):
    code, audit = figures(made(SCALE, target))
    assert code.language == "cuda" and code.entry == "scale" and not code.trailing_scratch
    assert code.parameters == ("p0", "p1", "p2", "p3", "p4")
    assert (code.warps, code.ctas, code.shared_bytes) == (8, 1, 0)
    assert audit.threads == 256 and audit.target == f"sm_{target}"
    assert audit.shared_bytes == 64 * 4, "the static part; the dynamic one is the launch's"
    assert audit.registers == int(re.search(r"Function scale:\s+REG:(\d+)", code.resource_usage)[1])
    assert audit.barriers == 1 and audit.mma_types == ()
    assert sum(n for name, n in audit.conversions.items() if name.startswith("F2F") and "BF16" in name) == 1
    assert audit.compiler.startswith("NVRTC 13.") and code.cubin[:4] == b"\x7fELF"
    assert f".target sm_{target}a" in code.ptx
    for other in ("product", "crowded"):
        assert f".entry {other}" not in code.ptx and f"Function : {other}" not in code.sass


@pytest.mark.parametrize(("kind", "expected"), [("__nv_bfloat16", "HMMA.16816.F32.BF16"), ("half", "HMMA.16816.F32")])
def test_matrix_types(made, kind, expected):
    files = FILES | {"kernels/k.cu": "#include <cuda_fp16.h>\n" + KERNELS}
    pointee = {"__nv_bfloat16": "*bf16", "half": "*fp16"}[kind]
    kernel = variant("product", pointee, pointee, "*fp32", threads=32, constants={"TILE": 1, "T": kind})
    assert figures(made(kernel, files=files))[1].mma_types == (expected,)


def test_spills_are_those_of_the_kernel_alone(made):
    kernel = variant("crowded", "*fp32", "*fp32", "i32", threads=32, max_registers=40)
    code, audit = figures(made(kernel))
    assert audit.registers <= 40 and audit.spill_store_bytes > 0 and audit.spill_load_bytes > 0
    assert audit.local_stores > 0
    assert audit.stack_bytes == int(re.search(r"Function crowded:\s+REG:\d+ STACK:(\d+)", code.resource_usage)[1]) > 0
    assert figures(made(SCALE.model_copy(update={"options": SCALE.options | {"max_registers": 40}})))[1].stack_bytes == 0


def test_tensor_maps_tables_and_odd_scalars(made):
    code, _ = figures(made(MAPPED))
    assert code.ctas == 4 and code.parameters[0] == "p0"


def test_equal_input_gives_equal_code(lab, made):
    again = build({}, {"kernel": SCALE}, lab.run_job, targets=(90,), cuda_files=FILES)
    assert again.codes[0].cubin == made(SCALE).codes[0].cubin


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (("*fp32", "*bf16", "i32", "fp32"), "takes 5 arguments, the plan passes 4"),
        (("*fp32", "*bf16", "fp32", "fp32", "u1"), "p2 of scale is fp32"),
        (("*fp32", "*bf16", "i32", "i32", "u1"), "p3 of scale is i32, the kernel takes f32"),
        (("*fp32", "*bf16", "i64", "fp32", "u1"), "p2 of scale is i64"),
        (("*fp32", "*bf16", "i32", "fp64", "u1"), "p3 of scale is fp64"),
        (("*fp32", "*bf16", "i32", "fp32", "i32"), "p4 of scale is i32"),
        (("tensor_map", "*bf16", "i32", "fp32", "u1"), "p0 of scale is tensor_map"),
        (("*fp32", "*bf16", "peers", "fp32", "u1"), "p2 of scale is peers"),
    ],
)
def test_a_plan_that_does_not_fit_the_parameters(made, kinds, words):
    found = problem(made(variant("scale", *kinds)))
    assert found.reason == "compile.signature" and words in found.message


OPTIONS = {
    "threads beyond the kernel's bound": ("compile.threads", "bound to 256", {"threads": 512}),
    "clusters of another size": ("compile.cluster", "clusters of 4, the plan 2", {"cluster": 2}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_plan_that_does_not_fit_the_bounds(made, name):
    reason, words, options = OPTIONS[name]
    kernel = MAPPED if "cluster" in options else SCALE
    found = problem(made(kernel.model_copy(update={"options": kernel.options | options})))
    assert found.reason == reason and words in found.message


def test_more_registers_than_a_block_has(made):
    kernel = variant("crowded", "*fp32", "*fp32", "i32", threads=1024)
    found = problem(made(kernel))
    assert found.reason == "compile.out_of_resources" and "65536" in found.message


def test_the_error_names_file_and_line_and_nothing_of_this_machine(made):
    source = '#include "tile.cuh"\n\nextern "C" __global__ void k(float* x) {\n    *x = nowhere;\n}\n'
    found = problem(made(variant("k", "*fp32", file="k.cu"), files={"k.cu": source, "tile.cuh": "int ok = bad;\n"}))
    assert found.reason == "compile.error"
    assert "k.cu(4)" in found.message and '"nowhere" is undefined' in found.message
    assert "tile.cuh(1)" in found.message and "site-packages" not in found.message


def test_a_flood_of_errors_is_bounded(made):
    source = "".join(f"int x{n} = y{n};\n" for n in range(2000))
    assert len(problem(made(variant("k", "*fp32", file="k.cu"), files={"k.cu": source})).message) < 5000


@pytest.mark.parametrize(
    "source",
    ["", "__global__ void k(float* x) {}", "template <int N> __global__ void k(float* x) {}", "__device__ int k;"],
)
def test_a_kernel_that_is_not_there(made, source):
    found = problem(made(variant("k", "*fp32", file="k.cu"), files={"k.cu": source}))
    assert found.reason == "compile.no_kernel" and "'k'" in found.message


def test_a_template_is_chosen_by_a_macro(made):
    source = """
template <int N> __device__ void fill(float* x) { for (int i = 0; i < N; i++) x[i] = N; }
extern "C" __global__ void k(float* x) { fill<SIZE>(x); }
"""
    kernel = variant("k", "*fp32", file="k.cu", constants={"SIZE": 4, "UNUSED": 0.5, "FLAG": True})
    code, _ = figures(made(kernel, files={"k.cu": source}))
    assert len(re.findall(r"\bSTG", code.sass)) == 4


@pytest.mark.parametrize("header", ["stdio.h", "cooperative_groups.h", "math_constants.h"])
def test_headers_that_kernels_take_for_granted(made, header):
    source = f'#include <{header}>\nextern "C" __global__ void k(float* x) {{ *x = 1; }}\n'
    figures(made(variant("k", "*fp32", file="k.cu"), files={"k.cu": source}))


@pytest.mark.parametrize("missing", ["cuda.bindings", "cuda.pathfinder"])
def test_without_a_compiler_nothing_is_said_of_the_kernel(lab, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    (found,) = build({}, {"kernel": SCALE}, lab.run_job, targets=(90,), cuda_files=FILES).problems
    assert found.reason == "compile.no_cuda_compiler" and "fasttrack[cuda]" in found.message
