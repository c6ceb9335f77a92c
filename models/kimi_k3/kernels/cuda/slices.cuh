// The slices of rows' attention, put together: 256 latents of one head for each row of the batch, as the operand of a product.
//
// Every slice leaves, for each head, sums under a maximum of its own, that maximum and its total. Under the common maximum m:
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

    // What each slice counts for in a head. By all consumers; another barrier must pass before load().
    __device__ void weigh(int head, uint32_t epoch, unsigned long long* health) const {
        float* largest = shares_ + BLOCKS;
        const int item = threadIdx.x, row = item / blocks_;
        if (row < rows_ && item % blocks_ < counts_[row]) {
            const unsigned long long* from = cells_.cells + item * SliceCells::kCells + SliceCells::kMaximum + 2 * head;
            const unsigned long long* const both[2] = {from, from + 1};
            float values[2];
            receive_all(both, values, epoch, health);
            largest[item] = values[0], shares_[item] = values[1];
        }
        sync_consumers();
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

    // Latents from `first` on. By all consumers, between barriers; another one must pass before context() is read.
    __device__ void load(int head, int first, uint32_t epoch, unsigned long long* health) const {
        // 64 threads take four latents each of some of a row's slices: the fewer rows, the more share one.
        constexpr int kGroups = kConsumers / 64, kEach = kWidth / 64, kAtOnce = 2;
        const int sharers = rows_ == 1 ? 8 : rows_ == 2 ? 4 : rows_ <= 4 ? 2 : 1;
        const int group = threadIdx.x >> 6, latent = threadIdx.x & 63, row = group / sharers;
        float sum[kEach] = {};
        const int count = row < rows_ ? counts_[row] : 0;
        for (int start = group % sharers; start < count; start += kAtOnce * sharers) {
            const unsigned long long* from[kAtOnce * kEach];
            float found[kAtOnce * kEach];
#pragma unroll
            for (int i = 0; i < kAtOnce * kEach; ++i) {
                const int slice = min(start + i / kEach * sharers, count - 1);
                from[i] = cells_.cells + (row * blocks_ + slice) * SliceCells::kCells + head * kLatent + first + latent +
                          i % kEach * 64;
            }
            receive_all(from, found, epoch, health);
#pragma unroll
            for (int i = 0; i < kAtOnce * kEach; ++i) {
                const int slice = start + i / kEach * sharers;
                if (slice < count) sum[i % kEach] += found[i] * shares_[row * blocks_ + slice];
            }
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
    SliceCells cells_;
    const int* counts_;
    int rows_, blocks_;
    float* shares_;              // [BLOCKS], then as many maxima
    float* sums_;                // [8][kWidth]
    __nv_bfloat16* contexts_;
};
