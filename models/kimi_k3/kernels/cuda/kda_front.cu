// A KDA layer from its first mix to what enters the mixture of experts, in one launch: kda_front.py says what that is.
//
// One block a multiprocessor stays for the whole launch. One thread of each streams the block's weights, all three
// matrices in a row, through a ring of SLOTS x 16 KiB; 16 warps compute:
//
//     first mix | in-projection : KDA step | output projection : second mix | front
//
// with a grid barrier at each bar, behind which other blocks' results are read. At a colon there is none: values carry
// their launch's number (tagged_floats.cuh), and whoever needs some waits for these alone. Of a row alone all of them do. The
// mixes, the front and what runs beside them: half_layer.cuh.
//
// Of a step to verify (TOKENS of each request) rows of a request are its tokens in order. Whoever has a head of it, or a
// slice, takes them through one after the other; all other stages go row by row.
#include "half_layer.cuh"
#include "kda_step.cuh"
#include "kda_walk.cuh"

constexpr int kProjected = (4 * kChannels + kGateRank + HEADS + 15) / 16 * 16;
constexpr int kPhases = 3;
using InProjection = SplitProduct<kProjected, kHidden, 1, BLOCKS, false, 0, kEights, kSpans>;
using Projection = HandedOn<InProjection, kProjected>;
// Places in `cells`, all tagged: mail of the rows' first mixes; of the rows at once the projection and this rank's share of
// the output projection; what blocks have of tiles that others finish.
constexpr int kMail = kFirstCell, kProjection = kMail + kMailCells, kOwn = kProjection + Projection::kCells;
constexpr int kTails = kOwn + kRowsAtOnce * kHidden;
// Of eight rows at once, a row alone: its first mix, and what the KDA step leaves.
constexpr int kRow = kTails + BLOCKS * kTailCells, kStep = kRow + kRowCells;
constexpr int kEnd = kSpans > 1 ? kTails + HandedOn<Front, kFront>::kCells : kStep + HEADS * (kHeadDim + kGroups);
static_assert(kEnd <= CELLS, "the launch has as many cells as the kernel uses");

using OutProjection = SplitProduct<kHidden, kChannels, 2, BLOCKS, true, 0, kEights>;
using Ring = WeightRing<SLOTS, kUnitBytes>;
static_assert(WINDOW < SLOTS && WIDE < SLOTS, "copies on their way are part of the ring");
// Whether a block mixes several parts of rows, or takes several heads through the KDA step, which are whole ones then.
constexpr bool kMixesMore = kRowsAtOnce * FirstMix::kBlocks > BLOCKS;
constexpr bool kVerifies = TOKENS > 0;
constexpr int kTokens = kVerifies ? TOKENS : 1;  // rows of a request
static_assert(!kVerifies || !kAlone, "a row alone leaves its step in cells");
constexpr bool kStepsMore = SPLIT == 1 && kRowsAtOnce / kTokens * HEADS > BLOCKS;
#if TOKENS
// Registers decide: of sixteen rows at once a value comes in two parts of each half of k, and much of a head's state takes most of them.
constexpr int kAskedAtOnce = kTokens % 2 || kSpans != 1 || SPLIT == 1 ? 1 : 2;
using Recurrence = KdaWalk<SPLIT, kTokens, kAskedAtOnce, SPLIT <= 2 ? 4 / SPLIT : 0>;
#else
using Recurrence = KdaStep<SPLIT, kStepsMore ? 4 : 0>;
#endif

constexpr int kScratchFloats = 4096;
static_assert(Recurrence::kFloats + kRowsAtOnce <= kScratchFloats, "what is worked out together fits, and the scales of rows");
constexpr int kShared = SLOTS * kUnitBytes + 4 * kScratchFloats + Ring::kBarrierBytes + 16;
static_assert(kShared == SHARED_BYTES, "the launch asks for what the kernel uses");

// By all consumers: what the KDA step left of a row alone, into shared memory. They may use the scratch before.
__device__ __forceinline__ void receive_step(
    const unsigned long long* cells, float* near, uint32_t epoch, unsigned long long* health) {
    constexpr int kAll = kChannels + HEADS * kGroups, kEach = (kAll + kConsumers - 1) / kConsumers;
    static_assert(!kAlone || kRowsAtOnce * HEADS + kAll <= kScratchFloats, "it fits behind the scales");
    const unsigned long long* from[kEach];
    float values[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) from[i] = cells + min(static_cast<int>(threadIdx.x) + i * kConsumers, kAll - 1);
    receive_all(from, values, epoch, health);
    sync_consumers();
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        if (threadIdx.x + i * kConsumers < kAll) near[threadIdx.x + i * kConsumers] = values[i];
    sync_consumers();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) kda_front(
    // rows
    const __nv_bfloat16* stream, const __nv_bfloat16* banks, const int* slots, const __nv_bfloat16* peers,
    int rows, int bank_count, int peer_count, bool restart,
    int stream_stride, int bank_stride, int bank_row_stride, int slots_stride, int peer_stride, int peer_row_stride,
    // weights
    const float* queries, const __nv_bfloat16* out_norm_1, const __nv_bfloat16* out_norm_2,
    const __nv_bfloat16* in_proj, const __nv_bfloat16* o_proj, const __nv_bfloat16* front,
    const __nv_bfloat16* f_b, const float* conv_weight, const float* rate, const float* dt_bias,
    const __nv_bfloat16* o_norm,
    // state
    __nv_bfloat16* conv_state, float* recurrent_state, int conv_page_stride, int state_page_stride,
    // results
    __nv_bfloat16* partial, __nv_bfloat16* stream_out, float* logits, __nv_bfloat16* latent, __nv_bfloat16* shared,
    // scratch
    __nv_bfloat16* normed, float* gated, float* squares, float* others, float* bank_sums,
    float* bank_scalars, float* mix_squares, long long* cells
#ifdef STAMPS
    , long long* stamps
#endif
) {
    extern __shared__ __align__(1024) unsigned char memory[];
    float* scratch = reinterpret_cast<float*>(memory + SLOTS * kUnitBytes);
    uint32_t* shared_epoch = reinterpret_cast<uint32_t*>(scratch + kScratchFloats);
    float* alone_scale = reinterpret_cast<float*>(shared_epoch + 2);  // of the first mix of a row alone
    Ring ring(memory, shared_epoch + 4);
    const int thread = threadIdx.x, block = blockIdx.x;
    volatile uint32_t* ahead = shared_epoch + 1;  // copies of the ring on their way
    if (thread == 0) ring.init(kWarps), *ahead = WINDOW;
    __syncthreads();
    if (!PDL) let_dependents_launch();
    if (thread >= kConsumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (thread == kConsumers) {
            InProjection::produce(ring, in_proj, ahead);
            OutProjection::produce(ring, o_proj, ahead);
            Front::produce(ring, front, ahead);
        } else if (thread >= kConsumers + 32) {
            wait_for_predecessors();
            add_others(peers, peer_count, peer_stride, peer_row_stride, restart ? nullptr : stream, stream_stride, rows,
                       others, block * kHelpers + thread - kConsumers - 32, BLOCKS * kHelpers);
            if (kAlone && thread < kConsumers + 64)
                wait_for_consumers(reinterpret_cast<unsigned long long*>(cells), kPhases, kRow, alone_scale);
            else
                asm volatile("bar.arrive 3, %0;" ::"n"(kConsumers + kHelpers) : "memory");
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    wait_for_predecessors();
    STAMP(0);
    const auto load_mix = [&](FirstMix& mix) {
        mix.load(stream + static_cast<size_t>(mix.row) * stream_stride,
                 banks + static_cast<size_t>(mix.row) * bank_row_stride, bank_count, bank_stride, queries, out_norm_1);
    };
    unsigned long long* words = reinterpret_cast<unsigned long long*>(cells);
    unsigned long long* health = words + 1;
    FirstMix first(block);
    const bool mixes_first = first.row < rows;
    if (mixes_first) load_mix(first);
    const KdaTensors tensors{f_b, conv_weight, rate, dt_bias, o_norm, slots, slots_stride, conv_state, recurrent_state,
                             conv_page_stride, state_page_stride, gated, squares};
    const int items = rows / kTokens * HEADS * SPLIT;
    const bool steps = block < items;
    Recurrence kda(tensors, steps ? block : 0);
    if (steps) kda.bring_near();
    const HalfLayer half{rows, queries, out_norm_2, partial, stream_out, logits, latent, shared,
                         normed + kRowsAtOnce * kHidden, others, bank_sums, bank_scalars, words + kOwn, words + kTails,
                         health};
    const Projection projection{words + kProjection};
    half.bring_near();
    GridBarrier barrier;
    if (thread == 0) {
        barrier.start(words, BLOCKS, kPhases);
        *shared_epoch = barrier.epoch();
    }
    // First mix.
    sync_consumers();  // the epoch is there
    const uint32_t epoch = *shared_epoch;
    const auto mixed = [&](int row) {
        return MixedRow{normed + row * kHidden, mix_squares + row * FirstMix::kBlocks, kAlone ? words + kRow : nullptr};
    };
    if (mixes_first) {
        first.write(words + kMail + first.row * FirstMix::kMail, health, epoch, mixed(first.row),
                    BankSum{bank_sums + first.row * kHidden, bank_scalars + first.row * 2}, scratch);
    }
    // Nobody waits in vain: blocks come to rows in their order, and to each but once.
    if constexpr (kMixesMore)
        for (int part = block + BLOCKS; part < rows * FirstMix::kBlocks; part += BLOCKS) {
            FirstMix next(part);
            load_mix(next);
            sync_consumers();
            next.write(words + kMail + next.row * FirstMix::kMail, health, epoch, mixed(next.row),
                       BankSum{bank_sums + next.row * kHidden, bank_scalars + next.row * 2}, scratch);
        }
    STAMP(1);
    if (!kAlone) arrive_together(barrier), wait_together(barrier);
    STAMP(2);

    // In-projection: nobody waits for anything but weights, once the mix is there.
    {
        uint4 x[InProjection::kHeld];
        if (kAlone) {
            sync_consumers();  // the scratch is free
            read_normed_alone<InProjection>(x, words + kRow, reinterpret_cast<__nv_bfloat16*>(scratch), epoch, health);
        } else {
            read_normed<InProjection>(x, normed, rows);
        }
        if (thread == 0) *ahead = WIDE;
        const auto keep = [&](int column, int at, InProjection::Column parts, bool starts, bool) {
            if (at < rows) projection.send(at, column, starts, parts.sum(), epoch);
        };
        InProjection::consume(ring, x, scratch, keep);
    }
    STAMP(3);

    // KDA step.
    if (thread == 0) *ahead = WINDOW;
    float* const row_scales = scratch + kScratchFloats - kRowsAtOnce;  // of the rows of a step to verify
#if TOKENS
    const auto take = [&](int item) {
        const int request = item / (HEADS * SPLIT);
        kda.walk([&](const int(&tokens)[3 * kAskedAtOnce], const int(&columns)[3 * kAskedAtOnce],
                     float(&values)[3 * kAskedAtOnce]) {
            int at[3 * kAskedAtOnce];
#pragma unroll
            for (int i = 0; i < 3 * kAskedAtOnce; ++i) at[i] = request * kTokens + tokens[i];
            projection.receive(at, columns, values, epoch, health);
#pragma unroll
            for (int i = 0; i < 3 * kAskedAtOnce; ++i) values[i] *= row_scales[at[i]];
        }, scratch);
    };
    const auto shift = [] {};
#else
    const auto take = [&](int item) {
        const int at = item / (HEADS * SPLIT);
        const float scale = kAlone ? *alone_scale : FirstMix::scale(mix_squares + at * FirstMix::kBlocks);
        const int row[3] = {at, at, at};
        kda.step([&](const int(&columns)[3], float(&values)[3]) {
            projection.receive(row, columns, values, epoch, health);
#pragma unroll
            for (int i = 0; i < 3; ++i) values[i] *= scale;
        }, scratch, StepCells{kAlone ? words + kStep : nullptr, epoch});
    };
    const auto shift = [&] { kda.shift(); };
#endif
    if (steps) kda.load();
    if constexpr (kStepsMore)
        for (int item = block + BLOCKS; item < items; item += BLOCKS) Recurrence(tensors, item).bring_near();
    if (kAlone)
        scale_is_there();
    else
        sync_consumers();
    if (kVerifies) {
        if (thread < rows) row_scales[thread] = FirstMix::scale(mix_squares + thread * FirstMix::kBlocks);
        sync_consumers();
    }
    STAMP(4);
    if constexpr (kStepsMore) {
        constexpr int kRounds = (kRowsAtOnce / kTokens * HEADS + BLOCKS - 1) / BLOCKS;
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int item = block + round * BLOCKS;
            if (item >= items) break;
            if (round) shift(), kda.turn_to(item), kda.load();
            take(item);
        }
    } else if (steps) {
        take(block);
    }
    STAMP(5);
    if (kAlone) {
        written_alone();
    } else {
        asm volatile("bar.sync 3, %0;" ::"n"(kConsumers + kHelpers) : "memory");
        arrive_together(barrier), wait_together(barrier);
        if (steps) shift();
    }
    STAMP(6);

    // Output projection.
    {
        uint4 x[OutProjection::kHeld];
        float* scales = scratch;  // [rows][h]
        float* near = scratch + kRowsAtOnce * HEADS;  // of a row alone: what the step left of it
        float values[OutProjection::kChunks][8];
        const int lane_row = OutProjection::row_of_lane();
        const auto load_gated = [&](int row) {
#pragma unroll
            for (int chunk = 0; chunk < OutProjection::kChunks; ++chunk)
                if (row < rows) {
                    if (kAlone)
                        load_eight_near(near + OutProjection::k_of(chunk), values[chunk]);
                    else
                        load_eight(gated + row * kChannels + OutProjection::k_of(chunk), values[chunk]);
                }
        };
        if (kAlone) receive_step(words + kStep, near, epoch, health);
        load_gated(lane_row);
        if (thread < rows * HEADS) {
            float eight[8], sum = 0;
            if (kAlone)
                load_eight_near(near + kChannels + thread * kGroups, eight);
            else
                load_eight(squares + thread * kGroups, eight);
#pragma unroll
            for (int i = 0; i < kGroups; ++i) sum += eight[i];
            scales[thread] = 1.f / sqrtf(sum / kHeadDim + OUTPUT_EPS);
        }
        sync_consumers();
#pragma unroll
        for (int eight = 0; eight < kEights; ++eight) {
            const int row = lane_row + 8 * eight;
            if (eight) load_gated(row);
#pragma unroll
            for (int chunk = 0; chunk < OutProjection::kChunks; ++chunk) {
                uint4& operand = x[eight * OutProjection::kChunks + chunk];
                operand = make_uint4(0, 0, 0, 0);
                if (row < rows) {
                    const float scale = scales[row * HEADS + OutProjection::k_of(chunk) / kHeadDim];
#pragma unroll
                    for (int i = 0; i < 8; ++i) values[chunk][i] *= scale;
                    operand = pack(values[chunk]);
                }
            }
        }
        sync_consumers();
        half.project<OutProjection>(ring, x, scratch, epoch);
    }
    STAMP(7);

    if (kAlone) {
        grid_is_there();
        if (steps) shift();
    }
    half.mix_and_front(ring, barrier, scratch, epoch, [&](int step) { STAMP(8 + step); });
}
