// Several tokens of a request, one after the other, through a head of Kimi Delta Attention, or a slice of its value rows:
// kda_head.cuh has the arithmetic.
//
// The request's table names the committed page, which is read, and a page for the state behind each token, which is written:
// pages that are written are not read here, so blocks of one head wait for nothing. Projections, convolution, gates and decay
// of a few tokens are worked out together; then their updates follow each other in registers. A token is rounded where a
// step of its own would round it: what enters the window, and the gate's projection.
#pragma once
#include "kda_head.cuh"

// AT_ONCE: tokens whose projections are asked for together.
template <int PARTS, int COUNT, int AT_ONCE, int LATE = 0>
class KdaWalk : public KdaHead<PARTS, LATE> {
    using Head = KdaHead<PARTS, LATE>;
    using Head::t_, Head::row_, Head::head_, Head::slice_, Head::slot_, Head::state_, Head::window_;
    using Head::value_row, Head::conv_channel, Head::window_of, Head::state_of, Head::table;

    // Tokens that are worked out together, and what each has in shared memory.
    static constexpr int kBatch = COUNT > 4 ? (COUNT + 1) / 2 : COUNT;
    using Head::kK, Head::kV, Head::kDecay, Head::kGate, Head::kFa, Head::kO;

public:
    using Head::kRows, Head::Head;
    static constexpr int kBeta = Head::kBehindO, kTokenFloats = kBeta + 4, kFloats = kBatch * kTokenFloats;

    // `projected(tokens, columns, values)`: columns of the projection of tokens of this request. `scratch`: kFloats.
    template <class Projected>
    __device__ void walk(Projected projected, float* scratch) {
        if (slot_ <= 0) {
            const int thread = threadIdx.x;
            for (int token = 0; token < COUNT; ++token) {
                if (thread < kHeadDim / PARTS) gated(token)[slice_ * kHeadDim / PARTS + thread] = 0;
                if (thread < kRows) squares(token)[thread] = 0;
            }
            return;
        }
        batch<0>(projected, scratch);
        if constexpr (COUNT > kBatch) batch<kBatch>(projected, scratch);
    }

private:
    // Tokens FIRST and behind it, as many as are worked out together.
    template <int FIRST, class Projected>
    __device__ __forceinline__ void batch(Projected projected, float* scratch) {
        constexpr int kHere = FIRST + kBatch < COUNT ? kBatch : COUNT - FIRST;
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        // Loops are not unrolled: what a thread holds of several tokens would take more registers than there are.
#pragma unroll 1
        for (int i = 0; i < kHere; i += AT_ONCE) prepare(projected, FIRST, i, scratch);
        if constexpr (FIRST == 0)
            this->template load_state<kRows - LATE, kRows>();
        else
            this->load_gate();  // again: kept, it would be more registers than there are
        const float dt_bias = __ldg(t_.dt_bias + head_ * kHeadDim + (thread >> 2)), rate = __ldg(t_.rate + head_);
        sync_consumers();
#pragma unroll 1
        for (int i = 0; i < kHere; ++i) {
            float* own = scratch + i * kTokenFloats;
            const float decayed = this->decay_of(own + kFa, rate, dt_bias);
            if ((thread & 3) == 0) own[kDecay + (thread >> 2)] = decayed;
        }
        sync_consumers();
#pragma unroll 1
        for (int i = 0; i < kHere; ++i) {
            float* own = scratch + i * kTokenFloats;
            const typename Head::Key key = Head::key_of(own, own + kK, own + kDecay);
            const float beta = own[kBeta];
            float4* state = reinterpret_cast<float4*>(state_of(page(FIRST + i)));
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const int row = value_row(r);
                const float core = Head::advance(state_[r], key, beta, own[kV + row]);
                __stcs(state + row * 32 + lane, state_[r]);
                if (lane == 0) {
                    gated(FIRST + i)[row] = core * own[kGate + row];
                    own[kO + r * kWarps + warp] = core * core;
                }
            }
        }
        sync_consumers();
        // Nothing of what is read here is written before the next tokens' decay is there.
        if (const int token = thread / kRows; token < kHere) {
            const float* own = scratch + token * kTokenFloats + kO + thread % kRows * kWarps;
            float sum = 0;
            for (int i = 0; i < kWarps; ++i) sum += own[i];
            squares(FIRST + token)[thread % kRows] = sum;
        }
    }

    // What does not depend on the state, of tokens first + i and those with it: into shared memory, and their windows into pages.
    template <class Projected>
    __device__ __forceinline__ void prepare(Projected projected, int first, int i, float* scratch) {
        const int thread = threadIdx.x, other = thread - 3 * kHeadDim;
        const bool convolves = thread < 3 * kHeadDim;
        int tokens[3 * AT_ONCE], columns[3 * AT_ONCE];
        float values[3 * AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            tokens[3 * j] = tokens[3 * j + 1] = tokens[3 * j + 2] = min(first + i + j, COUNT - 1);
            columns[3 * j] = 4 * kChannels + kGateRank + head_;
            columns[3 * j + 1] = convolves ? conv_channel() : 4 * kChannels + other;
            columns[3 * j + 2] = convolves ? conv_channel() : 3 * kChannels + head_ * kHeadDim + other;
        }
        projected(tokens, columns, values);
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            if (i + j >= kBatch || first + i + j >= COUNT) break;
            float* own = scratch + (i + j) * kTokenFloats;
            if (thread == 0) own[kBeta] = sigmoid(values[3 * j]);
            if (convolves) {
                const float newest = values[3 * j + 1];
                own[thread] = this->convolved(newest);
                window_[0] = window_[1], window_[1] = window_[2], window_[2] = __float2bfloat16(newest);
                if (!slice_) {
                    __nv_bfloat16* window = window_of(page(first + i + j));
#pragma unroll
                    for (int tap = 0; tap < 3; ++tap) window[tap * 3 * kChannels] = window_[tap];
                }
            } else {
                own[kFa + (other >> 5) * 36 + (other & 31)] = values[3 * j + 1];
                own[kGate + other] = sigmoid(values[3 * j + 2]) * __bfloat162float(__ldg(t_.o_norm + other));
            }
        }
    }

    __device__ int page(int token) const { return __ldg(table() + 1 + token); }
    __device__ float* gated(int token) const { return t_.gated + (row_ * COUNT + token) * kChannels + head_ * kHeadDim; }
    // Of the sums, those of the rows that this block has.
    __device__ float* squares(int token) const {
        return t_.squares + ((row_ * COUNT + token) * HEADS + head_) * kGroups + slice_ * kRows;
    }
};
