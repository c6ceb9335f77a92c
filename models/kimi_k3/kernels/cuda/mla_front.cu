// An MLA layer from its first mix to what enters the mixture of experts, in one launch: mla_front.py says what that is.
//
// One block a multiprocessor stays for the whole launch. One thread of each streams the block's weights, six matrices,
// and its share of the cached rows, in the order of use, through a ring of SLOTS slots; 16 warps compute:
//
//     first mix | latents : gate, queries : absorption : attention : values : output projection : second mix | front
//
// with a grid barrier at each bar, behind which other blocks' results are read. At a colon there is none: values carry
// their launch's number (tagged_floats.cuh), and whoever needs some waits for these alone. The mixes, the front and
// what runs beside them: half_layer.cuh. Attention over a slice: latent_attention.cuh.
//
// The in-projection is two products: the latents of queries, keys and values first; then some blocks have the output
// gate, which nobody needs soon, while the last QUERY_BLOCKS of them make queries of the latents. Divisions of norms
// are left to whoever reads a product. The block that attends to a row's newest token makes its cached row. Slices are
// put together, 256 latents of a head at a time, by the blocks that multiply these by the value matrix; a tile of that
// product is cut in two, so that each reads half of them.
#include "half_layer.cuh"
#include "handed_on.cuh"
#include "latent_attention.cuh"
#include "slices.cuh"

constexpr int kQRank = 1536, kNope = 128, kHeadQuery = kNope + kSharedKey, kValue = 128;
constexpr int kLatents = kQRank + kCached;  // of queries 1536, of keys and values 512, the shared key
constexpr int kChannels = HEADS * kValue;
constexpr int kPhases = 2;

constexpr int kGateBlocks = BLOCKS - QUERY_BLOCKS;

using Latents = SplitProduct<kLatents, kHidden, 1, BLOCKS>;
using Gate = SplitProduct<kChannels, kHidden, 1, kGateBlocks>;
using Queries = SplitProduct<HEADS * kHeadQuery, kQRank, 1, QUERY_BLOCKS, false, kGateBlocks>;
using Absorption = SplitProduct<HEADS * kLatent, kNope, 4, kGateBlocks, true>;  // a tile has 64 latents of a head
using Values = SplitProduct<kChannels, kLatent, 2, BLOCKS>;                 // and 32 channels of a head
using OutProjection = SplitProduct<kHidden, kChannels, 2, BLOCKS, true>;
using Ring = WeightRing<SLOTS, kUnitBytes, kSlotBytes>;
static_assert(WINDOW <= WIDE && WIDE + kTogether <= SLOTS, "copies on their way are part of the ring");

using LatentRows = HandedOn<Latents, kLatents>;
using GateRows = HandedOn<Gate, kChannels>;
using QueryRows = HandedOn<Queries, HEADS * kHeadQuery>;
using Absorbed = HandedOn<Absorption, HEADS * kLatent>;
using Attended = HandedOn<Values, kChannels>;
// Places in `cells`, all tagged: mail of the rows' first mixes; of eight rows what products leave; of each slice the
// sums of all heads, then maximum and total of each; this rank's share; what blocks have of tiles that others finish.
constexpr int kMail = kFirstCell, kLatentRows = kMail + kMailCells, kGateRows = kLatentRows + LatentRows::kCells;
constexpr int kQueries = kGateRows + GateRows::kCells;
constexpr int kAbsorbed = kQueries + QueryRows::kCells, kSlices = kAbsorbed + Absorbed::kCells;
constexpr int kAttended = kSlices + BLOCKS * SliceCells::kCells;
constexpr int kOwn = kAttended + Attended::kCells, kTails = kOwn + kRowsAtOnce * kHidden;
constexpr int kRow = kTails + BLOCKS * kTailCells;  // of a row alone its first mix
static_assert(kRow + kRowCells <= CELLS, "the launch has as many cells as the kernel uses");

constexpr int kScratchFloats = kRowsAtOnce * kQRank / 2;  // the normed query latents
constexpr int kNewestFloats = kCached / 2;
constexpr int kKeptFloats = kNewestFloats + 4 * kRowsAtOnce + kRowsAtOnce * kWarps;
constexpr int kShared = SLOTS * kSlotBytes + 4 * (kScratchFloats + kKeptFloats) + Ring::kBarrierBytes + 16;
static_assert(kShared == SHARED_BYTES, "the launch asks for what the kernel uses");
static_assert(LatentAttention::kScratchBytes <= 4 * kScratchFloats, "attention fits the scratch");
static_assert(Contexts::kScratchFloats <= kScratchFloats, "and so do slices that are put together");
static_assert(Contexts::kWidth == Values::kChunk, "a unit of values multiplies what is put together at a time");

// Values of `places` places that place(index, row, column) names, BATCH a thread at a time, for use(index, value).
template <int BATCH, class From, class Place, class Use>
__device__ __forceinline__ void gather(
    const From& from, int places, uint32_t epoch, unsigned long long* health, Place place, Use use) {
    for (int start = threadIdx.x; start < places; start += BATCH * kConsumers) {
        int rows[BATCH], columns[BATCH];
        float values[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) place(min(start + i * kConsumers, places - 1), rows[i], columns[i]);
        from.receive(rows, columns, values, epoch, health);
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
            if (start + i * kConsumers < places) use(start + i * kConsumers, values[i]);
    }
}

// The eight bf16 from k on of this lane's row, of rows that lie `pitch` apart in shared memory; zeros behind the rows.
template <class Product>
__device__ __forceinline__ uint4 operand(const __nv_bfloat16* rows_of, int pitch, int k, int rows) {
    const int row = Product::row_of_lane();
    return row < rows ? *reinterpret_cast<const uint4*>(rows_of + row * pitch + k) : make_uint4(0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) mla_front(
    // rows
    const __nv_bfloat16* stream, const __nv_bfloat16* banks, const int* page_table, const int* lengths,
    const __nv_bfloat16* peers, int rows, int bank_count, int peer_count, bool restart,
    int stream_stride, int bank_stride, int bank_row_stride, int table_stride, int peer_stride, int peer_row_stride,
    // weights
    const float* mix_queries, const __nv_bfloat16* out_norm_1, const __nv_bfloat16* out_norm_2,
    const __nv_bfloat16* in_proj, const __nv_bfloat16* q_b, const __nv_bfloat16* up_key, const __nv_bfloat16* up_value,
    const __nv_bfloat16* o_proj, const __nv_bfloat16* front,
    const __nv_bfloat16* q_a_norm, const __nv_bfloat16* kv_a_norm,
    // state
    __nv_bfloat16* cache, int page_stride,
    // results
    __nv_bfloat16* partial, __nv_bfloat16* stream_out, float* logits, __nv_bfloat16* latent, __nv_bfloat16* shared,
    // scratch
    __nv_bfloat16* normed, float* others, float* bank_sums, float* bank_scalars, float* mix_squares, long long* cells
#ifdef STAMPS
    , long long* stamps
#endif
) {
    extern __shared__ __align__(1024) unsigned char memory[];
    float* scratch = reinterpret_cast<float*>(memory + SLOTS * kSlotBytes);
    __nv_bfloat16* narrow = reinterpret_cast<__nv_bfloat16*>(scratch);
    __nv_bfloat16* newest = reinterpret_cast<__nv_bfloat16*>(scratch + kScratchFloats);  // [576]
    float* first_scales = scratch + kScratchFloats + kNewestFloats;                      // [rows]: of the first mix
    float* query_scales = first_scales + kRowsAtOnce;                                    // [rows]: of the query latent
    int* slice_counts = reinterpret_cast<int*>(query_scales + kRowsAtOnce);              // [rows]
    int* row_lengths = slice_counts + kRowsAtOnce;                                       // [rows]
    float* sums = query_scales + 3 * kRowsAtOnce;                                        // [8 * 16]
    uint32_t* shared_epoch = reinterpret_cast<uint32_t*>(scratch + kScratchFloats + kKeptFloats);
    Ring ring(memory, shared_epoch + 4);
    const int thread = threadIdx.x, block = blockIdx.x;
    volatile uint32_t* ahead = shared_epoch + 1;  // copies of the ring on their way
    if (thread == kConsumers) ring.init(kWarps), *ahead = WINDOW;
    __syncthreads();
    if (!PDL) let_dependents_launch();
    if (thread >= kConsumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (thread == kConsumers) {
            Latents::produce(ring, in_proj, ahead);
            Gate::produce(ring, in_proj + kLatents * kHidden, ahead);
            Queries::produce(ring, q_b, ahead);
            Absorption::produce(ring, up_key, ahead);
            wait_for_predecessors();
            const SlicePlace place(rows);
            if (place.row < rows)
                produce_slice(ring, Slice(__ldg(lengths + place.row), place),
                              page_table + static_cast<int64_t>(place.row) * table_stride, cache, page_stride, ahead);
            Values::produce(ring, up_value, ahead);
            OutProjection::produce(ring, o_proj, ahead);
            Front::produce(ring, front, ahead);
        } else if (thread >= kConsumers + 32) {
            wait_for_predecessors();
            add_others(peers, peer_count, peer_stride, peer_row_stride, restart ? nullptr : stream, stream_stride, rows,
                       others, block * kHelpers + thread - kConsumers - 32, BLOCKS * kHelpers);
            if (kAlone && thread < kConsumers + 64)
                wait_for_consumers(reinterpret_cast<unsigned long long*>(cells), kPhases, kRow, first_scales);
            else
                asm volatile("bar.arrive 3, %0;" ::"n"(kConsumers + kHelpers) : "memory");
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    wait_for_predecessors();
    STAMP(0);
    FirstMix first(block);
    const bool mixes_first = first.row < rows;
    if (mixes_first)
        first.load(stream + static_cast<size_t>(first.row) * stream_stride,
                   banks + static_cast<size_t>(first.row) * bank_row_stride, bank_count, bank_stride, mix_queries,
                   out_norm_1);
    unsigned long long* words = reinterpret_cast<unsigned long long*>(cells);
    unsigned long long* health = words + 1;
    const HalfLayer half{rows, mix_queries, out_norm_2, partial, stream_out, logits, latent, shared,
                         normed + kRowsAtOnce * kHidden, others, bank_sums, bank_scalars, words + kOwn, words + kTails,
                         health};
    const LatentRows latent_rows{words + kLatentRows};
    const GateRows gate_rows{words + kGateRows};
    const QueryRows query_rows{words + kQueries};
    const Absorbed absorbed{words + kAbsorbed};
    const SliceCells slices{words + kSlices};
    const Attended attended{words + kAttended};
    half.bring_near();
    GridBarrier barrier;
    if (thread == 0) {
        barrier.start(words, BLOCKS, kPhases);
        *shared_epoch = barrier.epoch();
    }

    // First mix.
    sync_consumers();  // the epoch is there
    const uint32_t epoch = *shared_epoch;
    if (mixes_first) {
        const MixedRow mixed{normed + first.row * kHidden, mix_squares + first.row * FirstMix::kBlocks,
                             kAlone ? words + kRow : nullptr};
        first.write(words + kMail + first.row * FirstMix::kMail, health, epoch, mixed,
                    BankSum{bank_sums + first.row * kHidden, bank_scalars + first.row * 2}, scratch);
    }
    // The second mix reads sums of all blocks.
    if (kAlone)
        written_alone();
    else
        asm volatile("bar.sync 3, %0;" ::"n"(kConsumers + kHelpers) : "memory");
    STAMP(1);
    if (!kAlone) arrive_together(barrier), wait_together(barrier);
    STAMP(2);

    // Latents and gate: nobody waits for anything but weights, once the mix is there.
    {
        uint4 x[Latents::kChunks];
        if (kAlone) {
            sync_consumers();  // the scratch is free
            read_normed_alone<Latents>(x, words + kRow, narrow, epoch, health);
        } else {
            read_normed<Latents>(x, normed, rows);
        }
        if (thread == 0) *ahead = WIDE;
        if (thread < rows) {
            if (!kAlone) first_scales[thread] = FirstMix::scale(mix_squares + thread * FirstMix::kBlocks);
            row_lengths[thread] = __ldg(lengths + thread);
            slice_counts[thread] = Slices(row_lengths[thread], BLOCKS / rows).count;
        }
        Latents::consume(ring, x, scratch, [&](int column, int at, Latents::Column parts, bool starts, bool) {
            if (at < rows) latent_rows.send(at, column, starts, parts.sum(), epoch);
        });
        STAMP(3);
        if (kAlone)
            scale_is_there();
        else
            sync_consumers();
        Gate::consume(ring, x, scratch, [&](int column, int at, Gate::Column parts, bool starts, bool) {
            if (at < rows) gate_rows.send(at, column, starts, parts.sum(), epoch);
        });
    }
    STAMP(4);
    if (thread == 0) *ahead = WINDOW;
    sync_consumers();

    // Queries: every block that has some of them norms the query latents for itself.
    STAMP(5);
    if (Queries::has_units()) {
        constexpr int kEach = kQRank / kConsumers;
        float weight[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) weight[i] = __bfloat162float(__ldg(q_a_norm + thread + i * kConsumers));
#pragma unroll 1
        for (int row = 0; row < rows; row += 2) {  // two rows wait together
            const int second = min(row + 1, rows - 1);
            int from[2 * kEach], columns[2 * kEach];
            float values[2 * kEach], squares[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < 2 * kEach; ++i)
                from[i] = i < kEach ? row : second, columns[i] = thread + i % kEach * kConsumers;
            latent_rows.receive(from, columns, values, epoch, health);
#pragma unroll
            for (int i = 0; i < 2 * kEach; ++i) {
                const float value = values[i] * first_scales[from[i]];
                squares[i / kEach] += value * value;
                narrow[from[i] * kQRank + columns[i]] = __float2bfloat16(value * weight[i % kEach]);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float sum = warp_sum(squares[i]);
                if ((thread & 31) == 0) sums[(i ? second : row) * kWarps + thread / 32] = sum;
            }
        }
        sync_consumers();
        if (thread < rows) {
            float sum = 0;
#pragma unroll
            for (int warp = 0; warp < kWarps; ++warp) sum += sums[thread * kWarps + warp];
            query_scales[thread] = 1.f / sqrtf(sum / kQRank + Q_EPS);
        }
        uint4 x[Queries::kChunks];
#pragma unroll
        for (int chunk = 0; chunk < Queries::kChunks; ++chunk)
            x[chunk] = operand<Queries>(narrow, kQRank, Queries::k_of(chunk), rows);
        sync_consumers();
        STAMP(5);
        Queries::consume(ring, x, scratch, [&](int column, int at, Queries::Column parts, bool starts, bool) {
            if (at < rows) query_rows.send(at, column, starts, parts.sum() * query_scales[at], epoch);
        });
    }
    STAMP(6);

    // Absorption, head by head.
    Absorption::consume_each(
        ring, scratch,
        [&](int tile, int, int, uint4(&x)[1]) {
            const int head = tile * 64 / kLatent;
            sync_consumers();
            gather<2>(
                query_rows, rows * kNope, epoch, health,
                [&](int i, int& row, int& column) { row = i / kNope, column = head * kHeadQuery + i % kNope; },
                [&](int i, float value) { narrow[i] = __float2bfloat16(value); });
            sync_consumers();
            x[0] = operand<Absorption>(narrow, kNope, Absorption::k_of(0), rows);
            sync_consumers();
        },
        [&](int column, int at, Absorption::Column parts, bool starts, bool) {
            if (at < rows) absorbed.send(at, column, starts, parts.sum(), epoch);
        });
    STAMP(7);

    // Attention over this block's slice of one row. First the newest cached row, which needs no query.
    STAMP(8);
    const SlicePlace place(rows);
    const int attended_row = place.row;
    const Slice slice(attended_row < rows ? row_lengths[attended_row] : 0, place);
    if (slice.any()) {
        if (thread == 0) *ahead = WIDE;
        sync_consumers();
        if (slice.newest()) {
            const int rows_of[2] = {attended_row, attended_row};
            const int columns[2] = {kQRank + thread, kQRank + kLatent + thread % kSharedKey};
            float values[2];
            latent_rows.receive(rows_of, columns, values, epoch, health);
            const float scale = first_scales[attended_row];
            const int token = slice.length - 1;
            const int64_t page = __ldg(page_table + static_cast<int64_t>(attended_row) * table_stride + token / PAGE);
            __nv_bfloat16* cached = cache + page * page_stride + token % PAGE * kCached;
            values[0] *= scale;
            float square[1] = {values[0] * values[0]};
            block_sums(square, sums);
            values[0] *= __bfloat162float(__ldg(kv_a_norm + thread)) / sqrtf(square[0] / kLatent + KV_EPS);
            cached[thread] = newest[thread] = __float2bfloat16(values[0]);
            if (thread < kSharedKey)
                cached[kLatent + thread] = newest[kLatent + thread] = __float2bfloat16(values[1] * scale);
        }
        constexpr int kPitch = LatentAttention::kQueryPitch;
        gather<1>(
            query_rows, HEADS * kSharedKey, epoch, health,
            [&](int i, int& row, int& column) {
                row = attended_row, column = i / kSharedKey * kHeadQuery + kNope + i % kSharedKey;
            },
            [&](int i, float value) {
                narrow[i / kSharedKey * kPitch + kLatent + i % kSharedKey] = __float2bfloat16(value);
            });
        gather<6>(
            absorbed, HEADS * kLatent, epoch, health,
            [&](int i, int& row, int& column) { row = attended_row, column = i; },
            [&](int i, float value) { narrow[i / kLatent * kPitch + i % kLatent] = __float2bfloat16(value); });
        sync_consumers();
        STAMP(8);
        LatentAttention attention(narrow);
        attention.attend(ring, slice, newest, memory, scratch);
        attention.finish(
            [&](int head, int column, float sum) { slices.send_sum(place.item, head, column, sum, epoch); },
            [&](int head, float largest, float total) { slices.send_total(place.item, head, largest, total, epoch); });
        if (thread == 0) *ahead = WINDOW;
    }
    STAMP(9);

    // Values: slices put together, times the head's matrix, times the gate.
    {
        float gate = 0;
        const Contexts contexts(slices, slice_counts, rows, BLOCKS / rows, scratch);
        Values::consume_each(
            ring, scratch,
            [&](int tile, int begin, int end, uint4(&x)[Values::kChunks]) {
                // By all threads, of which half will use it; without a condition, which would take a predicate.
                const int at[1] = {min(thread & 7, rows - 1)}, column[1] = {tile * 32 + (thread & 255) / 8};
                float value[1];
                gate_rows.receive(at, column, value, epoch, health);
                gate = sigmoid(value[0] * first_scales[at[0]]);
                const int head = tile * 32 / kValue;
#pragma unroll
                for (int chunk = 0; chunk < Values::kChunks; ++chunk) {
                    if (begin <= chunk && chunk < end) {
                        sync_consumers();
                        contexts.load(head, chunk * Values::kChunk, epoch, health);
                        sync_consumers();
                        x[chunk] = operand<Values>(contexts.contexts(), Contexts::kPitch, Values::k_of(0), rows);
                    }
                }
                sync_consumers();
            },
            [&](int column, int at, Values::Column parts, bool starts, bool) {
                if (at < rows) attended.send(at, column, starts, parts.sum() * gate, epoch);
            });
    }
    STAMP(10);

    // Output projection.
    {
        sync_consumers();
        gather<3>(
            attended, rows * kChannels, epoch, health,
            [&](int i, int& row, int& column) { row = i / kChannels, column = i % kChannels; },
            [&](int i, float value) { narrow[i] = __float2bfloat16(value); });
        sync_consumers();
        uint4 x[OutProjection::kChunks];
#pragma unroll
        for (int chunk = 0; chunk < OutProjection::kChunks; ++chunk)
            x[chunk] = operand<OutProjection>(narrow, kChannels, OutProjection::k_of(chunk), rows);
        sync_consumers();
        STAMP(11);
        half.project<OutProjection>(ring, x, scratch, epoch);
    }
    STAMP(12);

    if (kAlone) grid_is_there();
    half.mix_and_front(ring, barrier, scratch, epoch, [&](int step) { STAMP(13 + step); });
}
