// The exchange alone: out = residual + the sum of all ranks' shares, in rank order, in float32, rounded once.
//
// Grid (rows, kSlices), 1024 / kSlices threads: a thread has one word of a row. counts[row] is how often the row has been
// exchanged; the kernel that runs next on this stream adds one (advance). A rank's own share is rounded like its peers',
// so that all ranks sum the same values in the same order and hold the same stream, bit for bit.
#include "mailbox.cuh"

extern "C" __global__ void exchange(
    const float* share, const __nv_bfloat16* residual, __nv_bfloat16* out, const uint32_t* counts,
    mailbox::Word* const* boxes, int* const* healths, int rank, int ranks, int rows) {
    const int row = blockIdx.x, index = blockIdx.y * blockDim.x + threadIdx.x;
    const uint32_t count = counts[row];
    const mailbox::Mailbox box(boxes, healths, rank, ranks, rows);
    const size_t at = static_cast<size_t>(row) * mailbox::kWords * mailbox::kValues + index * mailbox::kValues;
    float own[mailbox::kValues], sum[mailbox::kValues], other[mailbox::kValues];
#pragma unroll
    for (int i = 0; i < mailbox::kValues; ++i) own[i] = share[at + i];
    box.publish(row, index, own, count);
#pragma unroll
    for (int i = 0; i < mailbox::kValues; ++i) sum[i] = 0;
    for (int source = 0; source < ranks; ++source) {
        if (source != rank && !box.take(row, source, index, count, other)) return;
#pragma unroll
        for (int i = 0; i < mailbox::kValues; ++i)
            sum[i] += source == rank ? __bfloat162float(__float2bfloat16_rn(own[i])) : other[i];
    }
#pragma unroll
    for (int i = 0; i < mailbox::kValues; ++i)
        out[at + i] = __float2bfloat16_rn(sum[i] + __bfloat162float(residual[at + i]));
}

// Counts an exchange of the first `rows` rows; on the exchange's stream, behind it.
extern "C" __global__ void advance(uint32_t* counts, int rows) {
    if (threadIdx.x < rows) counts[threadIdx.x] += 1;
}
