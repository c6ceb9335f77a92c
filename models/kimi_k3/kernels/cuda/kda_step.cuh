// One token through a head of Kimi Delta Attention, or a slice of its value rows: kda_head.cuh has the arithmetic.
//
// What does not depend on the projection is loaded ahead, by load(); step() takes the projection as its values come. Blocks
// of one head read the same window, so it is shifted by shift(), behind a grid barrier. The output's norm needs the whole
// head, so step() leaves o * weight * sigmoid(gate) and sums of squares of 16 value rows each; whoever reads them divides.
#pragma once
#include "kda_head.cuh"
#include "tagged_floats.cuh"

// Of a row alone, what `gated` and `squares` would get: tagged, [p] and then [h, 8]. Null: memory it is.
struct StepCells {
    unsigned long long* cells;
    uint32_t epoch;
};

template <int PARTS, int LATE = 0>
class KdaStep : public KdaHead<PARTS, LATE> {
    using Head = KdaHead<PARTS, LATE>;
    using Head::t_, Head::row_, Head::head_, Head::slice_, Head::slot_, Head::state_, Head::window_;
    using Head::value_row, Head::conv_channel, Head::window_of, Head::state_of;

public:
    using Head::kRows, Head::Head;
    static constexpr int kFloats = Head::kBehindO;

    // `projected(columns, values)`: three columns of the projection of this row. `scratch`: kFloats. `leave`: where results go.
    template <class Projected>
    __device__ void step(Projected projected, float* scratch, StepCells leave) {
        if (slot_ <= 0) {
            if (threadIdx.x < kHeadDim / PARTS) leave_gated(slice_ * kHeadDim / PARTS + threadIdx.x, 0, leave);
            if (threadIdx.x < kRows) leave_squares(threadIdx.x, 0, leave);
            return;
        }
        float* const decay = scratch + Head::kDecay;
        float* const gate = scratch + Head::kGate;
        float* const o = scratch + Head::kO;
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const float dt_bias = __ldg(t_.dt_bias + head_ * kHeadDim + (thread >> 2)), rate = __ldg(t_.rate + head_);
        const int other = thread - 3 * kHeadDim, gates = 3 * kChannels + head_ * kHeadDim;
        const bool convolves = thread < 3 * kHeadDim;
        const int columns[3] = {4 * kChannels + kGateRank + head_, convolves ? conv_channel() : 4 * kChannels + other,
                                convolves ? conv_channel() : gates + other};
        float values[3];
        projected(columns, values);
        this->template load_state<kRows - LATE, kRows>();
        const float beta = sigmoid(values[0]);
        if (convolves) {
            scratch[thread] = this->convolved(values[1]);
            window_[0] = __float2bfloat16(values[1]);
        } else {
            scratch[Head::kFa + (other >> 5) * 36 + (other & 31)] = values[1];
            gate[other] = sigmoid(values[2]) * __bfloat162float(__ldg(t_.o_norm + other));
        }
        sync_consumers();
        const float decayed = this->decay_of(scratch + Head::kFa, rate, dt_bias);
        if ((thread & 3) == 0) decay[thread >> 2] = decayed;
        sync_consumers();
        const typename Head::Key key = Head::key_of(scratch, scratch + Head::kK, decay);
        float4* state = reinterpret_cast<float4*>(state_of(slot_));
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int row = value_row(i);
            const float core = Head::advance(state_[i], key, beta, scratch[Head::kV + row]);
            __stcs(state + row * 32 + lane, state_[i]);
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
        __nv_bfloat16* window = window_of(slot_);
        window[0] = window_[1];
        window[3 * kChannels] = window_[2];
        window[6 * kChannels] = window_[0];
    }

private:
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
};
