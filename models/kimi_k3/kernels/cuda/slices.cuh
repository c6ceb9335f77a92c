// The slices of rows' attention, put together: 256 latents of one head for each row of the batch, as the operand of a
// product.
//
// Every slice leaves, for each head, sums under a maximum of its own, that maximum and its total. Under the common
// maximum m:
//
//     context = sum_s 2^(m_s - m) sums_s / sum_s 2^(m_s - m) total_s
#pragma once
#include "latent_attention.cuh"
#include "tagged_floats.cuh"

struct SliceCells {
    static constexpr int kMaximum = HEADS * kLatent;      // (maximum, total) of each head, behind the sums
    static constexpr int kCells = HEADS * (kLatent + 2);  // of a slice
    unsigned long long* cells;

    __device__ void send_sum(int item, int head, int latent, float sum, uint32_t epoch) const {
        send(cells + item * kCells + head * kLatent + latent, sum, epoch);
    }

    __device__ void send_total(int item, int head, float largest, float total, uint32_t epoch) const {
        send(cells + item * kCells + kMaximum + 2 * head, largest, epoch);
        send(cells + item * kCells + kMaximum + 2 * head + 1, total, epoch);
    }
};

class Contexts {
public:
    static constexpr int kWidth = 256;             // latents at a time
    static constexpr int kPitch = kWidth + 8;      // bf16 of a row
    static constexpr int kScratchFloats = 512 + 8 * kWidth + 8 * kPitch / 2;
    static_assert(2 * BLOCKS <= 512, "each slice has its maximum and its share");

    // `counts`: slices of each row, in shared memory. `scratch`: kScratchFloats.
    __device__ Contexts(SliceCells cells, const int* counts, int rows, int blocks_of_row, float* scratch)
        : cells_(cells), counts_(counts), rows_(rows), blocks_(blocks_of_row), shares_(scratch),
          sums_(scratch + 512), contexts_(reinterpret_cast<__nv_bfloat16*>(scratch + 512 + 8 * kWidth)) {}

    // 256 latents of a head from `first` on. By all consumers, between barriers; another one must pass before
    // contexts() is read. What slices count for is asked for together with the first sums, and follows while these
    // wait in registers.
    __device__ void load(int head, int first, uint32_t epoch, unsigned long long* health) const {
        // 64 threads take four latents each of some of a row's slices: the fewer rows, the more share one.
        constexpr int kEach = kWidth / 64, kAtOnce = 2, kSums = kAtOnce * kEach;
        const int sharers = rows_ == 1 ? 8 : rows_ == 2 ? 4 : rows_ <= 4 ? 2 : 1;
        const int group = threadIdx.x >> 6, latent = threadIdx.x & 63, row = group / sharers;
        const int count = row < rows_ ? counts_[row] : 0, item = threadIdx.x, item_row = item / blocks_;
        const bool weighs = item_row < rows_ && item % blocks_ < counts_[item_row];
        const unsigned long long* sums_of_row =
            cells_.cells + row * blocks_ * SliceCells::kCells + head * kLatent + first + latent;
        const unsigned long long* scalars = cells_.cells + item * SliceCells::kCells + SliceCells::kMaximum + 2 * head;
        float found[kSums + 2];
        int slice = group % sharers;
        if (count > 0 || weighs) {
            const unsigned long long* from[kSums + 2];
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                from[i] = count > 0 ? sum_at(sums_of_row, slice + i / kEach * sharers, count, i % kEach) : scalars;
            from[kSums] = weighs ? scalars : from[0];
            from[kSums + 1] = weighs ? scalars + 1 : from[0];
            receive_all(from, found, epoch, health);
        }
        if (weighs) shares_[BLOCKS + item] = found[kSums], shares_[item] = found[kSums + 1];
        sync_consumers();
        weigh();
        sync_consumers();
        float sum[kEach] = {};
        while (slice < count) {
#pragma unroll
            for (int i = 0; i < kSums; ++i) {
                const int at = slice + i / kEach * sharers;
                if (at < count) sum[i % kEach] += found[i] * shares_[row * blocks_ + at];
            }
            slice += kAtOnce * sharers;
            if (slice >= count) break;
            const unsigned long long* from[kSums];
            float more[kSums];
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                from[i] = sum_at(sums_of_row, slice + i / kEach * sharers, count, i % kEach);
            receive_all(from, more, epoch, health);
#pragma unroll
            for (int i = 0; i < kSums; ++i) found[i] = more[i];
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) sums_[group * kWidth + latent + i * 64] = sum[i];
        sync_consumers();
        for (int i = threadIdx.x; i < rows_ * kWidth; i += kConsumers) {
            const int at = i / kWidth, column = i % kWidth;
            float context = 0;
            for (int part = 0; part < sharers; ++part) context += sums_[(at * sharers + part) * kWidth + column];
            contexts_[at * kPitch + column] = __float2bfloat16(context);
        }
    }

    // [rows, kPitch]
    __device__ const __nv_bfloat16* contexts() const { return contexts_; }

private:
    // The cell of a slice's sum, of the last slice where there are fewer.
    __device__ static const unsigned long long* sum_at(
        const unsigned long long* row, int slice, int count, int latent) {
        return row + min(slice, count - 1) * SliceCells::kCells + latent * 64;
    }

    // Maxima and totals become what each slice counts for.
    __device__ void weigh() const {
        const float* largest = shares_ + BLOCKS;
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        if (warp >= rows_) return;
        const int count = counts_[warp], first = warp * blocks_;
        float highest = __int_as_float(0xff800000), total = 0;
        for (int i = lane; i < count; i += 32) highest = fmaxf(highest, largest[first + i]);
#pragma unroll
        for (int other = 16; other; other >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, other));
        for (int i = lane; i < count; i += 32) total += shares_[first + i] * exp2f(largest[first + i] - highest);
        total = warp_sum(total);
        for (int i = lane; i < count; i += 32) shares_[first + i] = exp2f(largest[first + i] - highest) / total;
    }

    SliceCells cells_;
    const int* counts_;
    int rows_, blocks_;
    float* shares_;              // [BLOCKS], totals first; then as many maxima
    float* sums_;                // [8][kWidth]
    __nv_bfloat16* contexts_;
};
