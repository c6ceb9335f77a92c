// One token through Kimi Delta Attention for one (row, head), or a slice of its value rows.
//
//     S' = S diag(a);  delta = beta (v - S' k);  o = S' q + delta (q . k);  S = S' + delta k^T
//
// A block holds 128 / PARTS value rows of the head, a warp one row at a time, a lane four of its keys: a value row's
// arithmetic does not depend on PARTS. What does not depend on the projection is loaded ahead, by load(); step() takes the
// projection as its values come. Blocks of one head read the same window, so it is shifted by shift(), behind a grid
// barrier. The output's norm needs the whole head, so step() leaves o * weight * sigmoid(gate) and sums of squares of 16
// value rows each; whoever reads them divides.
#pragma once
#include "block.cuh"
#include "tagged_floats.cuh"

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
    const int* slots;                  // [rows]
    int slots_stride;
    __nv_bfloat16* conv_state;         // [slots, 3, 3 p]
    float* recurrent_state;            // [slots, h, 128, 128]
    int conv_page_stride, state_page_stride;
    float* gated;                      // [rows, p]: before the norm's division
    float* squares;                    // [rows, h, 8]
};

// Of a row alone, what `gated` and `squares` would get: tagged, [p] and then [h, 8]. Null: memory it is.
struct StepCells {
    unsigned long long* cells;
    uint32_t epoch;
};

// LATE: of a warp's value rows those whose state is loaded behind the projection, which needs registers as well.
template <int PARTS, int LATE = 0>
class KdaStep {
public:
    static constexpr int kRows = kHeadDim / PARTS / kWarps;  // value rows of a warp

    __device__ KdaStep(const KdaTensors& tensors, int item)
        : t_(tensors), row_(item / (HEADS * PARTS)), head_(item / PARTS % HEADS), slice_(item % PARTS) {}

    // Another item from here on, whose load() comes next.
    __device__ void turn_to(int item) {
        row_ = item / (HEADS * PARTS), head_ = item / PARTS % HEADS, slice_ = item % PARTS;
    }

    // Brings what load() reads as far as the L2.
    __device__ void bring_near() const {
        const int slot = __ldg(t_.slots + static_cast<size_t>(row_) * t_.slots_stride);
        if (slot <= 0) return;
        const char* state = reinterpret_cast<const char*>(
            t_.recurrent_state + static_cast<size_t>(slot) * t_.state_page_stride +
            (head_ * kHeadDim + slice_ * (kHeadDim / PARTS)) * kHeadDim);
        for (int line = threadIdx.x; line < kHeadDim / PARTS * 4; line += kConsumers) prefetch(state + line * 128);
        if (threadIdx.x < 256) prefetch(t_.f_b + head_ * kHeadDim * kGateRank + threadIdx.x * 64);
        if (threadIdx.x < 3 * kHeadDim && threadIdx.x % 8 == 0) prefetch(t_.conv_weight + conv_channel() * 4);
    }

    __device__ void load() {
        slot_ = __ldg(t_.slots + static_cast<size_t>(row_) * t_.slots_stride);
        if (slot_ <= 0) return;
        if (threadIdx.x < 3 * kHeadDim) {
            const __nv_bfloat16* window = page() + conv_channel();
#pragma unroll
            for (int tap = 0; tap < 3; ++tap) window_[tap] = window[tap * 3 * kChannels];
        }
        load_state<0, kRows - LATE>();
        const uint4* f_b = reinterpret_cast<const uint4*>(t_.f_b + (head_ * kHeadDim + (threadIdx.x >> 2)) * kGateRank);
#pragma unroll
        for (int i = 0; i < 4; ++i) f_b_[i] = __ldg(f_b + (threadIdx.x & 3) * 4 + i);
        prefetch(t_.dt_bias + head_ * kHeadDim + (threadIdx.x & 127));
        prefetch(t_.rate + head_);
        if (threadIdx.x < 3 * kHeadDim) taps_ = __ldg(reinterpret_cast<const float4*>(t_.conv_weight) + conv_channel());
    }

    // `projected(columns, values)`: three columns of the projection of this row. `scratch`: 1024 floats. `leave`: where results go.
    template <class Projected>
    __device__ void step(Projected projected, float* scratch, StepCells leave) {
        if (slot_ <= 0) {
            if (threadIdx.x < kHeadDim / PARTS) leave_gated(slice_ * kHeadDim / PARTS + threadIdx.x, 0, leave);
            if (threadIdx.x < kRows) leave_squares(threadIdx.x, 0, leave);
            return;
        }
        float* q = scratch;
        float* k = q + kHeadDim;
        float* v = k + kHeadDim;
        float* decay = v + kHeadDim;
        float* gate = decay + kHeadDim;
        float* f_a = gate + kHeadDim;      // [4][36]: the quarters fall into different banks
        float* o = f_a + 4 * 36;           // [8][16]
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const float dt_bias = __ldg(t_.dt_bias + head_ * kHeadDim + (thread >> 2)), rate = __ldg(t_.rate + head_);
        const int other = thread - 3 * kHeadDim, gates = 3 * kChannels + head_ * kHeadDim;
        const bool convolves = thread < 3 * kHeadDim;
        const int columns[3] = {4 * kChannels + kGateRank + head_, convolves ? conv_channel() : 4 * kChannels + other,
                                convolves ? conv_channel() : gates + other};
        float values[3];
        projected(columns, values);
        load_state<kRows - LATE, kRows>();
        const float beta = sigmoid(values[0]);
        if (convolves) {
            const float newest = values[1];
            const float mixed = taps_.x * __bfloat162float(window_[0]) + taps_.y * __bfloat162float(window_[1]) +
                                taps_.z * __bfloat162float(window_[2]) + taps_.w * newest;
            q[thread] = mixed * sigmoid(mixed);
            window_[0] = __float2bfloat16(newest);
        } else {
            f_a[(other >> 5) * 36 + (other & 31)] = values[1];
            gate[other] = sigmoid(values[2]) * __bfloat162float(__ldg(t_.o_norm + other));
        }
        sync_consumers();
        float gamma = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float weight[8];
            unpack(f_b_[i], weight);
#pragma unroll
            for (int j = 0; j < 8; ++j) gamma += weight[j] * f_a[(thread & 3) * 36 + i * 8 + j];
        }
        gamma += __shfl_xor_sync(~0u, gamma, 1);
        gamma += __shfl_xor_sync(~0u, gamma, 2);
        gamma = __bfloat162float(__float2bfloat16(gamma));
        if ((thread & 3) == 0) decay[thread >> 2] = expf(GATE_LOWER_BOUND * sigmoid(rate * (gamma + dt_bias)));
        sync_consumers();
        const float4 q4 = reinterpret_cast<const float4*>(q)[lane], k4 = reinterpret_cast<const float4*>(k)[lane];
        const float4 a4 = reinterpret_cast<const float4*>(decay)[lane];
        const float q_scale = rsqrtf(128.f) / sqrtf(warp_sum(dot(q4, q4)) + L2_EPS);
        const float k_scale = 1.f / sqrtf(warp_sum(dot(k4, k4)) + L2_EPS);
        const float qk = warp_sum(dot(q4, k4)) * q_scale * k_scale;
        float4* state = reinterpret_cast<float4*>(head_state());
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int row = value_row(i);
            float4 s = state_[i];
            s.x *= a4.x, s.y *= a4.y, s.z *= a4.z, s.w *= a4.w;
            const float read = warp_sum(dot(s, k4)) * k_scale, seen = warp_sum(dot(s, q4)) * q_scale;
            const float delta = beta * (v[row] - read), step = delta * k_scale;
            s.x += step * k4.x, s.y += step * k4.y, s.z += step * k4.z, s.w += step * k4.w;
            __stcs(state + row * 32 + lane, s);
            const float core = seen + delta * qk;
            if (lane == 0) {
                leave_gated(row, core * gate[row], leave);
                o[i * kWarps + warp] = core * core;
            }
        }
        sync_consumers();
        if (thread < kRows) {
            float sum = 0;
            for (int i = 0; i < kWarps; ++i) sum += o[thread * kWarps + i];
            leave_squares(thread, sum, leave);
        }
    }

    // Behind a barrier behind every block's load(); of a head that one block has, behind its own.
    __device__ void shift() const {
        if (slot_ <= 0 || slice_ || threadIdx.x >= 3 * kHeadDim) return;
        __nv_bfloat16* window = page() + conv_channel();
        window[0] = window_[1];
        window[3 * kChannels] = window_[2];
        window[6 * kChannels] = window_[0];
    }

private:
    template <int FIRST, int LAST>
    __device__ __forceinline__ void load_state() {
        const float4* state = reinterpret_cast<const float4*>(head_state());
#pragma unroll
        for (int i = FIRST; i < LAST; ++i) state_[i] = __ldcs(state + value_row(i) * 32 + (threadIdx.x & 31));
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
    __device__ __nv_bfloat16* page() const { return t_.conv_state + static_cast<size_t>(slot_) * t_.conv_page_stride; }
    __device__ float* head_state() const {
        return t_.recurrent_state + static_cast<size_t>(slot_) * t_.state_page_stride + head_ * kHeadDim * kHeadDim;
    }
    // Value row `row` of the head, and the sum `group` of those that this block has.
    __device__ void leave_gated(int row, float value, StepCells to) const {
        const int channel = head_ * kHeadDim + row;
        if (to.cells)
            send(to.cells + channel, value, to.epoch);
        else
            t_.gated[row_ * kChannels + channel] = value;
    }
    __device__ void leave_squares(int group, float value, StepCells to) const {
        const int place = head_ * kGroups + slice_ * kRows + group;
        if (to.cells)
            send(to.cells + kChannels + place, value, to.epoch);
        else
            t_.squares[row_ * HEADS * kGroups + place] = value;
    }

    const KdaTensors& t_;
    int row_, head_, slice_, slot_ = 0;
    float4 state_[kRows], taps_;
    uint4 f_b_[4];
    __nv_bfloat16 window_[3];
};
