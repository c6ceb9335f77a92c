// A head of Kimi Delta Attention, or a slice of its value rows, on its way through a launch: what is loaded ahead of the
// projection, where things lie, and what a token does to it:
//
//     S' = S diag(a);  delta = beta (v - S' k);  o = S' q + delta (q . k);  S = S' + delta k^T
//
// One token of each row: kda_step.cuh. Several tokens of a request: kda_walk.cuh.
//
// A block holds 128 / PARTS value rows of the head, a warp one row at a time, a lane four of its keys: a value row's
// arithmetic does not depend on PARTS.
#pragma once
#include "block.cuh"

constexpr int kHeadDim = 128;
constexpr int kGateRank = 128;
constexpr int kChannels = HEADS * kHeadDim;
constexpr int kGroups = 8;  // sums of squares of a head

struct KdaTensors {
    const __nv_bfloat16* f_b;          // [p, 128]
    const float* conv_weight;          // [3 p, 4]
    const float* rate;                 // [h]: exp(a_log)
    const float* dt_bias;              // [p]
    const __nv_bfloat16* o_norm;       // [128]
    const int* slots;                  // [rows], or [requests, 1 + tokens]: the page to read stands first
    int slots_stride;
    __nv_bfloat16* conv_state;         // [slots, 3, 3 p]
    float* recurrent_state;            // [slots, h, 128, 128]
    int conv_page_stride, state_page_stride;
    float* gated;                      // [rows, p]: before the norm's division
    float* squares;                    // [rows, h, 8]
};

// LATE: of a warp's value rows those whose state is loaded behind the projection, which needs registers as well.
template <int PARTS, int LATE>
class KdaHead {
public:
    static constexpr int kRows = kHeadDim / PARTS / kWarps;  // value rows of a warp

    // `item`: slices of heads of rows, or of requests.
    __device__ KdaHead(const KdaTensors& tensors, int item)
        : t_(tensors), row_(item / (HEADS * PARTS)), head_(item / PARTS % HEADS), slice_(item % PARTS) {}

    // Another item from here on, whose load() comes next.
    __device__ void turn_to(int item) {
        row_ = item / (HEADS * PARTS), head_ = item / PARTS % HEADS, slice_ = item % PARTS;
    }

    // Brings what load() reads as far as the L2.
    __device__ void bring_near() const {
        const int slot = __ldg(table());
        if (slot <= 0) return;
        const char* state = reinterpret_cast<const char*>(
            t_.recurrent_state + static_cast<size_t>(slot) * t_.state_page_stride +
            (head_ * kHeadDim + slice_ * (kHeadDim / PARTS)) * kHeadDim);
        for (int line = threadIdx.x; line < kHeadDim / PARTS * 4; line += kConsumers) prefetch(state + line * 128);
        if (threadIdx.x < 256) prefetch(t_.f_b + head_ * kHeadDim * kGateRank + threadIdx.x * 64);
        if (threadIdx.x < 3 * kHeadDim && threadIdx.x % 8 == 0) prefetch(t_.conv_weight + conv_channel() * 4);
    }

    __device__ void load() {
        slot_ = __ldg(table());
        if (slot_ <= 0) return;
        if (threadIdx.x < 3 * kHeadDim) {
            const __nv_bfloat16* window = window_of(slot_);
#pragma unroll
            for (int tap = 0; tap < 3; ++tap) window_[tap] = window[tap * 3 * kChannels];
        }
        load_state<0, kRows - LATE>();
        load_gate();
        prefetch(t_.dt_bias + head_ * kHeadDim + (threadIdx.x & 127));
        prefetch(t_.rate + head_);
        if (threadIdx.x < 3 * kHeadDim) taps_ = __ldg(reinterpret_cast<const float4*>(t_.conv_weight) + conv_channel());
    }

protected:
    // Where a token's q, k, v, decay, gate and f_a ([4][36]) lie in shared memory, in floats; behind them squares of value rows.
    static constexpr int kK = kHeadDim, kV = 2 * kHeadDim, kDecay = 3 * kHeadDim, kGate = 4 * kHeadDim, kFa = 5 * kHeadDim;
    static constexpr int kO = kFa + 4 * 36, kBehindO = kO + kRows * kWarps;

    // What all value rows do with a token.
    struct Key {
        float4 q, k, decay;
        float q_scale, k_scale, qk;
    };

    template <int FIRST, int LAST>
    __device__ __forceinline__ void load_state() {
        const float4* state = reinterpret_cast<const float4*>(state_of(slot_));
#pragma unroll
        for (int i = FIRST; i < LAST; ++i) state_[i] = __ldcs(state + value_row(i) * 32 + (threadIdx.x & 31));
    }

    // Of key thread / 4, by four threads, each from its quarter of f_a: of 36, so that the quarters fall into different banks.
    __device__ __forceinline__ float decay_of(const float* f_a, float rate, float dt_bias) const {
        float gamma = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float weight[8];
            unpack(f_b_[i], weight);
#pragma unroll
            for (int j = 0; j < 8; ++j) gamma += weight[j] * f_a[(threadIdx.x & 3) * 36 + i * 8 + j];
        }
        gamma += __shfl_xor_sync(~0u, gamma, 1);
        gamma += __shfl_xor_sync(~0u, gamma, 2);
        gamma = __bfloat162float(__float2bfloat16(gamma));
        return expf(GATE_LOWER_BOUND * sigmoid(rate * (gamma + dt_bias)));
    }

    __device__ __forceinline__ void load_gate() {
        const uint4* f_b = reinterpret_cast<const uint4*>(t_.f_b + (head_ * kHeadDim + (threadIdx.x >> 2)) * kGateRank);
#pragma unroll
        for (int i = 0; i < 4; ++i) f_b_[i] = __ldg(f_b + (threadIdx.x & 3) * 4 + i);
    }

    // By each warp, from [128] each.
    __device__ __forceinline__ static Key key_of(const float* q, const float* k, const float* decay) {
        const int lane = threadIdx.x & 31;
        Key key;
        key.q = reinterpret_cast<const float4*>(q)[lane], key.k = reinterpret_cast<const float4*>(k)[lane];
        key.decay = reinterpret_cast<const float4*>(decay)[lane];
        key.q_scale = rsqrtf(128.f) / sqrtf(warp_sum(dot(key.q, key.q)) + L2_EPS);
        key.k_scale = 1.f / sqrtf(warp_sum(dot(key.k, key.k)) + L2_EPS);
        key.qk = warp_sum(dot(key.q, key.k)) * key.q_scale * key.k_scale;
        return key;
    }

    // A value row's state moved on by a token, in place; what the token reads of it.
    __device__ __forceinline__ static float advance(float4& s, const Key& key, float beta, float v) {
        s.x *= key.decay.x, s.y *= key.decay.y, s.z *= key.decay.z, s.w *= key.decay.w;
        const float read = warp_sum(dot(s, key.k)) * key.k_scale, seen = warp_sum(dot(s, key.q)) * key.q_scale;
        const float delta = beta * (v - read), step = delta * key.k_scale;
        s.x += step * key.k.x, s.y += step * key.k.y, s.z += step * key.k.z, s.w += step * key.k.w;
        return seen + delta * key.qk;
    }

    __device__ __forceinline__ float convolved(float newest) const {
        const float mixed = taps_.x * __bfloat162float(window_[0]) + taps_.y * __bfloat162float(window_[1]) +
                            taps_.z * __bfloat162float(window_[2]) + taps_.w * newest;
        return mixed * sigmoid(mixed);
    }

    __device__ static float dot(const float4& a, const float4& b) {
        return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
    // Sixteen consecutive value rows, one a warp, are one of the head's sums of squares.
    __device__ int value_row(int i) const { return (slice_ * kRows + i) * kWarps + (threadIdx.x >> 5); }
    // q, k and v of a head lie p channels apart; so do they in a row of the projection.
    __device__ int conv_channel() const {
        return (threadIdx.x >> 7) * kChannels + head_ * kHeadDim + (threadIdx.x & 127);
    }
    __device__ const int* table() const { return t_.slots + static_cast<size_t>(row_) * t_.slots_stride; }
    __device__ __nv_bfloat16* window_of(int slot) const {
        return t_.conv_state + static_cast<size_t>(slot) * t_.conv_page_stride + conv_channel();
    }
    __device__ float* state_of(int slot) const {
        return t_.recurrent_state + static_cast<size_t>(slot) * t_.state_page_stride + head_ * kHeadDim * kHeadDim;
    }

    const KdaTensors& t_;
    int row_, head_, slice_, slot_ = 0;
    float4 state_[kRows], taps_;
    uint4 f_b_[4];
    __nv_bfloat16 window_[3];
};
