"""The serving side of `ctx`: parameters' bytes anywhere; launches with attributes, maps and tables on a GPU."""

import struct

import pytest
import torch
from cuda.pathfinder import DynamicLibNotFoundError
from fasttrack_models.kimi_k3 import launcher
from fasttrack_models.kimi_k3.standard_headers import STANDARD_HEADERS
from fasttrack_validation.judge.device_code.standard_headers import STANDARD_HEADERS as judged

SOURCE = {
    "kernels/flags.cu": r"""
#include "flags.cuh"
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void sum(const float* a, float* const* peers, unsigned long long much, int ranks, float* out) {
    asm volatile("griddepcontrol.wait;");
    unsigned blocks;
    asm("mov.u32 %0, %cluster_nctarank;" : "=r"(blocks));
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float total = a[i] + (much >> 40) + SCALE * blocks;
    for (int rank = 0; rank < ranks; rank++) total += peers[rank][i];
    out[i] = total;
}
extern "C" __global__ void box(const __grid_constant__ Map map, float* out) {
    __shared__ alignas(128) float held[32];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned b = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(held);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b));
        asm volatile("fence.proxy.async;");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" :: "r"(b) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     :: "r"(to), "l"(&map), "r"(16), "r"(1), "r"(b) : "memory");
    }
    __syncthreads();
    for (int turn = 0; turn < 1000000; turn++) {
        unsigned done;
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(b) : "memory");
        if (done) break;
    }
    out[threadIdx.x] = held[threadIdx.x];
}
""",
    "kernels/flags.cuh": "#define SCALE 100.0f\n",
}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (7, struct.pack("<i", 7)), (-1, struct.pack("<i", -1)), (True, b"\x01"), (0.5, struct.pack("<f", 0.5)),
        (launcher.Scalar("u64", 2**63 + 5), struct.pack("<Q", 2**63 + 5)), (launcher.Scalar("i8", -3), struct.pack("<b", -3)),
        (launcher.Scalar("fp64", 0.1), struct.pack("<d", 0.1)), (launcher.Scalar("u16", 65535), struct.pack("<H", 65535)),
    ],
)  # fmt: skip
def test_parameters_are_what_a_c_compiler_would_pass(argument, expected):
    assert bytes(launcher.packed(argument).tolist()) == expected


def test_a_tensor_is_its_address_behind_its_offset():
    whole = torch.zeros(10)
    assert bytes(launcher.packed(whole[3:]).tolist()) == struct.pack("<Q", whole.data_ptr() + 12)


@pytest.mark.parametrize("argument", [2**31, launcher.Scalar("u8", 256)])
def test_a_number_that_its_type_cannot_hold_is_an_error(argument):
    with pytest.raises((RuntimeError, OverflowError)):
        launcher.packed(argument)


def test_what_no_kernel_takes_is_named():
    with pytest.raises(TypeError, match="ctx.scalar"):
        launcher.packed("text")


def test_sources_find_the_headers_that_they_are_judged_with():
    assert STANDARD_HEADERS == judged


def test_a_source_with_headers_compiles_as_the_serving_side_compiles_it():
    """Beside it, by its path, and what a compiler without a host lacks."""
    cuda_driver = pytest.importorskip("fasttrack_models.kimi_k3.cuda_driver")
    text = '#include <stdint.h>\n#include "flags.cuh"\n#include "kernels/flags.cuh"\n#include <cuda_bf16.h>\n'
    text += 'extern "C" __global__ void k(uint64_t* p) { *p = SCALE + MORE; }'
    sources = SOURCE | {"kernels/k.cu": text}
    try:
        for target in ("sm_90a", "sm_103a"):
            assert cuda_driver.compiled(sources, "kernels/k.cu", [f"-arch={target}", "-DMORE=2"])
        with pytest.raises(cuda_driver.CompileError, match="kernels/k.cu(.|\n)*MORE"):
            cuda_driver.compiled(sources, "kernels/k.cu", ["-arch=sm_90a"])
    except DynamicLibNotFoundError:
        pytest.skip("needs NVRTC")


def facts():
    return launcher.Hardware("h200", 90, 132, 232448)


def test_waiting_for_a_stream_that_nothing_was_launched_on_is_an_error():
    with pytest.raises(ValueError, match="nothing was launched"):
        launcher.ServingContext(facts(), {}).wait("shared")


def test_a_kernel_is_bound_once():
    context = launcher.ServingContext(facts(), SOURCE)
    one = context.cuda("kernels/flags.cu", "sum", threads=32)
    assert context.cuda("kernels/flags.cu", "sum", threads=32) is one
    assert context.cuda("kernels/flags.cu", "sum", threads=64) is not one


def launched_and_captured() -> dict[str, bool]:
    """Each mechanism against hand-computed results, launched directly and from a graph."""
    context = launcher.ServingContext(launcher.hardware("h200"), SOURCE)
    a, out, boxed = torch.arange(128.0, device="cuda"), torch.zeros(128, device="cuda"), torch.zeros(32, device="cuda")
    peers = [torch.full((128,), float(value), device="cuda") for value in (1000, 2000)]
    add = context.cuda("kernels/flags.cu", "sum", threads=32, cluster=2, cooperative=True)
    after = context.cuda("kernels/flags.cu", "sum", threads=32, pdl=True)
    second = torch.zeros(128, device="cuda")
    box = context.cuda("kernels/flags.cu", "box", threads=32)

    def run() -> None:
        much = context.scalar("u64", 7 << 40)
        add[(4,)](a, context.peers(peers), much, 2, out)
        with context.stream("side"):
            box[1](context.tensor_map(a.view(2, 64), (1, 32)), boxed)
        after[4](out, context.peers(peers), much, 0, second)
        context.wait("side")

    run()
    torch.cuda.synchronize()
    found = {}
    expected = torch.arange(128.0) + 7 + 200 + 3000

    def look(how: str) -> None:
        found[f"{how}: cluster, cooperative, peers, scalar"] = bool((out.cpu() == expected).all())
        found[f"{how}: dependent launch"] = bool((second.cpu() == expected + 7 + 100).all())
        found[f"{how}: tensor map on a side stream"] = bool((boxed.cpu() == torch.arange(80.0, 112.0)).all())

    look("direct")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for tensor in (out, second, boxed):
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    look("graph")
    return found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_launches_with_every_attribute_directly_and_captured():
    wrong = [what for what, right in launched_and_captured().items() if not right]
    assert wrong == []


if __name__ == "__main__":
    print(launched_and_captured())
