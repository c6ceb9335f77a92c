// The two AttnRes mixes of a layer and their norms, one row of the batch a block.
//
// 448 threads hold 16 of the 7168 columns each. The banks do not change between the mixes, so the first one, which has
// them at hand, also prepares the second: their sum under its softmax numerators, which then waits for the stream alone.
#pragma once
#include "cuda/block.cuh"

constexpr int kHidden = 7168;
constexpr int kBanks = 8;
constexpr int kMixers = kHidden / 16;

// What the first mix of a row leaves for the second, for a bank maximum m: sum_s e^(l_s - m) v_s in `banks`.
struct BankSum {
    float* banks;    // [7168]
    float* scalars;  // m, sum_s e^(l_s - m)
};

__device__ __forceinline__ int column_of(int half) { return (threadIdx.x + half * kMixers) * 8; }

// x = normed mix, as bf16, at `x`. `banks` points at the row's first bank. `scratch`: 512 floats.
__device__ __forceinline__ void write_normed(
    const float (&mixed)[2][8], const __nv_bfloat16* out_norm, __nv_bfloat16* x, float* scratch) {
    float squares[1] = {0};
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i) squares[0] += mixed[half][i] * mixed[half][i];
    block_sums(squares, scratch);
    const float scale = 1.f / sqrtf(squares[0] / kHidden + NORM_EPS);
    if (threadIdx.x < kMixers)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float weight[8], normed[8];
            unpack(__ldg(reinterpret_cast<const uint4*>(out_norm + column_of(half))), weight);
#pragma unroll
            for (int i = 0; i < 8; ++i) normed[i] = mixed[half][i] * scale * weight[i];
            *reinterpret_cast<uint4*>(x + column_of(half)) = pack(normed);
        }
}

__device__ __forceinline__ void first_mix(
    const __nv_bfloat16* stream, const __nv_bfloat16* banks, int count, size_t bank_stride, const float* queries,
    const __nv_bfloat16* out_norm, __nv_bfloat16* x, bool keep, BankSum kept, float* scratch) {
    const bool active = threadIdx.x < kMixers;
    uint4 source[kBanks + 1][2];
#pragma unroll
    for (int s = 0; s <= kBanks; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            source[s][half] = make_uint4(0, 0, 0, 0);
            const __nv_bfloat16* from = s == kBanks ? stream : banks + s * bank_stride;
            if (active && (s == kBanks || s < count))
                source[s][half] = __ldg(reinterpret_cast<const uint4*>(from + column_of(half)));
        }
    float* sums = scratch;                       // [16 warps][27]
    float* logits = scratch + kWarps * 27;       // [2][9]
#pragma unroll
    for (int mix = 0; mix < 2; ++mix) {  // one after the other: registers hold one query beside the sources
        float query[2][8];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (active) load_eight(queries + mix * kHidden + column_of(half), query[half]);
#pragma unroll
        for (int s = 0; s <= kBanks; ++s) {
            float squares = 0, dot = 0;
            if (active)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float value[8];
                    unpack(source[s][half], value);
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        if (mix == 0) squares += value[i] * value[i];
                        dot += value[i] * query[half][i];
                    }
                }
            if (mix == 0) squares = warp_sum(squares);
            dot = warp_sum(dot);
            if ((threadIdx.x & 31) == 0) {
                float* mine = sums + (threadIdx.x >> 5) * 27 + 3 * s;
                if (mix == 0) mine[0] = squares;
                mine[1 + mix] = dot;
            }
        }
    }
    sync_consumers();
    if (threadIdx.x < 18) {
        const int mix = threadIdx.x / 9, s = threadIdx.x % 9;
        float squares = 0, dot = 0;
        for (int warp = 0; warp < kWarps; ++warp) {
            squares += sums[warp * 27 + 3 * s];
            dot += sums[warp * 27 + 3 * s + 1 + mix];
        }
        logits[threadIdx.x] = dot / sqrtf(squares / kHidden + NORM_EPS);
    }
    sync_consumers();
    float weights[kBanks + 1], total = 0, largest = logits[kBanks];
#pragma unroll
    for (int s = 0; s < kBanks; ++s)
        if (s < count) largest = fmaxf(largest, logits[s]);
#pragma unroll
    for (int s = 0; s <= kBanks; ++s) {
        weights[s] = s == kBanks || s < count ? expf(logits[s] - largest) : 0.f;
        total += weights[s];
    }
    float mixed[2][8] = {};
    if (active)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int s = 0; s <= kBanks; ++s)
                if (s == kBanks || s < count) {
                    float value[8];
                    unpack(source[s][half], value);
#pragma unroll
                    for (int i = 0; i < 8; ++i) mixed[half][i] += weights[s] * value[i];
                }
#pragma unroll
            for (int i = 0; i < 8; ++i) mixed[half][i] /= total;
        }
    if (keep) {
        largest = __int_as_float(0xff800000), total = 0;
#pragma unroll
        for (int s = 0; s < kBanks; ++s)
            if (s < count) largest = fmaxf(largest, logits[9 + s]);
#pragma unroll
        for (int s = 0; s < kBanks; ++s) {
            weights[s] = s < count ? expf(logits[9 + s] - largest) : 0.f;
            total += weights[s];
        }
        if (active)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum[8] = {};
#pragma unroll
                for (int s = 0; s < kBanks; ++s)
                    if (s < count) {
                        float value[8];
                        unpack(source[s][half], value);
#pragma unroll
                        for (int i = 0; i < 8; ++i) sum[i] += weights[s] * value[i];
                    }
                store_eight(kept.banks + column_of(half), sum);
            }
        if (threadIdx.x == 0) kept.scalars[0] = largest, kept.scalars[1] = total;
    }
    sync_consumers();  // before the scratch is used again
    write_normed(mixed, out_norm, x, scratch);
}

// The second mix: its last source, the stream, is `stream`, this thread's columns of it.
__device__ __forceinline__ void second_mix(
    const float (&stream)[2][8], const float (&banks)[2][8], float bank_largest, float bank_total, const float* query,
    const __nv_bfloat16* out_norm, __nv_bfloat16* x, float* scratch) {
    float sums[2] = {0, 0};
    if (threadIdx.x < kMixers)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float weight[8];
            load_eight(query + column_of(half), weight);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                sums[0] += stream[half][i] * stream[half][i];
                sums[1] += stream[half][i] * weight[i];
            }
        }
    block_sums(sums, scratch);
    const float logit = sums[1] / sqrtf(sums[0] / kHidden + NORM_EPS), largest = fmaxf(bank_largest, logit);
    const float old = expf(bank_largest - largest), fresh = expf(logit - largest), total = old * bank_total + fresh;
    float mixed[2][8] = {};
    if (threadIdx.x < kMixers)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 8; ++i) mixed[half][i] = (old * banks[half][i] + fresh * stream[half][i]) / total;
    write_normed(mixed, out_norm, x, scratch + 2 * kWarps);
}
