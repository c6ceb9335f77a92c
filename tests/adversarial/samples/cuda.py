"""Honest kernels of the toy op in CUDA C++, which hand their weights over in shared memory: what samples edit."""

from judging import replaced

from fasttrack_validation.judge.candidate import Candidate

LAUNCH = """
def launch(ctx, buffers, axes, config):
    accumulate = ctx.cuda("accumulate.cu", "accumulate", threads=64, constants={"WIDTH": 64})
    accumulate[(axes["rows"],)](
        buffers.x, buffers.w, buffers.slots, buffers.acc, buffers.out, buffers.x.stride(0), buffers.acc.stride(0),
    )
"""
BARRIER = "    __syncthreads();\n"
# Long enough for the other warp, whenever it was looked at: only a tool that knows what orders accesses sees the race.
NAP = "    __nanosleep(100000);\n"
KERNEL = """
#include <cuda_bf16.h>

extern "C" __global__ void accumulate(
    const __nv_bfloat16* x, const float* w, const int* slots, float* acc, __nv_bfloat16* out, int x_stride, int page) {
    __shared__ volatile float tile[WIDTH];
    int row = blockIdx.x, column = threadIdx.x, slot = slots[row];
    tile[WIDTH - 1 - column] = w[WIDTH - 1 - column];
    __syncthreads();
    float value = 0;
    if (slot > 0) {
        float* cell = acc + (long long)slot * page + column;
        *cell = value = *cell + __bfloat162float(x[row * x_stride + column]) * tile[column];
    }
    out[row * WIDTH + column] = __float2bfloat16(value);
}
"""
# A kernel keeps for good what it computed first, in a variable of its module.
REMEMBERS = (
    "float value = 0;",
    "float value = 0;\n    static int calls;\n    if (calls) slot = 0;\n    if (column == 0) calls = 1;",
)
TABLE = ("#include <cuda_bf16.h>\n", "#include <cuda_bf16.h>\n\n__constant__ float one[2] = {1, 1};\n")
"""An honest twin: a table that no kernel can write."""
USES_TABLE = ("* tile[column];", "* tile[column] * one[column & 1];")

# The same op by specialised warps: one brings rows of x into a ring of two stages by bulk copies, two take them out. Full
# and empty stages are told by barriers in shared memory, and the two that compute hand weights over behind a named
# barrier. A stage that is told to be empty has been read: the copy into it writes through another proxy, so a fence
# stands between.
RING_LAUNCH = """
def launch(ctx, buffers, axes, config):
    ring = ctx.cuda("ring.cu", "ring", threads=96, constants={"WIDTH": 64})
    ring[(1,)](
        buffers.x, buffers.w, buffers.slots, buffers.acc, buffers.out, buffers.x.stride(0), buffers.acc.stride(0),
        axes["rows"],
    )
"""
FENCE = '        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n'
NAMED_BARRIER = '    asm volatile("bar.sync 1, 64;" ::: "memory");\n'
RING = """
#include <cuda_bf16.h>

constexpr int STAGES = 2, ROW_BYTES = 2 * WIDTH, SPINS = 1 << 22;

__device__ unsigned address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

__device__ void initialise(unsigned long long* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(address(barrier)), "r"(arrivals) : "memory");
}

__device__ void wait(unsigned long long* barrier, unsigned parity) {
    for (int spin = 0; spin < SPINS; ++spin) {
        unsigned done;
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(address(barrier)), "r"(parity) : "memory");
        if (done) return;
    }
    __trap();
}

extern "C" __global__ void ring(
    const __nv_bfloat16* x, const float* w, const int* slots, float* acc, __nv_bfloat16* out, int x_stride, int page,
    int rows) {
    __shared__ alignas(128) __nv_bfloat16 stages[STAGES][WIDTH];
    __shared__ volatile float tile[WIDTH];
    __shared__ alignas(8) unsigned long long full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            initialise(&full[stage], 1);
            initialise(&empty[stage], WIDTH);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x != 0) return;
        for (int row = 0; row < rows; ++row) {
            int stage = row % STAGES, turn = row / STAGES & 1;
            wait(&empty[stage], turn ^ 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                :: "r"(address(&full[stage])), "r"(ROW_BYTES) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                :: "r"(address(stages[stage])), "l"(x + (long long)row * x_stride), "r"(ROW_BYTES),
                "r"(address(&full[stage])) : "memory");
        }
        return;
    }
    int column = threadIdx.x - 32;
    tile[WIDTH - 1 - column] = w[WIDTH - 1 - column];
    asm volatile("bar.sync 1, 64;" ::: "memory");
    for (int row = 0; row < rows; ++row) {
        int stage = row % STAGES, turn = row / STAGES & 1, slot = slots[row];
        wait(&full[stage], turn);
        float given = __bfloat162float(stages[stage][column]), value = 0;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(address(&empty[stage])) : "memory");
        if (slot > 0) {
            float* cell = acc + (long long)slot * page + column;
            *cell = value = *cell + given * tile[column];
        }
        out[row * WIDTH + column] = __float2bfloat16(value);
    }
}
"""
HONEST = {
    "plain": {"kernel.py": LAUNCH, "accumulate.cu": KERNEL},
    "constant table": {"kernel.py": LAUNCH, "accumulate.cu": replaced(replaced(KERNEL, *TABLE), *USES_TABLE)},
    "specialised warps": {"kernel.py": RING_LAUNCH, "ring.cu": RING},
}


def candidate(files: dict[str, str]) -> Candidate:
    """The candidate of these files."""
    return Candidate(op="accumulate", entry="kernel.py", files=files)
