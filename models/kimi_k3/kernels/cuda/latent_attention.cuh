// Attention of all heads over one slice of a row's cached latent rows, each of which is key and value of every head.
//
// Cached rows depend on nothing that is computed but for the newest one, so they come through the ring of the weights,
// a unit of 16 rows a slot, in front of the stage that needs them. The tensor cores take the cached rows as first
// operand and the heads, in groups of eight, as second:
//
//     scores  S^T [16 rows, 8 heads] = C [16 rows, 576] Q^T
//     values  O^T [16 latents, 8 heads] = C^T [16 latents, 16 rows] P^T
//
// A slot is read twice from shared memory, once from global memory.
//
// Up to four units at a time. Scores: a warp takes a quarter of k and one unit, or two units and one of two groups of
// heads. Softmax: a warp takes one head, its running maximum and its total. Values: a warp takes 32 latents of all
// heads. Scores, maximum and sums are float32, in powers of two; probabilities are rounded to bfloat16 as an operand.
#pragma once
#include "block.cuh"
#include "mma.cuh"
#include "weight_ring.cuh"

constexpr int kLatent = 512, kSharedKey = 64, kCached = kLatent + kSharedKey;
constexpr int kTokens = 16;                   // cached rows of a unit
constexpr int kTogether = 4;                  // units at a time
constexpr int kRowBytes = 2 * kCached;
// Two cached rows come as one copy, since the copy engine takes its time for each. Matrices of eight rows are read from
// shared memory, one row of each pair, and pairs begin in different banks: row `t` of the cache is row place_of(t) of the
// products.
constexpr int kCopies = kTokens / 2, kCopyBytes = 2 * kRowBytes, kCopyPitch = kCopyBytes + 16;
constexpr int kSlotBytes = kCopies * kCopyPitch;
__device__ constexpr int place_of(int t) { return t / kTokens * kTokens + t % 2 * kCopies + t % kTokens / 2; }
__device__ constexpr int bytes_to(int i) { return i % kCopies * kCopyPitch + i / kCopies * kRowBytes; }
static_assert(PAGE % kTokens == 0, "a unit lies in one page");
static_assert(HEADS <= kWarps, "a warp takes one head");

// How a row's units are cut into slices: by its length and the number of rows alone, at most `blocks` of them.
struct Slices {
    int units, each, count;
    __device__ Slices(int length, int blocks) {
        units = length > 0 ? (length + kTokens - 1) / kTokens : 0;
        each = max((units + blocks - 1) / blocks, LEAST_UNITS);
        count = (units + each - 1) / each;
    }
};

// Every row has as many blocks, counted from the last one: those have the least of other stages. What this block has is
// slice `index` of row `row`, which may lie behind the rows; `item` counts slices of all rows.
struct SlicePlace {
    int blocks, item, row, index;
    __device__ explicit SlicePlace(int rows)
        : blocks(BLOCKS / rows), item(BLOCKS - 1 - blockIdx.x), row(item / blocks), index(item % blocks) {}
};

// One slice of one row: units first to last; none, where first == last.
struct Slice {
    int length, first = 0, last = 0;
    __device__ Slice(int row_length, const SlicePlace& place) : length(row_length) {
        const Slices slices(row_length, place.blocks);
        if (place.index >= slices.count) return;
        first = place.index * slices.each, last = min(first + slices.each, slices.units);
    }
    __device__ bool any() const { return first < last; }
    // Whether it has the newest row, which its block computes.
    __device__ bool newest() const { return any() && last * kTokens >= length; }
};

// Producer: the slice's cached rows but for the newest one. What lies behind the length is never read.
template <class Ring>
__device__ void produce_slice(Ring& ring, const Slice& slice, const int* pages, const __nv_bfloat16* cache,
                              int page_stride, const volatile uint32_t* ahead) {
    for (int unit = slice.first; unit < slice.last; ++unit) {
        const int token = unit * kTokens;
        const __nv_bfloat16* page = cache + static_cast<int64_t>(__ldg(pages + token / PAGE)) * page_stride;
        const int rows = min(kTokens, slice.length - 1 - token);
        ring.template push_pieces<kCopies, kCopyBytes, kCopyPitch>(page + token % PAGE * kCached, rows * kRowBytes, *ahead);
    }
}

class LatentAttention {
public:
    static constexpr int kGroups = (HEADS + 7) / 8;
    static constexpr int kQueryPitch = kCached + 8;  // bf16 of a head: eight heads begin in different banks
    static constexpr int kScorePitch = kTogether * kTokens + 4, kWeightPitch = kTogether * kTokens + 8;  // of a head
    static constexpr int kScoreFloats = 4 * HEADS * kScorePitch;
    static constexpr int kScratchBytes = 4 * kScoreFloats + (2 * kWeightPitch + 4) * 8 * kGroups;
    static_assert(2 * HEADS * kQueryPitch <= kScratchBytes, "queries fit where scores and weights will be");

    // `queries`: [HEADS, kQueryPitch] bf16 in shared memory, which is free behind the next barrier.
    __device__ explicit LatentAttention(const __nv_bfloat16* queries) {
        const int head = group() * 8 + lane() / 4, k = quarter() * kQuarter + lane() % 4 * 2;
        const uint32_t* from = reinterpret_cast<const uint32_t*>(queries + head * kQueryPitch + k);
        const bool live = head < HEADS;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            query_[step][0] = live ? from[step * 8] : 0;
            query_[step][1] = live ? from[step * 8 + 4] : 0;
        }
    }

    // All of the slice. `newest`: its newest row, [576] bf16 in shared memory; `memory`: shared memory from its start;
    // `scratch`: kScratchBytes, the queries among them.
    template <class Ring>
    __device__ void attend(Ring& ring, const Slice& slice, const __nv_bfloat16* newest, unsigned char* memory,
                           float* scratch) {
        float* scores = scratch;  // [4][HEADS][kScorePitch]
        __nv_bfloat16* weights = reinterpret_cast<__nv_bfloat16*>(scores + kScoreFloats);  // [8 kGroups][kWeightPitch]
        float* kept = reinterpret_cast<float*>(weights + 8 * kGroups * kWeightPitch);      // [8 kGroups]
        sync_consumers();  // the queries have been read
        for (int unit = slice.first; unit < slice.last; unit += kTogether) {
            const int units = min(kTogether, slice.last - unit), seen = slice.length - unit * kTokens;
            if (seen <= units * kTokens) {
                unsigned char* slot = memory + (ring.behind(units - 1) - shared_address(memory));
                complete(slot, seen - (units - 1) * kTokens, newest);
                sync_consumers();
            }
#pragma unroll 1
            for (int i = warp() / (4 * kGroups); i < units; i += kTogether / kGroups)
                score(ring.behind(i), scores + i * kTokens);
            sync_consumers();
            if (warp() < HEADS) weigh(min(seen, units * kTokens), scores, weights, kept);
            sync_consumers();
            add_values(ring, units, weights, kept);
            ring.pop(units);
        }
    }

    // keep(head, latent, sum) for every sum under the head's maximum; head_done(head, maximum, total) once a head.
    template <class Keep, class HeadDone>
    __device__ void finish(Keep keep, HeadDone head_done) const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int group = 0; group < kGroups; ++group)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int head = group * 8 + lane() % 4 * 2 + i % 2;
                    const int latent = warp() * 32 + half * 16 + i / 2 * 8 + lane() / 4;
                    if (head < HEADS) keep(head, latent, sums_[half][group][i]);
                }
        const float total = warp_sum(total_);
        if (warp() < HEADS && lane() == 0) head_done(warp(), largest_, total);
    }

private:
    static constexpr int kQuarter = kCached / 4, kSteps = kQuarter / 16;

    __device__ static int lane() { return threadIdx.x & 31; }
    __device__ static int warp() { return threadIdx.x >> 5; }
    // What this warp takes of the scores.
    __device__ static int quarter() { return warp() & 3; }
    __device__ static int group() { return warp() / 4 % kGroups; }

    // The last unit of a row: its newest row, and zeros behind it, since what is there may be no number.
    __device__ static void complete(unsigned char* slot, int rows, const __nv_bfloat16* newest) {
        constexpr int kWords = kRowBytes / 4;
        for (int i = threadIdx.x; i < (kTokens - rows + 1) * kWords; i += kConsumers) {
            const int row = rows - 1 + i / kWords, word = i % kWords;
            reinterpret_cast<uint32_t*>(slot + row / 2 * kCopyPitch + row % 2 * kRowBytes)[word] =
                row < rows ? reinterpret_cast<const uint32_t*>(newest)[word] : 0;
        }
    }

    // Rows of one unit against this warp's heads, over its quarter of k. `scores`: those of the unit's first row.
    __device__ void score(uint32_t slot, float* scores) const {
        float even[4] = {}, odd[4] = {};
        // Matrices: rows 0 to 7 and 8 to 15 of eight k, then of the next eight.
        const uint32_t row = slot + bytes_to(lane() & 15) + quarter() * kQuarter * 2 + lane() / 16 * 16;
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
            mma_bf16(step % 2 ? odd : even, load_matrices(row + step * 32), query_[step][0], query_[step][1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int head = group() * 8 + lane() % 4 * 2 + i % 2, row = i / 2 * 8 + lane() / 4;
            if (head < HEADS) scores[(quarter() * HEADS + head) * kScorePitch + row] = even[i] + odd[i];
        }
    }

    // One head of up to 64 tokens, of which `seen` count. Scores and weights lie as the products have their rows.
    __device__ void weigh(int seen, const float* scores, __nv_bfloat16* weights, float* kept) {
        const int place = place_of(lane());
        float score[2], largest = largest_;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = lane() + 32 * i;
            score[i] = __int_as_float(0xff800000);
            if (token < seen) {
                float sum = 0;
#pragma unroll
                for (int part = 0; part < 4; ++part) sum += scores[(part * HEADS + warp()) * kScorePitch + place + 32 * i];
                score[i] = sum * SCALE_LOG2;
            }
            largest = fmaxf(largest, score[i]);
        }
#pragma unroll
        for (int other = 16; other; other >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, other));
        const float share = exp2f(largest_ - largest);
        total_ *= share;
        largest_ = largest;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float weight = exp2f(score[i] - largest);
            total_ += weight;
            weights[warp() * kWeightPitch + place + 32 * i] = __float2bfloat16(weight);
        }
        if (lane() == 0) kept[warp()] = share;
    }

    // This warp's 32 latents of `units` units.
    template <class Ring>
    __device__ void add_values(const Ring& ring, int units, const __nv_bfloat16* weights, const float* kept) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float share = kept[group * 8 + lane() % 4 * 2 + i % 2];
#pragma unroll
                for (int half = 0; half < 2; ++half) sums_[half][group][i] *= share;
            }
#pragma unroll 1
        for (int unit = 0; unit < units; ++unit) {
            // Matrices: latents 0 to 7 and 8 to 15 of eight rows, then of the other eight.
            const uint32_t row = ring.behind(unit) + bytes_to((lane() & 7) + lane() / 16 * 8) + warp() * 64 + (lane() & 8) * 2;
            const uint4 cached[2] = {load_transposed(row), load_transposed(row + 32)};
#pragma unroll
            for (int group = 0; group < kGroups; ++group) {
                const uint32_t* from = reinterpret_cast<const uint32_t*>(
                    weights + (group * 8 + lane() / 4) * kWeightPitch + unit * kTokens + lane() % 4 * 2);
                const uint32_t low = from[0], high = from[4];
#pragma unroll
                for (int half = 0; half < 2; ++half) mma_bf16(sums_[half][group], cached[half], low, high);
            }
        }
    }

    uint32_t query_[kSteps][2];
    float sums_[2][kGroups][4] = {};
    float largest_ = __int_as_float(0xff800000), total_ = 0;  // of this warp's head; the total of this lane's tokens
};
