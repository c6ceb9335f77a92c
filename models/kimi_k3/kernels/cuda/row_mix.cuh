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

__device__ __forceinline__ void write_scaled(
    const float (&mixed)[8], float scale, const uint4& weights, __nv_bfloat16* x) {
    float weight[8], normed[8];
    unpack(weights, weight);
#pragma unroll
    for (int i = 0; i < 8; ++i) normed[i] = mixed[i] * scale * weight[i];
    *reinterpret_cast<uint4*>(x) = pack(normed);
}

class FirstMix {
public:
    // The row's sources. `banks` points at its first bank. Weights come into the L2 meanwhile.
    __device__ void load(const __nv_bfloat16* stream, const __nv_bfloat16* banks, int count, size_t bank_stride,
                         const float* queries, const __nv_bfloat16* out_norm) {
        count_ = count;
#pragma unroll
        for (int s = 0; s <= kBanks; ++s)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                source_[s][half] = make_uint4(0, 0, 0, 0);
                const __nv_bfloat16* from = s == kBanks ? stream : banks + s * bank_stride;
                if (threadIdx.x < kMixers && holds(s))
                    source_[s][half] = __ldg(reinterpret_cast<const uint4*>(from + column_of(half)));
            }
        if (threadIdx.x < kMixers) {
            prefetch(queries + threadIdx.x * 32);  // 128 bytes each
            if (threadIdx.x < kHidden / 64) prefetch(out_norm + threadIdx.x * 64);
        }
    }

    // `queries` [2, 7168]; x [7168]; `scratch`: 512 floats, of which keep() reads some.
    __device__ void write(const float* queries, const __nv_bfloat16* out_norm, __nv_bfloat16* x, float* scratch) {
        float* sums = scratch;  // [16 warps][27]
#pragma unroll
        for (int mix = 0; mix < 2; ++mix) {  // one after the other: registers hold one query beside the sources
            float query[2][8];
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (threadIdx.x < kMixers) load_eight(queries + mix * kHidden + column_of(half), query[half]);
#pragma unroll
            for (int s = 0; s <= kBanks; ++s) {
                float squares = 0, dot = 0;
                if (threadIdx.x < kMixers)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float value[8];
                        unpack(source_[s][half], value);
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
        if (threadIdx.x < 18) softmax(sums, scratch);
        sync_consumers();
        float mixed[2][8];
        const float total = sum<kBanks + 1>(scratch, 0, mixed);
#pragma unroll
        for (int i = 0; i < 16; ++i) mixed[i >> 3][i & 7] /= total;
        float squares[1] = {0};
        if (threadIdx.x < kMixers)
#pragma unroll
            for (int i = 0; i < 16; ++i) squares[0] += mixed[i >> 3][i & 7] * mixed[i >> 3][i & 7];
        block_sums(squares, scratch);
        const float scale = 1.f / sqrtf(squares[0] / kHidden + NORM_EPS);
        if (threadIdx.x < kMixers)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                write_scaled(mixed[half], scale, __ldg(reinterpret_cast<const uint4*>(out_norm + column_of(half))),
                             x + column_of(half));
    }

    // What the second mix will need of the banks. After write(), with the same scratch.
    __device__ void keep(BankSum kept, const float* scratch) const {
        float mixed[2][8];
        const float total = sum<kBanks>(scratch, 1, mixed);
        if (threadIdx.x < kMixers)
#pragma unroll
            for (int half = 0; half < 2; ++half) store_eight(kept.banks + column_of(half), mixed[half]);
        if (threadIdx.x == 0) kept.scalars[0] = scratch[kLargest], kept.scalars[1] = total;
    }

private:
    // Places in the scratch, behind the sums.
    static constexpr int kLogits = kWarps * 27;           // [2][9]
    static constexpr int kNumerators = kLogits + 18;      // [2][9], of a softmax; the second without the stream
    static constexpr int kLargest = kNumerators + 18;     // the second's largest logit

    __device__ bool holds(int s) const { return s == kBanks || s < count_; }

    // By 18 threads of one warp: a source of a mix each.
    __device__ void softmax(const float* sums, float* scratch) const {
        const int mix = threadIdx.x / 9, s = threadIdx.x % 9;
        float squares = 0, dot = 0;
        for (int warp = 0; warp < kWarps; ++warp) {
            squares += sums[warp * 27 + 3 * s];
            dot += sums[warp * 27 + 3 * s + 1 + mix];
        }
        float* logits = scratch + kLogits + 9 * mix;
        logits[s] = dot / sqrtf(squares / kHidden + NORM_EPS);
        __syncwarp((1u << 18) - 1);
        float largest = mix ? __int_as_float(0xff800000) : logits[kBanks];
        for (int other = 0; other < count_; ++other) largest = fmaxf(largest, logits[other]);
        scratch[kNumerators + threadIdx.x] = expf(logits[s] - largest);
        if (threadIdx.x == 9) scratch[kLargest] = largest;
    }

    // The first COUNT sources under their numerators; returns the sum of these.
    template <int COUNT>
    __device__ float sum(const float* scratch, int mix, float (&mixed)[2][8]) const {
        float total = 0;
#pragma unroll
        for (int i = 0; i < 16; ++i) mixed[i >> 3][i & 7] = 0;
#pragma unroll
        for (int s = 0; s < COUNT; ++s)
            if (holds(s)) {
                const float weight = scratch[kNumerators + 9 * mix + s];
                total += weight;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float value[8];
                    unpack(source_[s][half], value);
#pragma unroll
                    for (int i = 0; i < 8; ++i) mixed[half][i] += weight * value[i];
                }
            }
        return total;
    }

    uint4 source_[kBanks + 1][2];
    int count_;
};

// The second mix: its last source is the stream. load() takes what is known before the output projection.
class SecondMix {
public:
    // `others`: what the output projection is added to, [7168].
    __device__ void load(BankSum kept, const float* others, const float* query, const __nv_bfloat16* out_norm) {
        largest_ = __ldcg(kept.scalars), total_ = __ldcg(kept.scalars + 1);
        if (threadIdx.x >= kMixers) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            load_eight(kept.banks + column_of(half), banks_[half]);
            load_eight(others + column_of(half), stream_[half]);
            load_eight(query + column_of(half), query_[half]);
            weight_[half] = __ldg(reinterpret_cast<const uint4*>(out_norm + column_of(half)));
        }
    }

    // Adds this rank's share, own(column, eight floats), and writes x [7168]; where `keeps`, also share and stream.
    template <class Own>
    __device__ void write(
        Own own, bool keeps, __nv_bfloat16* partial, __nv_bfloat16* stream, __nv_bfloat16* x, float* scratch) {
        const bool active = threadIdx.x < kMixers;
        float sums[2] = {0, 0};
        if (active)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float share[8];
                own(column_of(half), share);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    stream_[half][i] += share[i];
                    sums[0] += stream_[half][i] * stream_[half][i];
                    sums[1] += stream_[half][i] * query_[half][i];
                }
                if (keeps) {
                    *reinterpret_cast<uint4*>(partial + column_of(half)) = pack(share);
                    *reinterpret_cast<uint4*>(stream + column_of(half)) = pack(stream_[half]);
                }
            }
        block_sums(sums, scratch);
        const float logit = sums[1] / sqrtf(sums[0] / kHidden + NORM_EPS), largest = fmaxf(largest_, logit);
        const float old = expf(largest_ - largest), fresh = expf(logit - largest), total = old * total_ + fresh;
        float squares[1] = {0};
        if (active)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    banks_[half][i] = (old * banks_[half][i] + fresh * stream_[half][i]) / total;
                    squares[0] += banks_[half][i] * banks_[half][i];
                }
        block_sums(squares, scratch + 2 * kWarps);
        const float scale = 1.f / sqrtf(squares[0] / kHidden + NORM_EPS);
        if (active)
#pragma unroll
            for (int half = 0; half < 2; ++half) write_scaled(banks_[half], scale, weight_[half], x + column_of(half));
    }

private:
    float banks_[2][8], stream_[2][8], query_[2][8], largest_, total_;
    uint4 weight_[2];
};
