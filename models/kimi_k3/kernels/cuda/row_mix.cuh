// The two AttnRes mixes of a layer and their norms.
//
// The banks do not change between the mixes, so the first one, which has them at hand, also prepares the second: their
// sum under its softmax numerators, which then waits for the stream alone.
#pragma once
#include "block.cuh"
#include "tagged_floats.cuh"

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

// Each lane gets the warp's sum of one of 32 values, that of its own number: 31 shuffles instead of 160.
template <int WIDTH = 16>
__device__ __forceinline__ float warp_sums(float (&values)[32]) {
    const bool upper = threadIdx.x & WIDTH;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float other = __shfl_xor_sync(~0u, upper ? values[i] : values[i + WIDTH], WIDTH);
        values[i] = (upper ? values[i + WIDTH] : values[i]) + other;
    }
    if constexpr (WIDTH > 1) return warp_sums<WIDTH / 2>(values);
    return values[0];
}

// Where the first mix of a row leaves it: x [7168] before the norm's division, and sums of squares of the mix, by block. Behind
// `cells`, if there are any, two columns a cell and then the sums; else in memory, for readers behind a barrier.
struct MixedRow {
    __nv_bfloat16* x;
    float* squares;
    unsigned long long* cells;
};

// The first mix of a row, 1024 columns a block and two a thread. The seven blocks of a row exchange the sums that the
// logits consist of. The norm's division is left to whoever reads a product of x: its rows scale with it.
class FirstMix {
public:
    static constexpr int kBlocks = kHidden / (2 * kConsumers);
    static constexpr int kMail = 32 * kBlocks;  // cells of a row
    static constexpr int kCells = kHidden / 2 + kBlocks;  // of a MixedRow

    __device__ explicit FirstMix(int block) : row(block / kBlocks), part(block % kBlocks) {}

    const int row, part;

    // `banks` points at the row's first bank; queries [2, 7168].
    __device__ void load(const __nv_bfloat16* stream, const __nv_bfloat16* banks, int count, size_t bank_stride,
                         const float* queries, const __nv_bfloat16* out_norm) {
        count_ = count;
#pragma unroll
        for (int s = 0; s <= kBanks; ++s)
            source_[s] = holds(s) ? __ldg(reinterpret_cast<const uint32_t*>(
                                        (s == kBanks ? stream : banks + s * bank_stride) + column())) : 0;
#pragma unroll
        for (int mix = 0; mix < 2; ++mix)
            query_[mix] = __ldg(reinterpret_cast<const float2*>(queries + mix * kHidden + column()));
        weight_ = __ldg(reinterpret_cast<const uint32_t*>(out_norm + column()));
    }

    // `mail`: the row's cells. `scratch`: 1024 floats.
    __device__ void write(unsigned long long* mail, unsigned long long* health, uint32_t epoch, MixedRow to, BankSum kept,
                          float* scratch) const {
        const int thread = threadIdx.x;
        float values[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) values[i] = 0;
#pragma unroll
        for (int s = 0; s <= kBanks; ++s) {
            const float2 v = pair(source_[s]);
            values[3 * s] = v.x * v.x + v.y * v.y;
            values[3 * s + 1] = v.x * query_[0].x + v.y * query_[0].y;
            values[3 * s + 2] = v.x * query_[1].x + v.y * query_[1].y;
        }
        scratch[thread] = warp_sums(values);
        sync_consumers();
        float* received = scratch + kConsumers;           // [7][32]
        float* numerators = received + kMail;             // [2][9]
        float* logits = numerators + 18;                  // [2][9]
        if (thread < kMail) {
            if (thread < 32) {
                float sum = 0;
#pragma unroll
                for (int warp = 0; warp < kWarps; ++warp) sum += scratch[warp * 32 + thread];
                send(mail + part * 32 + thread, sum, epoch);
            }
            received[thread] = receive(mail + thread, epoch, health);
        }
        sync_consumers();
        if (thread < 18) {
            const int mix = thread / 9, s = thread % 9;
            float squares_of = 0, dot = 0;
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) {
                squares_of += received[block * 32 + 3 * s];
                dot += received[block * 32 + 3 * s + 1 + mix];
            }
            logits[thread] = dot / sqrtf(squares_of / kHidden + NORM_EPS);
            __syncwarp((1u << 18) - 1);
            // The second mix gets its stream later.
            float largest = mix ? __int_as_float(0xff800000) : logits[kBanks];
            for (int bank = 0; bank < count_; ++bank) largest = fmaxf(largest, logits[9 * mix + bank]);
            numerators[thread] = expf(logits[thread] - largest);
            if (thread == 9) logits[18] = largest;
        }
        sync_consumers();
        float total, total_of_banks;
        const float2 sum = mixed<kBanks + 1>(numerators, total), banks = mixed<kBanks>(numerators + 9, total_of_banks);
        const float2 h = make_float2(sum.x / total, sum.y / total), weight = pair(weight_);
        const uint32_t both = pack_two(h.x * weight.x, h.y * weight.y);
        if (to.cells)
            send_bits(to.cells + column() / 2, both, epoch);
        else
            *reinterpret_cast<uint32_t*>(to.x + column()) = both;
        *reinterpret_cast<float2*>(kept.banks + column()) = banks;
        if (part == 0 && thread == 0) kept.scalars[0] = logits[18], kept.scalars[1] = total_of_banks;
        float own[1] = {h.x * h.x + h.y * h.y};
        block_sums(own, scratch);
        if (thread) return;
        if (to.cells)
            send(to.cells + kHidden / 2 + part, own[0], epoch);
        else
            to.squares[part] = own[0];
    }

    // What rows of x are to be multiplied by.
    __device__ static float scale(const float* squares) {
        float sum = 0;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) sum += __ldcg(squares + block);
        return scale_of(sum);
    }

    // The same of a row in cells, by a warp.
    __device__ static float scale(const unsigned long long* cells, uint32_t epoch, unsigned long long* health) {
        const int lane = threadIdx.x & 31;
        const float own = lane < kBlocks ? receive(cells + kHidden / 2 + lane, epoch, health) : 0;
        float sum = 0;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) sum += __shfl_sync(~0u, own, block);
        return scale_of(sum);
    }

private:
    __device__ static float scale_of(float squares) { return 1.f / sqrtf(squares / kHidden + NORM_EPS); }
    __device__ int column() const { return part * 2 * kConsumers + 2 * threadIdx.x; }
    __device__ bool holds(int s) const { return s == kBanks || s < count_; }
    __device__ static float2 pair(uint32_t bits) {
        return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
    }

    // The first COUNT sources under their numerators, and the sum of these.
    template <int COUNT>
    __device__ float2 mixed(const float* numerators, float& total) const {
        float2 sum = {0, 0};
        total = 0;
#pragma unroll
        for (int s = 0; s < COUNT; ++s)
            if (holds(s)) {
                const float2 v = pair(source_[s]);
                total += numerators[s];
                sum.x += numerators[s] * v.x, sum.y += numerators[s] * v.y;
            }
        return sum;
    }

    uint32_t source_[kBanks + 1], weight_;
    float2 query_[2];
    int count_;
};

// The second mix of a row in one block: 448 threads hold 16 columns each. Its last source is the stream. load() takes
// what is known before the output projection.
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
