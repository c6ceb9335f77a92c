// What ranks hand each other within a step, in one launch a time, fused with what a rank does next.
//
//     exchange   residual + the sum of all ranks' shares (or: every rank's columns side by side); the new stream. With MIX
//                also the AttnRes mix of the banked streams and it, and the norm behind the mix.
//     gather     what every rank sends this one, side by side in plain memory.
//     prefetch   brings memory into the L2 that the next product reads; runs beside the others and writes nothing.
//
// Grid (8, rows) of 128 threads, eight blocks a cluster: a cluster has a row, a thread one of its 1024 words. counts[row] is
// how often the row has been exchanged; the cluster itself adds one when all its threads have read it. Shares are bf16 and
// added in rank order in float32, a rank's own among them, so that all ranks hold the same stream, bit for bit. Registers
// are bounded so that the clusters of 64 rows can all be there at once: a row that waits for a place makes its peers wait.
#include "cluster.cuh"
#include "mailbox.cuh"

using mailbox::kValues;
using mailbox::kWords;

constexpr int kHidden = kWords * kValues;
[[maybe_unused]] constexpr int kBanks = 8;

__device__ __forceinline__ float wide(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
__device__ __forceinline__ uint16_t narrow(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }

__device__ __forceinline__ void load(const uint16_t* from, uint16_t (&bits)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) bits[i] = from[i];
}

// Reads the row's count, which the cluster raises by one behind everybody's back: pairs with `counted`.
__device__ __forceinline__ uint32_t count_of(const uint32_t* counts, int row) {
    const uint32_t count = counts[row];
    cluster::arrive();
    return count;
}

__device__ __forceinline__ void counted(uint32_t* counts, int row, uint32_t count) {
    cluster::wait();
    if (blockIdx.x == 0 && threadIdx.x == 0) counts[row] = count + 1;
}

// What a health word stopped leaves `out` as it was: the step is void.
extern "C" __global__ void __cluster_dims__(cluster::kBlocks, 1, 1) __launch_bounds__(cluster::kThreads, 4) exchange(
    const uint16_t* share, int share_stride, const uint16_t* residual, int residual_stride, uint16_t* out,
    const uint16_t* banks, int bank_count, int bank_stride, int bank_row_stride,
    const uint16_t* res_norm, const uint16_t* res_proj, const uint16_t* out_norm, uint16_t* x,
    uint32_t* counts, mailbox::Word* const* boxes, int* const* healths, int rank, int ranks, int rows, int gathers) {
    const int row = blockIdx.y, index = blockIdx.x * cluster::kThreads + threadIdx.x, column = index * kValues;
    const mailbox::Mailbox box(boxes, healths, rank, ranks, rows);
    const uint32_t count = count_of(counts, row);
    const int words = kWords / ranks;  // of one rank's columns
    const int owner = gathers ? index / words : rank;
    uint16_t own[kValues], bits[kValues];
    if (owner == rank) {
        load(share + static_cast<size_t>(row) * share_stride + column - (gathers ? rank * words * kValues : 0), own);
        box.publish(row, index, own, count);
    }
    float before[kValues] = {};
    if (residual) {
        load(residual + static_cast<size_t>(row) * residual_stride + column, bits);
#pragma unroll
        for (int i = 0; i < kValues; ++i) before[i] = wide(bits[i]);
    }
#ifdef MIX
    // All that does not need the peers, while their words are on their way.
    __shared__ cluster::Sums<2 * kBanks> bank_sums;
    __shared__ cluster::Sums<2> stream_sums;
    __shared__ cluster::Sums<1> mixed_sums;
    uint16_t sources[kBanks][kValues];
    float query[kValues], weight[kValues];
    {
        uint16_t other[kValues];
        load(res_norm + column, bits), load(res_proj + column, other);
#pragma unroll
        for (int i = 0; i < kValues; ++i) query[i] = wide(bits[i]) * wide(other[i]);
        load(out_norm + column, bits);
#pragma unroll
        for (int i = 0; i < kValues; ++i) weight[i] = wide(bits[i]);
        float sums[2 * kBanks] = {};
#pragma unroll
        for (int bank = 0; bank < kBanks; ++bank) {
            if (bank >= bank_count) continue;
            load(banks + static_cast<size_t>(bank) * bank_stride + static_cast<size_t>(row) * bank_row_stride + column,
                 sources[bank]);
#pragma unroll
            for (int i = 0; i < kValues; ++i) {
                const float value = wide(sources[bank][i]);
                sums[2 * bank] += value * query[i], sums[2 * bank + 1] += value * value;
            }
        }
        counted(counts, row, count);
        bank_sums.start(sums, 2 * bank_count);
    }
#else
    counted(counts, row, count);
#endif
    float sum[kValues] = {};
    bool taken = true;
    for (int source = 0; source < ranks && taken; ++source) {
        if (gathers && source != owner) continue;
        if (source == rank) {
#pragma unroll
            for (int i = 0; i < kValues; ++i) sum[i] += wide(own[i]);
        } else if ((taken = box.take(row, source, index, count, bits))) {
#pragma unroll
            for (int i = 0; i < kValues; ++i) sum[i] += wide(bits[i]);
        }
    }
    uint16_t stream[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) stream[i] = narrow(sum[i] + before[i]);
    if (taken) {
        uint16_t* to = out + static_cast<size_t>(row) * kHidden + column;
#pragma unroll
        for (int i = 0; i < kValues; ++i) to[i] = stream[i];
    }
#ifdef MIX
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
        const float value = wide(stream[i]);
        sums[0] += value * query[i], sums[1] += value * value;
    }
    stream_sums.start(sums, 2);
    cluster::arrive(), cluster::wait();
    bank_sums.finish(2 * bank_count), stream_sums.finish(2);
    const auto logit = [](const float* pair) { return pair[0] * rsqrtf(pair[1] / kHidden + NORM_EPS); };
    const float last = logit(stream_sums.all);
    float largest = last;
    for (int bank = 0; bank < bank_count; ++bank) largest = fmaxf(largest, logit(bank_sums.all + 2 * bank));
    const float own_part = expf(last - largest);
    float total = own_part, mixed[kValues], square[1] = {};
#pragma unroll
    for (int i = 0; i < kValues; ++i) mixed[i] = own_part * wide(stream[i]);
#pragma unroll
    for (int bank = 0; bank < kBanks; ++bank) {
        if (bank >= bank_count) continue;
        const float part = expf(logit(bank_sums.all + 2 * bank) - largest);
        total += part;
#pragma unroll
        for (int i = 0; i < kValues; ++i) mixed[i] += part * wide(sources[bank][i]);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) mixed[i] /= total, square[0] += mixed[i] * mixed[i];
    mixed_sums.start(square, 1);
    cluster::arrive(), cluster::wait();
    mixed_sums.finish(1);
    const float scale = rsqrtf(mixed_sums.all[0] / kHidden + NORM_EPS);
    if (taken) {
        uint16_t* to = x + static_cast<size_t>(row) * kHidden + column;
#pragma unroll
        for (int i = 0; i < kValues; ++i) to[i] = narrow(mixed[i] * scale * weight[i]);
    }
#endif
}

// One thing that ranks send each other: `width` 16-bit values a row and peer, strides in values. What goes to peer p begins
// at from + p * from_peer; what comes from rank r goes to to + r * to_rank. `keeps`: this rank's own is copied as well.
struct Parcel {
    const uint16_t* from;
    uint16_t* to;
    int width, from_row, from_peer, to_row, to_rank, keeps;

    __device__ int words() const { return (width + kValues - 1) / kValues; }

    __device__ void pass(const mailbox::Mailbox& box, int row, int word, int index, uint32_t count, int rank, int ranks) const {
        const int first = word * kValues;
        uint16_t bits[kValues] = {};
        for (int step = keeps ? 0 : 1; step < ranks; ++step) {
            const int peer = (rank + step) % ranks;
            const uint16_t* at = from + static_cast<size_t>(row) * from_row + static_cast<size_t>(peer) * from_peer + first;
#pragma unroll
            for (int i = 0; i < kValues; ++i) bits[i] = first + i < width ? at[i] : 0;
            if (step) box.send(peer, row, index, bits, count);
            else store(row, rank, first, bits);
        }
        for (int source = 0; source < ranks; ++source)
            if (source != rank) {
                if (!box.take(row, source, index, count, bits)) return;
                store(row, source, first, bits);
            }
    }

    __device__ void store(int row, int source, int first, const uint16_t (&bits)[kValues]) const {
        uint16_t* at = to + static_cast<size_t>(row) * to_row + static_cast<size_t>(source) * to_rank + first;
#pragma unroll
        for (int i = 0; i < kValues; ++i)
            if (first + i < width) at[i] = bits[i];
    }
};

// Two parcels of a row share its words, the second behind the first; a width of 0 is none.
extern "C" __global__ void __cluster_dims__(cluster::kBlocks, 1, 1) __launch_bounds__(cluster::kThreads) gather(
    const uint16_t* from_1, uint16_t* to_1, int width_1, int from_row_1, int from_peer_1, int to_row_1, int to_rank_1, int keeps_1,
    const uint16_t* from_2, uint16_t* to_2, int width_2, int from_row_2, int from_peer_2, int to_row_2, int to_rank_2, int keeps_2,
    uint32_t* counts, mailbox::Word* const* boxes, int* const* healths, int rank, int ranks, int rows) {
    const int row = blockIdx.y, index = blockIdx.x * cluster::kThreads + threadIdx.x;
    const Parcel first{from_1, to_1, width_1, from_row_1, from_peer_1, to_row_1, to_rank_1, keeps_1};
    const Parcel second{from_2, to_2, width_2, from_row_2, from_peer_2, to_row_2, to_rank_2, keeps_2};
    const mailbox::Mailbox box(boxes, healths, rank, ranks, rows);
    const uint32_t count = count_of(counts, row);
    const int before = first.words();
    if (index < before) first.pass(box, row, index, index, count, rank, ranks);
    else if (index < before + second.words()) second.pass(box, row, index - before, index, count, rank, ranks);
    counted(counts, row, count);
}

// 16 KiB a thread.
extern "C" __global__ void prefetch(const char* from, unsigned long long bytes) {
    constexpr unsigned kPiece = 16384;
    const unsigned long long at = (static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x) * kPiece;
    if (at < bytes) {
        const unsigned size = static_cast<unsigned>(bytes - at < kPiece ? bytes - at : kPiece) & ~15u;
        if (size) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + at), "r"(size) : "memory");
    }
}
