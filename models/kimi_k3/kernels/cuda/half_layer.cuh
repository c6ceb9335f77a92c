// The outer stages of a layer's first half, whatever attention lies between them:
//
//     first mix | in-projection ... output projection : second mix | front
//
// A row is mixed by seven blocks first, by one the second time; a single row by every block for itself then, which saves
// the last barrier. Three warps add up, beside all this, what the output projection's result will be added to.
//
// A row alone (ALONE, an instance of its own) meets at no barrier that consumers wait at: the first mix carries its launch's
// number too, and whoever reads what does not (sums of banks and of peers' shares) is told by a helper, who has waited for the
// grid meanwhile.
//
// ROWS_AT_ONCE is 8 or 16. Consumers hold eight rows' activations of all k (114 KB a block), or sixteen rows' of half of
// it: then two blocks are a team, which has tiles of the in-projection and the front together. Each takes one half of k,
// and multiplies both groups of eight rows by every fragment that it reads. Weights are packed the same for both.
#pragma once
#include "block.cuh"
#include "dependent_launch.cuh"
#include "grid_barrier.cuh"
#include "handed_on.cuh"
#include "row_mix.cuh"
#include "split_product.cuh"
#include "weight_ring.cuh"

constexpr int kPairs = (ROUTER + LATENT + 15) / 16 * 16;  // where gate and up begin among the front's rows
constexpr int kFront = kPairs + 2 * SHARED;
constexpr int kRowsAtOnce = ROWS_AT_ONCE, kEights = kRowsAtOnce / 8, kSpans = kEights;
static_assert(kRowsAtOnce == 8 || kRowsAtOnce == 16, "what fits in the registers");
// Registers move from the producer's group of warps to the consumers, who hold activations in them: of 96 for each of
// 640 threads, 32 and 112. A launch with another number of threads would wait for registers for ever.
constexpr int kThreads = kConsumers + 128;
constexpr int kHelpers = 96;
constexpr int kFirstCell = 16;            // in front of it: the barrier's counter and the health word
constexpr int kTailCells = 128;           // of a block: what it has of a tile of the front that another one finishes
constexpr int kMailCells = kRowsAtOnce * FirstMix::kMail;
constexpr bool kAlone = ALONE;
static_assert(!kAlone || kRowsAtOnce == 8, "the instance with fewer registers for activations");
constexpr int kRowCells = kRowsAtOnce == 8 ? FirstMix::kCells : 0;  // of the first mix of a row alone
static_assert(kRowsAtOnce <= BLOCKS, "a block mixes one row the second time");
static_assert(FirstMix::kBlocks <= BLOCKS, "parts of a row's first mix wait for each other");

using Front = SplitProduct<kFront, kHidden, 1, BLOCKS, false, 0, kEights, kSpans>;

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

// A block at the grid barrier: by all consumers, of which one counts.
__device__ __forceinline__ void arrive_together(GridBarrier& barrier) {
    sync_consumers();
    if (threadIdx.x == 0) barrier.arrive();
}

__device__ __forceinline__ void wait_together(GridBarrier& barrier) {
    if (threadIdx.x == 0) barrier.wait();
    sync_consumers();
}

// Of a row alone, the first warp of the helpers, which has left what it adds up, waits for two things that consumers need
// later: the scale of the first mix, whose cells are `row`; and the grid, for which it counts the block in at all phases, as soon
// as consumers say that they have written what others read behind the barrier.
__device__ __forceinline__ void wait_for_consumers(unsigned long long* words, int phases, int row, float* scale) {
    const bool counts = threadIdx.x == kConsumers + 32;
    GridBarrier barrier;
    if (counts) barrier.start(words, BLOCKS, phases);
    const uint32_t epoch = __shfl_sync(~0u, counts ? barrier.epoch() : 0, 0);
    const float found = FirstMix::scale(words + row, epoch, words + 1);
    if (counts) *scale = found;
    __syncwarp();
    asm volatile("bar.arrive 5, %0;" ::"n"(kConsumers + 32) : "memory");
    asm volatile("bar.sync 3, %0;" ::"n"(kConsumers + kHelpers) : "memory");
    if (counts) {
        barrier.start(words, BLOCKS, phases);  // again: it takes fewer registers than to keep it
        barrier.arrive(phases), barrier.wait();
    }
    __syncwarp();
    asm volatile("bar.arrive 4, %0;" ::"n"(kConsumers + 32) : "memory");
}
__device__ __forceinline__ void scale_is_there() {
    asm volatile("bar.sync 5, %0;" ::"n"(kConsumers + 32) : "memory");
}
__device__ __forceinline__ void written_alone() {
    asm volatile("bar.arrive 3, %0;" ::"n"(kConsumers + kHelpers) : "memory");
}
__device__ __forceinline__ void grid_is_there() {
    asm volatile("bar.sync 4, %0;" ::"n"(kConsumers + 32) : "memory");
}

// The eight k of each chunk that this lane multiplies, of the batch rows whose columns of B it holds; zeros behind the
// rows.
template <class Product>
__device__ __forceinline__ void read_normed(uint4 (&x)[Product::kHeld], const __nv_bfloat16* from, int rows) {
    const int row = Product::row_of_lane();
    from += row * kHidden + Product::k_of(0);
#pragma unroll
    for (int i = 0; i < Product::kHeld; ++i) x[i] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int eight = 0; eight < Product::kRows / 8; ++eight) {
        if (row + 8 * eight >= rows) return;
#pragma unroll
        for (int chunk = 0; chunk < Product::kChunks; ++chunk)
            x[eight * Product::kChunks + chunk] =
                *reinterpret_cast<const uint4*>(from + 8 * eight * kHidden + chunk * Product::kChunk);
    }
}

// The same of a row alone, from its cells by way of `near`, 7168 bf16 in shared memory which are free when this returns.
template <class Product>
__device__ __forceinline__ void read_normed_alone(
    uint4 (&x)[Product::kHeld], const unsigned long long* cells, __nv_bfloat16* near, uint32_t epoch,
    unsigned long long* health) {
    constexpr int kEach = kHidden / 2 / kConsumers;
    static_assert(kEach * kConsumers == kHidden / 2, "every thread takes as many");
    uint32_t pairs[kEach];
    receive_row(cells, pairs, epoch, health);
#pragma unroll
    for (int i = 0; i < kEach; ++i) reinterpret_cast<uint32_t*>(near)[threadIdx.x + i * kConsumers] = pairs[i];
    sync_consumers();
    read_normed<Product>(x, near, 1);
    sync_consumers();
}

// From the output projection on, with all that these stages read and write.
struct HalfLayer {
    int rows;
    const float* queries;               // [2, 7168]
    const __nv_bfloat16* out_norm;      // [7168]: of the second mix
    __nv_bfloat16* partial;             // [rows, 7168]
    __nv_bfloat16* stream;              // [rows, 7168]
    float* logits;                      // [rows, ROUTER]
    __nv_bfloat16* latent;              // [rows, LATENT]
    __nv_bfloat16* shared;              // [rows, SHARED]
    __nv_bfloat16* normed;              // [rows, 7168]: what the front reads, of several rows
    const float* others;                // [rows, 7168]: what the output projection is added to
    float* bank_sums;                   // [rows, 7168]
    float* bank_scalars;                // [rows, 2]
    unsigned long long* own;            // cells, [rows, 7168]: this rank's share
    unsigned long long* tails;          // cells, [blocks, 128]; of sixteen rows those of the front, handed on
    unsigned long long* health;

    // What the second mix needs beside values, from wherever it is into the L2.
    __device__ __forceinline__ void bring_near() const {
        const int line = blockIdx.x * kConsumers + threadIdx.x;
        if (line < kHidden / 32) prefetch(queries + kHidden + line * 32);
        if (line < kHidden / 64) prefetch(out_norm + line * 64);
    }

    template <class OutProjection, class Ring>
    __device__ __forceinline__ void project(
        Ring& ring, const uint4 (&x)[OutProjection::kHeld], float* scratch, uint32_t epoch) const {
        const auto keep = [&](int column, int at, typename OutProjection::Column parts, bool, bool) {
            if (at < rows) send(own + at * kHidden + own_place(column), parts.sum(), epoch);
        };
        OutProjection::consume(ring, x, scratch, keep);
    }

    // A row alone comes from grid_is_there(). `stage`(i): begin of the i-th step of these, for whoever takes times.
    template <class Ring, class Stage>
    __device__ __forceinline__ void mix_and_front(
        Ring& ring, GridBarrier& barrier, float* scratch, uint32_t epoch, Stage stage) const {
        const int block = blockIdx.x, thread = threadIdx.x;
        __nv_bfloat16* near = reinterpret_cast<__nv_bfloat16*>(scratch + 512);  // one row of the batch
        // Second mix.
        const bool mixes = kAlone || block < rows;
        const int row = kAlone ? 0 : block;
        const BankSum kept{bank_sums + row * kHidden, bank_scalars + row * 2};
        SecondMix second;
        if (!kAlone) sync_consumers();
        if (mixes) second.load(kept, others + row * kHidden, queries + kHidden, out_norm);
        stage(0);
        if (mixes)
            second.write(
                [&](int column, float(&share)[8]) {
                    const unsigned long long* from[8];
#pragma unroll
                    for (int i = 0; i < 8; ++i) from[i] = own + row * kHidden + column / 8 + own_place(i);
                    receive_all(from, share, epoch, health);
                },
                block == row, partial + row * kHidden, stream + row * kHidden, kAlone ? near : normed + row * kHidden,
                scratch);
        if (kAlone)
            sync_consumers();
        else
            arrive_together(barrier), wait_together(barrier);
        stage(1);

        // Front. Behind it there is nothing but the end, so a successor may come as blocks leave.
        if (PDL) let_dependents_launch();
        uint4 x[Front::kHeld];
        read_normed<Front>(x, kAlone ? near : normed, rows);
        sync_consumers();  // `near` lies in the scratch of the product
        if constexpr (kSpans == 1) {
            // A tile that two blocks share is finished by the one that has its beginning, the last thing it does; the
            // other one met it first.
            Front::consume(ring, x, scratch, [&](int line, int at, Front::Column parts, bool starts, bool ends) {
                if (!starts) {
                    send(tails + block * kTailCells + thread, parts.sum(), epoch);
                    return;
                }
                const unsigned long long* tail = tails + (block + 1) * kTailCells + thread;
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
            front_in_teams(ring, x, scratch, epoch);
        }
        stage(2);
    }

    // Everybody hands on what it has, then finishes eight rows of the tiles that begin in its team.
    template <class Ring>
    __device__ __forceinline__ void front_in_teams(
        Ring& ring, const uint4 (&x)[Front::kHeld], float* scratch, uint32_t epoch) const {
        const HandedOn<Front, kFront> handed{tails};
        Front::consume(ring, x, scratch, [&](int line, int at, Front::Column parts, bool starts, bool) {
            if (at < rows) handed.send(at, line, starts, parts.sum(), epoch);
        });
        const auto tiles_before = [](int team) { return (Front::begin(team) + Front::kChunks - 1) / Front::kChunks; };
        const int tile = tiles_before(Front::team()), tiles = tiles_before(Front::team() + 1) - tile;
        for (int i = threadIdx.x; i < tiles * 128; i += kConsumers) {
            const int line = (tile + i / 128) * 16 + i % 16, at = Front::span() * 8 + i / 16 % 8;
            if (at >= rows) continue;
            if (line < kPairs) {
                const int row[1] = {at}, lines[1] = {line};
                float sum[1];
                handed.receive(row, lines, sum, epoch, health);
                if (line < ROUTER)
                    logits[at * ROUTER + line] = sum[0];
                else if (line < ROUTER + LATENT)
                    latent[at * LATENT + line - ROUTER] = __float2bfloat16(sum[0]);
            } else if (i % 16 < 8) {
                const int row[2] = {at, at}, lines[2] = {line, line + 8};
                float sums[2];
                handed.receive(row, lines, sums, epoch, health);
                const int channel = (line - kPairs) / 16 * 8 + i % 16;
                shared[at * SHARED + channel] = __float2bfloat16(situ(sums[0], sums[1]));
            }
        }
    }
};
