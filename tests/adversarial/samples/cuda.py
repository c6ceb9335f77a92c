"""The honest kernel of the toy op in CUDA C++, which hands its weights over in shared memory: what samples edit."""

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
HONEST = {"plain": KERNEL, "constant table": replaced(replaced(KERNEL, *TABLE), *USES_TABLE)}


def candidate(kernel: str) -> Candidate:
    """The candidate with this text for its kernel."""
    return Candidate(op="accumulate", entry="kernel.py", files={"kernel.py": LAUNCH, "accumulate.cu": kernel})
