// A KDA layer from its first mix to what enters the mixture of experts, in one launch: kda_front.py says what that is.
//
// One block a multiprocessor stays for the whole launch. One thread of each streams the block's weights, all three
// matrices in a row, through a ring of SLOTS x 16 KiB; 16 warps compute:
//
//     first mix | in-projection : KDA step | output projection : second mix | front
//
// with a grid barrier at each bar, behind which other blocks' results are read. At a colon there is none: values carry
// their launch's number (tagged_floats.cuh), and whoever needs some waits for these alone. A row is mixed by seven blocks first,
// by one the second time; a single row by every block for itself then, which saves the last barrier. Three warps add
// up, beside all this, what the output projection's result will be added to.
//
// ROWS_AT_ONCE is 8 or 16. Consumers hold eight rows' activations of all k (114 KB a block), or sixteen rows' of half of
// it: then two blocks are a team, which has tiles of the in-projection and the front together. Each takes one half of k, and
// multiplies both groups of eight rows by every fragment that it reads. Weights are packed the same for both.
#include "block.cuh"
#include "grid_barrier.cuh"
#include "kda_step.cuh"
#include "row_mix.cuh"
#include "split_product.cuh"
#include "weight_ring.cuh"

constexpr int kProjected = (4 * kChannels + kGateRank + HEADS + 15) / 16 * 16;
constexpr int kPairs = (ROUTER + LATENT + 15) / 16 * 16;  // where gate and up begin among the front's rows
constexpr int kFront = kPairs + 2 * SHARED;
constexpr int kRowsAtOnce = ROWS_AT_ONCE, kEights = kRowsAtOnce / 8, kSpans = kEights;
static_assert(kRowsAtOnce == 8 || kRowsAtOnce == 16, "what fits in the registers");
constexpr int kPhases = 3;
// Places in `cells`, behind the barrier's, all tagged: mail of the rows' first mixes; of the rows at once the projection,
// in two parts for each span of k, and this rank's share of the output projection; then what blocks have of the front's
// tiles that others finish: a tile a block, or of sixteen rows all, in parts like the projection's.
constexpr int kParts = 2 * kSpans;
constexpr int kMail = 16, kProjection = kMail + kRowsAtOnce * 7 * 32;
constexpr int kOwn = kProjection + kParts * kRowsAtOnce * kProjected, kTails = kOwn + kRowsAtOnce * kHidden;
// Registers move from the producer's group of warps to the consumers, who hold activations in them: of 96 for each of
// 640 threads, 32 and 112. A launch with another number of threads would wait for registers for ever.
constexpr int kThreads = kConsumers + 128;
constexpr int kHelpers = 96;

using InProjection = SplitProduct<kProjected, kHidden, 1, BLOCKS, false, kEights, kSpans>;
using OutProjection = SplitProduct<kHidden, kChannels, 2, BLOCKS, true, kEights>;
using Front = SplitProduct<kFront, kHidden, 1, BLOCKS, false, kEights, kSpans>;
using Ring = WeightRing<SLOTS, kUnitBytes>;
static_assert(WINDOW < SLOTS && WIDE < SLOTS, "copies on their way are part of the ring");
static_assert(kRowsAtOnce <= BLOCKS, "a block mixes one row the second time");
static_assert(FirstMix::kBlocks <= BLOCKS, "parts of a row's first mix wait for each other");
// Whether a block mixes several parts of rows, or takes several heads through the KDA step, which are whole ones then.
constexpr bool kMixesMore = kRowsAtOnce * FirstMix::kBlocks > BLOCKS;
constexpr bool kStepsMore = SPLIT == 1 && kRowsAtOnce * HEADS > BLOCKS;
using Step = KdaStep<SPLIT, kStepsMore ? 4 : 0>;

constexpr int kScratchFloats = 4096;
constexpr int kShared = SLOTS * kUnitBytes + 4 * kScratchFloats + Ring::kBarrierBytes + 16;
static_assert(kShared == SHARED_BYTES, "the launch asks for what the kernel uses");

#ifdef STAMPS
#define STAMP(i) if (threadIdx.x == 0) stamps[blockIdx.x * 16 + (i)] = stamp()
__device__ __forceinline__ long long stamp() {
    long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
#else
#define STAMP(i)
#endif

__device__ __forceinline__ float situ(float gate, float up) {
    return SITU_BETA * tanhf(gate / SITU_BETA) * sigmoid(gate) * SITU_LINEAR_BETA * tanhf(up / SITU_LINEAR_BETA);
}

// Columns of one row of a product: sums over the parts of which each consists, at `cells`, [part][row][WIDTH].
template <class Product, int WIDTH, int COUNT>
__device__ __forceinline__ void collect(
    const unsigned long long* cells, const int (&columns)[COUNT], float (&values)[COUNT], uint32_t epoch,
    unsigned long long* health) {
    const unsigned long long* from[kParts * COUNT];
    float found[kParts * COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        from[i] = cells + columns[i];
        from[COUNT + i] = from[i] + (Product::halved(columns[i]) ? kRowsAtOnce * WIDTH : 0);
    }
    // Spans are cut alike.
#pragma unroll
    for (int i = 2 * COUNT; i < kParts * COUNT; ++i) from[i] = from[i - 2 * COUNT] + 2 * kRowsAtOnce * WIDTH;
    receive_all(from, found, epoch, health);
#pragma unroll
    for (int span = 0; span < kSpans; ++span)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int one = 2 * span * COUNT + i, other = one + COUNT;
            const float sum = from[other] == from[one] ? found[one] : found[one] + found[other];
            values[i] = span ? values[i] + sum : sum;
        }
}

// Where the tagged share of a column lies in its row: whoever takes eight columns in a row reads beside its neighbours.
__device__ __forceinline__ int own_place(int column) { return column % 8 * (kHidden / 8) + column / 8; }

// The other ranks' shares in rank order and the residual, two columns a thread, by `count` threads from `first` on.
__device__ __forceinline__ void add_others(
    const __nv_bfloat16* peers, int peer_count, int peer_stride, int peer_row_stride, const __nv_bfloat16* residual,
    int residual_stride, int rows, float* others, int first, int count) {
    for (int i = first; i < rows * kHidden / 2; i += count) {
        const int row = i / (kHidden / 2), column = i % (kHidden / 2) * 2;
        const __nv_bfloat16* from = peers + static_cast<size_t>(row) * peer_row_stride + column;
        float2 sum = {0, 0};
#pragma unroll 4
        for (int peer = 0; peer < peer_count; ++peer) {
            const __nv_bfloat16* at = from + static_cast<size_t>(peer) * peer_stride;
            const uint32_t pair = __ldg(reinterpret_cast<const uint32_t*>(at));
            sum.x += __uint_as_float(pair << 16), sum.y += __uint_as_float(pair & 0xffff0000u);
        }
        if (residual) {
            const __nv_bfloat16* at = residual + static_cast<size_t>(row) * residual_stride + column;
            const uint32_t pair = __ldg(reinterpret_cast<const uint32_t*>(at));
            sum.x += __uint_as_float(pair << 16), sum.y += __uint_as_float(pair & 0xffff0000u);
        }
        *reinterpret_cast<float2*>(others + row * kHidden + column) = sum;
    }
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
    Ring ring(memory, shared_epoch + 4);
    const int thread = threadIdx.x, block = blockIdx.x;
    volatile uint32_t* ahead = shared_epoch + 1;  // copies of the ring on their way
    if (thread == 0) ring.init(kWarps), *ahead = WINDOW;
    __syncthreads();
    asm volatile("griddepcontrol.launch_dependents;");
    if (thread >= kConsumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (thread == kConsumers) {
            InProjection::produce(ring, in_proj, ahead);
            OutProjection::produce(ring, o_proj, ahead);
            Front::produce(ring, front, ahead);
        } else if (thread >= kConsumers + 32) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            add_others(peers, peer_count, peer_stride, peer_row_stride, restart ? nullptr : stream, stream_stride, rows,
                       others, block * kHelpers + thread - kConsumers - 32, BLOCKS * kHelpers);
            asm volatile("bar.arrive 3, %0;" ::"n"(kConsumers + kHelpers) : "memory");
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    STAMP(0);
    const auto load_mix = [&](FirstMix& mix) {
        mix.load(stream + static_cast<size_t>(mix.row) * stream_stride,
                 banks + static_cast<size_t>(mix.row) * bank_row_stride, bank_count, bank_stride, queries, out_norm_1);
    };
    FirstMix first(block);
    const bool mixes_first = first.row < rows;
    if (mixes_first) load_mix(first);
    const KdaTensors tensors{f_b, conv_weight, rate, dt_bias, o_norm, slots, slots_stride, conv_state, recurrent_state,
                             conv_page_stride, state_page_stride, gated, squares};
    const bool steps = block < rows * HEADS * SPLIT;
    Step kda(tensors, steps ? block : 0);
    if (steps) kda.bring_near();
    // What the second mix needs beside values, from wherever it is.
    const int line = block * kConsumers + thread;
    if (line < kHidden / 32) prefetch(queries + kHidden + line * 32);
    if (line < kHidden / 64) prefetch(out_norm_2 + line * 64);
    const bool alone = kRowsAtOnce == 8 && rows == 1;
    __nv_bfloat16* near = reinterpret_cast<__nv_bfloat16*>(scratch + 512);  // one row of the batch
    GridBarrier barrier;
    if (thread == 0) {
        barrier.start(reinterpret_cast<unsigned long long*>(cells), BLOCKS, kPhases);
        *shared_epoch = barrier.epoch();
    }
    const auto arrive = [&] {
        sync_consumers();
        if (thread == 0) barrier.arrive();
    };
    const auto wait = [&] {
        if (thread == 0) barrier.wait();
        sync_consumers();
    };
    // The eight k of a chunk that this lane multiplies, of the batch rows whose columns of B it holds.
    const int lane_row = InProjection::row_of_lane();
    const auto read_normed = [&](uint4(&x)[InProjection::kHeld], const __nv_bfloat16* from) {
        from += lane_row * kHidden + InProjection::k_of(0);
#pragma unroll
        for (int i = 0; i < InProjection::kHeld; ++i) x[i] = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int eight = 0; eight < kEights; ++eight) {
            if (lane_row + 8 * eight >= rows) return;
#pragma unroll
            for (int chunk = 0; chunk < InProjection::kChunks; ++chunk)
                x[eight * InProjection::kChunks + chunk] =
                    *reinterpret_cast<const uint4*>(from + 8 * eight * kHidden + chunk * InProjection::kChunk);
        }
    };

    // First mix.
    sync_consumers();  // the epoch is there
    const uint32_t epoch = *shared_epoch;
    unsigned long long* words = reinterpret_cast<unsigned long long*>(cells);
    unsigned long long* health = words + 1;
    if (mixes_first) {
        first.write(words + kMail + first.row * FirstMix::kMail, health, epoch,
                    normed + first.row * kHidden, mix_squares + first.row * FirstMix::kBlocks,
                    BankSum{bank_sums + first.row * kHidden, bank_scalars + first.row * 2}, scratch);
    }
    // Nobody waits in vain: blocks come to rows in their order, and to each but once.
    if constexpr (kMixesMore)
        for (int part = block + BLOCKS; part < rows * FirstMix::kBlocks; part += BLOCKS) {
            FirstMix next(part);
            load_mix(next);
            sync_consumers();
            next.write(words + kMail + next.row * FirstMix::kMail, health, epoch,
                       normed + next.row * kHidden, mix_squares + next.row * FirstMix::kBlocks,
                       BankSum{bank_sums + next.row * kHidden, bank_scalars + next.row * 2}, scratch);
        }
    STAMP(1);
    arrive(), wait();
    STAMP(2);

    // In-projection: nobody waits for anything but weights.
    if (thread == 0) *ahead = WIDE;
    {
        uint4 x[InProjection::kHeld];
        read_normed(x, normed);
        const int before = 2 * InProjection::span() * kRowsAtOnce;
        const auto keep = [&](int column, int at, InProjection::Column parts, bool starts, bool) {
            if (at < rows)
                send(words + kProjection + (before + (starts ? 0 : kRowsAtOnce) + at) * kProjected + column, parts.sum(),
                     epoch);
        };
        InProjection::consume(ring, x, scratch, keep);
    }
    STAMP(3);

    // KDA step.
    if (thread == 0) *ahead = WINDOW;
    const auto step = [&](int item) {
        const int at = item / (HEADS * SPLIT);
        const unsigned long long* mine = words + kProjection + at * kProjected;
        const float scale = FirstMix::scale(mix_squares + at * FirstMix::kBlocks);
        kda.step([&](const int(&columns)[3], float(&values)[3]) {
            collect<InProjection, kProjected>(mine, columns, values, epoch, health);
#pragma unroll
            for (int i = 0; i < 3; ++i) values[i] *= scale;
        }, scratch);
    };
    if (steps) kda.load();
    if constexpr (kStepsMore)
        for (int item = block + BLOCKS; item < rows * HEADS; item += BLOCKS) Step(tensors, item).bring_near();
    sync_consumers();
    STAMP(4);
    if constexpr (kStepsMore) {
        constexpr int kRounds = (kRowsAtOnce * HEADS + BLOCKS - 1) / BLOCKS;
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int item = block + round * BLOCKS;
            if (item >= rows * HEADS) break;
            if (round) kda.shift(), kda.turn_to(item), kda.load();
            step(item);
        }
    } else if (steps) {
        step(block);
    }
    asm volatile("bar.sync 3, %0;" ::"n"(kConsumers + kHelpers) : "memory");
    STAMP(5);
    arrive(), wait();
    if (steps) kda.shift();
    STAMP(6);

    // Output projection.
    {
        uint4 x[OutProjection::kHeld];
        float* scales = scratch;  // [rows][h]
        float values[OutProjection::kChunks][8];
        const auto load_gated = [&](int row) {
#pragma unroll
            for (int chunk = 0; chunk < OutProjection::kChunks; ++chunk)
                if (row < rows) load_eight(gated + row * kChannels + OutProjection::k_of(chunk), values[chunk]);
        };
        load_gated(lane_row);
        if (thread < rows * HEADS) {
            float eight[8], sum = 0;
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
        const auto keep = [&](int column, int at, OutProjection::Column parts, bool, bool) {
            if (at < rows) send(words + kOwn + at * kHidden + own_place(column), parts.sum(), epoch);
        };
        OutProjection::consume(ring, x, scratch, keep);
    }
    STAMP(7);

    // Second mix.
    const bool mixes = alone || block < rows;
    const int row = alone ? 0 : block;
    const BankSum kept{bank_sums + row * kHidden, bank_scalars + row * 2};
    SecondMix second;
    sync_consumers();
    if (mixes) second.load(kept, others + row * kHidden, queries + kHidden, out_norm_2);
    STAMP(8);
    if (mixes)
        second.write(
            [&](int column, float(&share)[8]) {
                const unsigned long long* from[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) from[i] = words + kOwn + row * kHidden + column / 8 + own_place(i);
                receive_all(from, share, epoch, health);
            },
            block == row, partial + row * kHidden, stream_out + row * kHidden,
            alone ? near : normed + (kRowsAtOnce + row) * kHidden, scratch);
    if (alone) {
        sync_consumers();
        if (thread == 0) barrier.skip(1);
    } else {
        arrive(), wait();
    }
    STAMP(9);

    // Front.
    uint4 x[Front::kHeld];
    read_normed(x, alone ? near : normed + kRowsAtOnce * kHidden);
    sync_consumers();  // `near` lies in the scratch of the product
    if constexpr (kSpans == 1) {
        // A tile that two blocks share is finished by the one that has its beginning, the last thing it does; the other
        // one met it first.
        Front::consume(
            ring, x, scratch, [&](int line, int at, Front::Column parts, bool starts, bool ends) {
                if (!starts) {
                    send(words + kTails + block * 128 + thread, parts.sum(), epoch);
                    return;
                }
                const unsigned long long* tail = words + kTails + (block + 1) * 128 + thread;
                const bool pairs = line >= kPairs;
                float rest[2] = {0, 0};
                if (!ends && (thread < 64 || !pairs)) rest[0] = receive(tail, epoch, health);
                if (!ends && pairs && thread < 64) rest[1] = receive(tail + 64, epoch, health);
                if (at >= rows) return;
                if (line < ROUTER) {
                    logits[at * ROUTER + line] = parts.sum() + rest[0];
                } else if (line < kPairs) {
                    if (line < ROUTER + LATENT)
                        latent[at * LATENT + line - ROUTER] = __float2bfloat16(parts.sum() + rest[0]);
                } else if (thread < 64) {  // eight rows of the gate, then the same eight of the up-projection
                    const float gate = parts.sum() + rest[0], up = parts.sum(64) + rest[1];
                    const int channel = (line - kPairs) / 16 * 8 + (thread >> 3);
                    shared[at * SHARED + channel] = __float2bfloat16(situ(gate, up));
                }
            });
    } else {
        // Everybody hands on what it has, then finishes eight rows of the tiles that begin in its team.
        unsigned long long* parts_of_span = words + kTails + Front::span() * 2 * kRowsAtOnce * kFront;
        Front::consume(ring, x, scratch, [&](int line, int at, Front::Column parts, bool starts, bool) {
            if (at < rows) send(parts_of_span + ((starts ? 0 : kRowsAtOnce) + at) * kFront + line, parts.sum(), epoch);
        });
        const auto tiles_before = [&](int team) { return (Front::begin(team) + Front::kChunks - 1) / Front::kChunks; };
        const int tile = tiles_before(Front::team()), tiles = tiles_before(Front::team() + 1) - tile;
        for (int i = thread; i < tiles * 128; i += kConsumers) {
            const int line = (tile + i / 128) * 16 + i % 16, at = Front::span() * 8 + i / 16 % 8;
            if (at >= rows) continue;
            const unsigned long long* mine = words + kTails + at * kFront;
            if (line < kPairs) {
                const int lines[1] = {line};
                float sum[1];
                collect<Front, kFront>(mine, lines, sum, epoch, health);
                if (line < ROUTER)
                    logits[at * ROUTER + line] = sum[0];
                else if (line < ROUTER + LATENT)
                    latent[at * LATENT + line - ROUTER] = __float2bfloat16(sum[0]);
            } else if (i % 16 < 8) {
                const int lines[2] = {line, line + 8};
                float sums[2];
                collect<Front, kFront>(mine, lines, sums, epoch, health);
                const int channel = (line - kPairs) / 16 * 8 + i % 16;
                shared[at * SHARED + channel] = __float2bfloat16(situ(sums[0], sums[1]));
            }
        }
    }
    STAMP(10);
}
