// A product x W^T over all blocks: W comes through the ring in units of 16 KiB, and every block owns the same number of
// consecutive units, give or take one, wherever a row of W ends; none, where there are too few to share out.
//
// A unit is TM groups of 16 rows of W by 512 / TM of k, in order of rows, then k. A warp multiplies 32 of k of one
// group: two MMA steps, whose activations stay in its registers for all rows of W. A tile (TM groups, all of k) that
// begins in one block may end in the next one; whoever reads it adds both parts. Which part a unit belongs to depends
// on sizes alone, so a row of the batch gets the same bits whatever is beside it.
//
// Sixteen batch rows fill twice the registers. Where those of all k do not fit, a team of blocks shares its tiles by k:
// each multiplies the units of its own span, and whoever reads a tile adds the spans as well. Weights are packed the same.
#pragma once
#include "block.cuh"
#include "mma.cuh"
#include "weight_ring.cuh"

constexpr int kUnitBytes = 16384;

// WHOLE: tiles stay whole, so that blocks own more or less by one tile. That is for weights which are there before
// anybody can use them. The blocks are BLOCKS_ from the one of number FIRST on. EIGHTS: groups of eight batch rows. SPANS:
// blocks of a team, consecutive ones; a block that is left over does nothing.
template <int ROWS_OF_W, int K, int TM, int BLOCKS_, bool WHOLE = false, int FIRST = 0, int EIGHTS = 1, int SPANS = 1>
struct SplitProduct {
    static constexpr int kGroups = TM;
    static constexpr int kRows = 8 * EIGHTS;
    static constexpr int kSpans = SPANS;
    static constexpr int kChunk = 512 / TM;             // k of a unit
    static constexpr int kChunks = K / kChunk / SPANS;  // units of a tile, of one span
    static constexpr int kHeld = EIGHTS * kChunks;      // activations of a lane, eight each
    static constexpr int kTiles = ROWS_OF_W / (16 * TM);
    static constexpr int kTeams = BLOCKS_ / SPANS;
    static constexpr int kUnits = kTiles * kChunks;
    static constexpr int kSharers = kWarps / TM;        // warps that split the k of a group
    static_assert(K % (kChunk * SPANS) == 0 && ROWS_OF_W % (16 * TM) == 0, "units tile the weight");
    static_assert(SPANS == 1 || !WHOLE && FIRST == 0, "teams are of all blocks, and have parts of tiles");
    static_assert(EIGHTS == 1 || EIGHTS == 2, "one lot of partial sums of that many fits in the scratch");
    // A tile has at most two parts in each span. Where there are too few units for that, fewer blocks work: halves of a
    // tile each, or nearly a whole one.
    static constexpr int kBlocks = kUnits / kTeams >= kChunks - 1          ? kTeams
                                   : kChunks % 2 == 0 && 2 * kTiles <= kTeams ? 2 * kTiles
                                                                           : kUnits / (kChunks - 1);
    // Whether some tile is shared by two blocks, or teams.
    static constexpr bool kHalves = !WHOLE && (kUnits % kBlocks != 0 || kUnits / kBlocks % kChunks != 0);

    __device__ static int team() { return blockIdx.x / SPANS; }
    __device__ static int span() { return blockIdx.x % SPANS; }

    // The first unit of a block, or of a team counted within a span.
    __device__ static int begin(int block) {
        if (FIRST) block = max(block - FIRST, 0);
        if (WHOLE) return min(block, BLOCKS_) * kTiles / BLOCKS_ * kChunks;
        return min(block, kBlocks) * kUnits / kBlocks;
    }
    __device__ static int owner(int unit) { return ((unit + 1) * kBlocks - 1) / kUnits; }

    // Whether the row `row` of W is computed in two parts.
    __device__ static bool halved(int row) {
        if (!kHalves) return false;
        const int first = row / (16 * TM) * kChunks;
        return owner(first) != owner(first + kChunks - 1);
    }

    // Where in k the activations lie that this lane multiplies in units of chunk `chunk`: eight in a row.
    __device__ static int k_of(int chunk) {
        const int warp = threadIdx.x >> 5, quarter = threadIdx.x & 3;
        return (span() * kChunks + chunk) * kChunk + warp % kSharers * 32 + quarter * 8;
    }

    // Which batch row of a group of eight these belong to.
    __device__ static int row_of_lane() { return (threadIdx.x & 31) >> 2; }

    // `ahead`: as of the ring's push(), read anew for each unit.
    template <class Ring>
    __device__ static void produce(Ring& ring, const void* weight, const volatile uint32_t* ahead) {
        const char* source = static_cast<const char*>(weight);
        for (int unit = begin(team()), end = begin(team() + 1); unit < end; ++unit) {
            const int packed = SPANS == 1 ? unit : unit + (unit / kChunks * (SPANS - 1) + span()) * kChunks;
            ring.push(source + static_cast<size_t>(packed) * kUnitBytes, *ahead);
        }
    }

    // Calls finish(row of W, batch row, this block's sum, starts, ends) by 128 * TM * EIGHTS threads for each tile:
    // `starts` and `ends` say whether the sum covers the beginning and the end of k.
    // `x[e * kChunks + c]`: eight bf16 at k_of(c) of the e-th group of rows. `scratch`: 4096 floats, two buffers for tiles of
    // eight rows or one for sixteen.
    template <class Ring, class Finish>
    __device__ static void consume(Ring& ring, const uint4 (&x)[kHeld], float* scratch, Finish finish) {
        int turn = 0;
        for (int unit = begin(team()), end = begin(team() + 1); unit < end;) {
            const int tile = unit / kChunks, first = unit - tile * kChunks, last = min(kChunks, first + end - unit);
            consume_tile(ring, x, scratch + (EIGHTS > 1 ? 0 : turn * 2048), tile, first, last, finish);
            turn ^= 1;
            unit += last - first;
        }
    }

    // The same where x depends on the tile: operand(tile, first, last, x) gives it for chunks `first` to `last`. By all
    // consumers, who pass a barrier in it, so that it may use the scratch.
    template <class Ring, class Operand, class Finish>
    __device__ static void consume_each(Ring& ring, float* scratch, Operand operand, Finish finish) {
        for (int unit = begin(team()), end = begin(team() + 1); unit < end;) {
            const int tile = unit / kChunks, first = unit - tile * kChunks, last = min(kChunks, first + end - unit);
            uint4 x[kHeld];
            operand(tile, first, last, x);
            consume_tile(ring, x, scratch, tile, first, last, finish);
            unit += last - first;
        }
    }

    // Whether this block has any unit.
    __device__ static bool has_units() { return begin(team()) < begin(team() + 1); }

    // Chunks `first` to `last` of a tile. `parts`: 2048 * EIGHTS floats.
    template <class Ring, class Finish>
    __device__ __forceinline__ static void consume_tile(
        Ring& ring, const uint4 (&x)[kHeld], float* parts, int tile, int first, int last, Finish& finish) {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const uint32_t own = (warp * 64 + lane) * 16;
        float even[EIGHTS][4] = {}, odd[EIGHTS][4] = {};
        // Two units at a time where there are two: their loads wait together.
#pragma unroll
        for (int chunk = 0; chunk < kChunks; chunk += 2) {
            const bool here = first <= chunk && chunk < last;
            const bool next = chunk + 1 < kChunks && first <= chunk + 1 && chunk + 1 < last;
            if (here && next) {
                const uint32_t slot = ring.front() + own, after = ring.behind(1) + own;
                const uint4 one = load_shared(slot), two = load_shared(slot + 512);
                const uint4 three = load_shared(after), four = load_shared(after + 512);
                add_step<0>(even, one, x, chunk);
                add_step<1>(odd, two, x, chunk);
                add_step<0>(even, three, x, (chunk + 1) % kChunks);
                add_step<1>(odd, four, x, (chunk + 1) % kChunks);
                ring.pop();
                ring.pop();
            } else {
                if (here) multiply(ring, own, x, chunk, even, odd);
                if (next) multiply(ring, own, x, (chunk + 1) % kChunks, even, odd);
            }
        }
        // Partial sums of sixteen rows fill the scratch: those of the tile before must have been added.
        if (EIGHTS > 1) sync_consumers();
        // W rows lane / 4 and 8 more, batch rows 2 (lane % 4) and the next one.
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight) {
            float2* mine = reinterpret_cast<float2*>(parts + (eight * kWarps + warp) * 128) + lane;
            mine[0] = make_float2(even[eight][0] + odd[eight][0], even[eight][1] + odd[eight][1]);
            mine[32] = make_float2(even[eight][2] + odd[eight][2], even[eight][3] + odd[eight][3]);
        }
        sync_consumers();
        if (threadIdx.x < 128 * TM * EIGHTS) {
            const int place = threadIdx.x >> 7, cell = threadIdx.x & 127;
            const int group = EIGHTS > 1 ? place % TM : place, eight = EIGHTS > 1 ? place / TM : 0;
            const float* column = parts + place * kSharers * 128;
            finish((tile * TM + group) * 16 + (cell >> 3), eight * 8 + (cell & 7), Column{column, cell}, first == 0,
                   last == kChunks);
        }
    }

    template <class Ring>
    __device__ __forceinline__ static void multiply(
        Ring& ring, uint32_t own, const uint4 (&x)[kHeld], int chunk, float (&even)[EIGHTS][4],
        float (&odd)[EIGHTS][4]) {
        const uint32_t slot = ring.front() + own;
        const uint4 one = load_shared(slot), two = load_shared(slot + 512);
        add_step<0>(even, one, x, chunk);
        add_step<1>(odd, two, x, chunk);
        ring.pop();
    }

    // One fragment of the weight times what every group of eight rows has of that step of the chunk.
    template <int STEP>
    __device__ __forceinline__ static void add_step(
        float (&sums)[EIGHTS][4], const uint4& weight, const uint4 (&x)[kHeld], int chunk) {
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight) {
            const uint4& own = x[eight * kChunks + chunk];
            mma_bf16(sums[eight], weight, STEP ? own.z : own.x, STEP ? own.w : own.y);
        }
    }

    // The sum over the warps of one group, in order, for the cell (row of W within the group, batch row).
    struct Column {
        const float* parts;
        int cell;
        __device__ float sum(int beyond = 0) const {
            float total = 0;
#pragma unroll
            for (int warp = 0; warp < kSharers; ++warp) total += parts[warp * 128 + cell + beyond];
            return total;
        }
    };
};
