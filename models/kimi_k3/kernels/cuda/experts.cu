// Sixteen MXFP4 experts a row in one persistent launch: W1 and W3 with SiTU, W2, weighted sum, grid barriers between. With ROUTE
// their choice comes before, with SHARED the second product of the shared expert between the two: its weights are on their
// way while the choice is made, and while it is computed the first weights of the chosen experts come as far as the L2. With
// UP the layer's end comes behind a last barrier, where ranks exchange: see latent_up.cuh.
//
// Constants from the host: EXPERTS, TOP, LATENT, CHANNELS (of this rank), MOST_ROWS, STAGES of a warp's ring, SPREAD, FLOWS,
// BLOCKS of the grid, PDL with EARLY, ROUTE, SHARED, HIDDEN, SHARED_CHANNELS, UP with what latent_up.cuh takes,
// SITU_BETA, SITU_LINEAR_BETA, ROUTED_SCALING, SHARED_BYTES of shared memory.
//
// A unit is an expert with the places (row * TOP + place) that chose it, so its weights are read once whatever their
// number; every block lists the units for itself. Weights lie in stages, each what one warp takes at a time:
//   w13 [EXPERTS, CHANNELS / 8 row blocks, 8 slices of k, 7 chunks]; a row block is eight gate rows over their up rows
//   w2  [EXPERTS, LATENT / 16 row blocks, CHANNELS / 64 chunks]
//   shared_down [HIDDEN / 16 row blocks, 8 slices of k, SHARED_CHANNELS / 128 bf16 fragments of 16 x 16]
// Eight tokens are a tile; what a warp multiplies them with stays in registers from row block to row block. Where k is
// sliced, eight warps take the slices of a row block, and one of them, in turn, adds them in a fixed order while the
// others go on; of w13 it leaves SiTU in bfloat16 times 2^96. Of w2 a warp takes a whole row block of a unit.
// SPREAD 0: a block takes all units of a row block and adds each row's experts itself. SPREAD 1: warps take equal parts
// of all (unit, row block), their products go through memory in float32, and after another barrier the grid adds them.
// FLOWS, of few rows: there a warp waits for the units that it takes W2 of, and not at a barrier for all. Blocks do not end
// W1 and W3 together, and who is first goes on. Of many rows it costs more than it brings.
// Either way experts are added in the order of their places in float32, so a row's bits depend on that row alone. One
// rounding besides SiTU's: `routed`.
//
// A ring holds no more than it must: a warp asks for W2 when it has taken its last of W1 and W3. What is asked for early
// shares the memory's bandwidth with what other warps are waiting for.
//
// PDL: launched programmatically, a block may be there before the kernel in front has ended. It asks for EARLY stages of each
// warp's ring, weights of the shared expert, then waits, before it reads or writes anything else in memory:
// dependent_launch.cuh has the argument. All else, rows of the latent up-projection too, comes behind the logits, which the
// choice waits for; with EARLY 0 nothing is in front of them.
#include "dependent_launch.cuh"
#include "expert_units.cuh"
#include "mxfp4.cuh"
#include "routing.cuh"
#include "weight_stream.cuh"
#if UP
#include "latent_up.cuh"
#endif

#define WARPS UNIT_WARPS
#define SLICES 8
#define GROUPS (WARPS / SLICES)
#define FIRST_CHUNKS (LATENT / 64 / SLICES)
#define FIRST_BLOCKS (CHANNELS / 8)
#define SECOND_CHUNKS (CHANNELS / 64)
#define SECOND_BLOCKS (LATENT / 16)
#define SHARED_FRAGMENTS (SHARED_CHANNELS / 16 / SLICES)
#define SHARED_BLOCKS (HIDDEN / 16)
#define CHUNK_BYTES 544
#define FIRST_BYTES (FIRST_CHUNKS * CHUNK_BYTES)
#define SECOND_BYTES (SECOND_CHUNKS * CHUNK_BYTES)
// Row blocks of W1 and W3 that a worker has brought near: all of one row's, 16 to 32 MB of more rows', which take longer.
#define NEAR_BLOCKS (MOST_ROWS == 8 ? 3 : 2 + MOST_ROWS / 32)
#define STAGE_BYTES (FIRST_BYTES > SECOND_BYTES ? FIRST_BYTES : SECOND_BYTES)
static_assert(LATENT % (64 * SLICES) == 0 && CHANNELS % 64 == 0, "slices and chunks are whole");
static_assert(!FLOWS || (SPREAD && ROUTE), "what is counted is cleared behind the choice");
static_assert(MOST_UNITS <= BLOCKS * 32 * WARPS, "a thread clears one counter at most");
static_assert((unsigned long long)MOST_UNITS * SECOND_BLOCKS * (BLOCKS * WARPS + 1) < 1ull << 32, "parts are found in 32 bits");
static_assert(PDL ? EARLY < STAGES : !EARLY, "what is asked for early is followed by a wait, and by more");
static_assert(SPREAD || (MOST_ROWS <= 16 && 2 * BLOCKS >= SECOND_BLOCKS), "a block keeps the products of all places");

typedef float Slice[16][8];

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

struct Shared {
  alignas(128) unsigned char stages[WARPS][STAGES][STAGE_BYTES];
  union {
    UnitsWork listing;
    Slice partial[GROUPS][2][SLICES];
    float products[SPREAD ? 1 : 2][SPREAD ? 1 : MOST_PLACES][16];
#if UP
    UpShared tail;
#endif
  };
#if UP
  alignas(128) unsigned char up[UP_BYTES];
  u64 up_arrived;
#endif
  u64 arrived[WARPS][STAGES];
  u64 full[GROUPS][2], empty[GROUPS][2];
  float weights[SPREAD ? TOP : MOST_PLACES];
  int ids[TOP];
  Units units;
#if ROUTE
  RoutingWork routing;
#endif
};

static_assert(sizeof(Shared) <= SHARED_BYTES, "the launch brings less shared memory");
static_assert(!SHARED || SHARED_CHANNELS % (16 * SLICES) == 0, "slices are whole");
static_assert(!SHARED || SHARED_FRAGMENTS * 512 <= STAGE_BYTES, "a slice is a stage");

// This lane's activations of the tile's token g; of its last token where there is none: what such a column computes is
// not stored.
__device__ __forceinline__ void load_tile(const Units& u, const u16* activation, int begin, int tile, int count,
                                          uint4 (&token)[SECOND_CHUNKS][2]) {
  const int lane = threadIdx.x & 31, place = u.places[begin + min(tile + (lane >> 2), count - 1)];
  const uint4* source = (const uint4*)(activation + (size_t)place * CHANNELS + (lane & 3) * 8);
#pragma unroll
  for (int c = 0; c < 2 * SECOND_CHUNKS; c++) token[c / 2][c % 2] = source[c * 4];
}

__device__ __forceinline__ float situ(float gate, float up) {
  return SITU_BETA * tanhf(gate / SITU_BETA) / (1.f + expf(-gate)) * (SITU_LINEAR_BETA * tanhf(up / SITU_LINEAR_BETA));
}

// Hands this warp's 16 rows x 8 tokens to the group's sum. To the warp whose turn it is to add them it gives all slices;
// that warp calls `added` when it has. Two buffers: who is ahead waits until the sum before last was taken.
__device__ __forceinline__ const Slice* hand_over(Shared& s, const float (&sum)[4], int turn) {
  const int lane = threadIdx.x & 31, slice = (threadIdx.x >> 5) % SLICES, group = (threadIdx.x >> 5) / SLICES;
  const int row = lane >> 2, column = (lane & 3) * 2, buffer = turn & 1, round = turn >> 1;
  Slice* partial = s.partial[group][buffer];
  if (round) barrier_wait(&s.empty[group][buffer], (round - 1) & 1);
  *(float2*)&partial[slice][row][column] = make_float2(sum[0], sum[1]);
  *(float2*)&partial[slice][row + 8][column] = make_float2(sum[2], sum[3]);
  __syncwarp();
  if (lane == 0) barrier_arrive(&s.full[group][buffer]);
  if (turn % SLICES != slice) return nullptr;
  barrier_wait(&s.full[group][buffer], round & 1);
  return partial;
}

__device__ __forceinline__ void added(Shared& s, int turn) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) barrier_arrive(&s.empty[(threadIdx.x >> 5) / SLICES][turn & 1]);
}

__device__ __forceinline__ float added_slices(const Slice* partial, int row, int token) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < SLICES; i++) total += partial[i][row][token];
  return total;
}

// Part `index` of PARTS equal parts of `total`: its first. PARTS is a constant and 32 bits suffice, so the division is a product.
template <u32 PARTS>
__device__ __forceinline__ int part(u32 total, u32 index) { return total * index / PARTS; }

// x [rows, LATENT] bf16, rows x_stride apart; activation [rows * TOP, CHANNELS] bf16 and, with SPREAD, outputs
// [rows * TOP, LATENT] float32 are scratch; barrier: see grid_barrier; routed [rows, LATENT] bf16.
// With FLOWS: ready [units] is scratch, and counts what is done of a unit's activations.
// ids, weights [rows, TOP]: given, or with ROUTE scratch, made of logits [rows, EXPERTS] float32, rows logits_stride
// apart, and bias [EXPERTS] float32. SHARED: shared_x [rows, SHARED_CHANNELS] bf16, partial [rows, HIDDEN] bf16.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
experts(
#if ROUTE
    const float* logits, int logits_stride, const float* bias, int* ids, float* weights,
#else
    const int* ids, const float* weights,
#endif
#if SHARED
    const unsigned char* shared_down, const u16* shared_x, int shared_x_stride, u16* partial,
#endif
#if UP
    const unsigned char* up, const u16* latent_norm, const u16* every_routed, int routed_stride, int routed_row_stride,
    const u16* every_shared, int shared_stride, int shared_row_stride, const u16* residual, int residual_stride,
    u16* stream_out, u16* normed,
#endif
    const unsigned char* w13, const unsigned char* w2, const u16* x, int x_stride, int rows, u16* activation,
    float* outputs, u32* barrier, u16* routed
#if FLOWS
    , u32* ready
#endif
#ifdef STAMPS
    , long long* stamps
#endif
) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *(Shared*)memory;
  Units& u = s.units;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp / SLICES, slice = warp % SLICES;
  constexpr u32 workers = BLOCKS * GROUPS;
  const int worker = blockIdx.x * GROUPS + group, places = rows * TOP;
  // One row chooses in every block for itself; but where products go through memory anyway, as others do.
  const bool one_row = !FLOWS && MOST_ROWS == 8 && rows == 1;
#if ROUTE
  // Asked for ahead of all weights but those that come early, behind which it would queue for microseconds.
  Candidates among = {};
#if !PDL
  if (one_row || blockIdx.x < rows) among = candidates(logits + (size_t)(one_row ? 0 : blockIdx.x) * logits_stride, bias);
#endif
#endif
  WeightStream<STAGES, STAGE_BYTES> stream(s.stages[warp][0], s.arrived[warp]);
  if (lane == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(&s.arrived[warp][i], 1);
    if (slice < 2) barrier_init(&s.full[group][slice], SLICES), barrier_init(&s.empty[group][slice], 1);
#if UP
    if (threadIdx.x == 0) barrier_init(&s.up_arrived, 1);
#endif
    barriers_ready();
  }

  // What this warp takes, in order: `shared_count` row blocks of the shared expert, (unit, row block) of W1 and W3 up to
  // stage `first_end`, `second_count` of W2. It may ask for the first `known` of them.
  int shared_block = 0, shared_count = 0, first = 0, first_end = 0, second = 0, second_count = 0, known = 0;
#if SHARED
  shared_block = part<workers>(SHARED_BLOCKS, worker);
  known = shared_count = part<workers>(SHARED_BLOCKS, worker + 1) - shared_block;
#endif
  int ask_unit = 0, ask_block = 0;
  const auto ask = [&] {
    if (lane || stream.asked >= known) return;
#if SHARED
    if (stream.asked < shared_count) {
      constexpr int bytes = SHARED_FRAGMENTS * 512;
      return stream.ask(shared_down + ((size_t)(shared_block + stream.asked) * SLICES + slice) * bytes, bytes);
    }
#endif
    if (stream.asked < first_end) {
      if (stream.asked == shared_count) ask_unit = first / FIRST_BLOCKS, ask_block = first % FIRST_BLOCKS;
      const size_t block = (size_t)u.expert[ask_unit] * FIRST_BLOCKS + ask_block;
      if (++ask_block == FIRST_BLOCKS) ask_block = 0, ask_unit++;
      return stream.ask(w13 + (block * SLICES + slice) * FIRST_BYTES, FIRST_BYTES);
    }
    if (stream.asked == first_end) {
      ask_unit = SPREAD ? second / SECOND_BLOCKS : warp;
      ask_block = SPREAD ? second % SECOND_BLOCKS : blockIdx.x;
    } else if (SPREAD) {
      if (++ask_block == SECOND_BLOCKS) ask_block = 0, ask_unit++;
    } else if (ask_block += BLOCKS; ask_block >= SECOND_BLOCKS) {
      ask_block = blockIdx.x, ask_unit += WARPS;
    }
    const size_t block = (size_t)u.expert[ask_unit] * SECOND_BLOCKS + ask_block;
    stream.ask(w2 + block * SECOND_BYTES, SECOND_BYTES);
  };
  const auto ask_all = [&] {
#pragma unroll 1
    while (stream.asked < known && stream.asked - stream.taken < STAGES && lane == 0) ask();
  };
#if PDL
#pragma unroll 1
  for (int stage = 0; stage < EARLY; stage++) ask();
  wait_for_predecessors();
#if ROUTE
  if (one_row || blockIdx.x < rows) among = candidates(logits + (size_t)(one_row ? 0 : blockIdx.x) * logits_stride, bias);
#endif
#endif
  ask_all();
#if UP
  const bool ends = blockIdx.x < UP_BLOCKS;
  if (ends && threadIdx.x == 0) bring(&s.up_arrived, s.up, up + (size_t)blockIdx.x * UP_BYTES, UP_BYTES);
#endif
  __syncthreads();
  STAMP(0);

#if ROUTE
  if (one_row)
    choose(s.routing, among, ROUTED_SCALING, s.ids, s.weights);
  else if (blockIdx.x < rows)
    choose(s.routing, among, ROUTED_SCALING, ids + blockIdx.x * TOP, weights + blockIdx.x * TOP);
  STAMP(1);
#if FLOWS
  if (const int i = blockIdx.x * 32 * WARPS + threadIdx.x; i < min(EXPERTS, places)) ready[i] = 0;
#endif
  if (!one_row && !grid_barrier(barrier)) return;
  const int* chosen = one_row ? s.ids : ids;
#else
  const int* chosen = ids;
#endif
  if (!SPREAD && (!ROUTE || !one_row) && threadIdx.x < places) s.weights[threadIdx.x] = weights[threadIdx.x];
  __syncthreads();
  list_units(u, s.listing, chosen, places);
  first = part<workers>(u.count * FIRST_BLOCKS, worker);
  known = first_end = shared_count + part<workers>(u.count * FIRST_BLOCKS, worker + 1) - first;
  STAMP(2);
#if SHARED
  // Rings are full of the shared expert: memory brings the first weights of the others as far as the L2, and a warp asks for
  // them as it goes. All of one row's fit; W2 finds room in the rings later.
  constexpr u32 bytes = SLICES * FIRST_BYTES;
  if (slice == 0 && lane < min(first_end - shared_count, NEAR_BLOCKS)) {
    const int at = first + lane;
    bring_near(w13 + ((size_t)u.expert[at / FIRST_BLOCKS] * FIRST_BLOCKS + at % FIRST_BLOCKS) * bytes, bytes);
  }
#endif
  ask_all();
#if UP
  // Needed last of all, so asked for behind everything that a warp will soon wait for.
  prefetch_shares<RANKS, LATENT>(every_routed, rows, routed_stride, routed_row_stride);
  prefetch_shares<RANKS, COLUMNS>(every_shared, rows, shared_stride, shared_row_stride);
  prefetch_shares<1, COLUMNS>(residual, rows, 0, residual_stride);
#endif
  int turn = 0;
#if SHARED
  {
    // Two tiles at a time where there are as many: their activations come through a memory that is busy, together.
    constexpr int tiles = MOST_ROWS > 8 ? 2 : 1;
    uint2 token[tiles][SHARED_FRAGMENTS];
    const auto load = [&](int first) {
#pragma unroll
      for (int tile = 0; tile < tiles; tile++) {
        const size_t row = min(first + tile * 8 + (lane >> 2), rows - 1);
        const u16* slice_of_row = shared_x + row * shared_x_stride + slice * SHARED_FRAGMENTS * 16;
        const uint2* source = (const uint2*)slice_of_row + (lane & 3);
#pragma unroll
        for (int f = 0; f < SHARED_FRAGMENTS; f++) token[tile][f] = __ldg(source + f * 4);
      }
    };
    load(0);
    for (int block = shared_block; block < shared_block + shared_count; block++) {
      const u32* stage = nullptr;
      for (int first_row = 0; first_row < rows; first_row += 8 * tiles) {
        if (first_row == 0) stage = stream.take();
        float sum[tiles][4] = {};
#pragma unroll
        for (int f = 0; f < SHARED_FRAGMENTS; f++) {
          const uint4 words = *(const uint4*)(stage + f * 128 + lane * 4);
#pragma unroll
          for (int tile = 0; tile < tiles; tile++)
            mma(sum[tile], {words.x, words.y, words.z, words.w}, token[tile][f].x, token[tile][f].y);
        }
        const int next = first_row + 8 * tiles;
        if (rows > 8 * tiles) load(next < rows ? next : 0);  // on their way meanwhile
        stream.settle();
        if (next >= rows) stream.taken++, ask();
#pragma unroll
        for (int tile = 0; tile < tiles; tile++) {
          const int begin = first_row + tile * 8;
          if (begin >= rows) break;
          if (const Slice* slices = hand_over(s, sum[tile], turn)) {
            for (int t = begin + (lane >> 4); t < min(rows, begin + 8); t += 2)
              partial[(size_t)t * HIDDEN + block * 16 + (lane & 15)] = to_bf16(added_slices(slices, lane & 15, t - begin));
            added(s, turn);
          }
          turn++;
        }
      }
    }
  }
#endif
  STAMP(3);
  {
    uint4 token[FIRST_CHUNKS][2];
    int unit = first / FIRST_BLOCKS, block = first % FIRST_BLOCKS, begin = 0, count = 0;
    bool fresh = true;
    // Row blocks of a unit's tiles that this warp has added up, said once a unit.
    u32 done = 0;
    const auto hand_on = [&] {
#if FLOWS
      __syncwarp();
      if (done && lane == 0) count_up(ready + unit, done);
      done = 0;
#endif
    };
#pragma unroll 1
    while (stream.taken < first_end) {
      if (fresh) begin = u.begin[unit], count = u.begin[unit + 1] - begin;
      const u32* stage = nullptr;
#pragma unroll 1
      for (int tile = 0; tile < count; tile += 8) {
        if (fresh || count > 8) {
          const int row = u.places[begin + min(tile + (lane >> 2), count - 1)] / TOP;
          const uint4* source = (const uint4*)(x + (size_t)row * x_stride + slice * FIRST_CHUNKS * 64 + (lane & 3) * 8);
#pragma unroll
          for (int c = 0; c < 2 * FIRST_CHUNKS; c++) token[c / 2][c % 2] = raised(__ldg(source + c * 4));
          fresh = false;
        }
        if (tile == 0) stage = stream.take();
        float sum[4] = {0, 0, 0, 0};
        multiply<FIRST_CHUNKS>(stage, token, sum);
        // Of every tile, though the last one's would do: then no path leads from a read to a copy without a fence.
        stream.settle();
        if (tile + 8 >= count) stream.taken++, ask();
        if (const Slice* slices = hand_over(s, sum, turn)) {
          for (int t = tile + (lane >> 3); t < min(count, tile + 8); t += 4) {
            const int channel = lane & 7;
            const float gate = added_slices(slices, channel, t - tile), up = added_slices(slices, 8 + channel, t - tile);
            const float value = __uint_as_float((u32)to_bf16(situ(gate * WEIGHT_UNIT, up * WEIGHT_UNIT)) << 16);
            const size_t place = u.places[begin + t];
            activation[place * CHANNELS + block * 8 + channel] = to_bf16(value * ACTIVATION_UNIT);
          }
          added(s, turn);
          done++;
        }
        turn++;
      }
      if (++block == FIRST_BLOCKS) hand_on(), block = 0, unit++, fresh = true;
    }
    hand_on();
  }

  const int units = u.count, own_blocks = (SECOND_BLOCKS - (int)blockIdx.x + BLOCKS - 1) / BLOCKS;
  const int own_units = (units - warp + WARPS - 1) / WARPS;
  second = SPREAD ? part<BLOCKS * WARPS>(units * SECOND_BLOCKS, blockIdx.x * WARPS + warp) : 0;
  second_count = SPREAD ? part<BLOCKS * WARPS>(units * SECOND_BLOCKS, blockIdx.x * WARPS + warp + 1) - second
                        : max(own_units, 0) * max(own_blocks, 0);
  known += second_count;
  ask_all();
  STAMP(4);
  if (PDL && !SPREAD && !UP) let_dependents_launch();
#if !FLOWS
  if (!grid_barrier(barrier)) return;
#endif
  STAMP(5);

  uint4 token[SECOND_CHUNKS][2];
#if SPREAD
  int unit = second / SECOND_BLOCKS, block = second % SECOND_BLOCKS, begin = 0, count = 0;
  float* target[2] = {};
  bool fresh = true;
#pragma unroll 1
  for (int i = 0; i < second_count; i++) {
    if (fresh) begin = u.begin[unit], count = u.begin[unit + 1] - begin;
#if FLOWS
    if (fresh) wait_for(ready + unit, FIRST_BLOCKS * ((count + 7) / 8), barrier);
#endif
    const u32* stage = nullptr;
#pragma unroll 1
    for (int tile = 0; tile < count; tile += 8) {
      if (fresh || count > 8) {
        load_tile(u, activation, begin, tile, count, token);
        fresh = false;
#pragma unroll
        for (int t = 0; t < 2; t++) {
          const int column = tile + (lane & 3) * 2 + t;
          target[t] = column < count ? outputs + (size_t)u.places[begin + column] * LATENT + (lane >> 2) : nullptr;
        }
      }
      if (tile == 0) stage = stream.take();
      float sum[4] = {0, 0, 0, 0};
      multiply<SECOND_CHUNKS>(stage, token, sum);
      if (tile + 8 >= count) {
        stream.release();
        ask();
      }
#pragma unroll
      for (int t = 0; t < 2; t++)
        if (target[t]) {
          target[t][block * 16] = sum[t] * WEIGHT_UNIT;
          target[t][block * 16 + 8] = sum[2 + t] * WEIGHT_UNIT;
        }
    }
    if (++block == SECOND_BLOCKS) block = 0, unit++, fresh = true;
  }
  STAMP(6);
  if (PDL && !UP) let_dependents_launch();
  if (!grid_barrier(barrier)) return;
  const int quads = rows * (LATENT / 4);
  for (int i = blockIdx.x * 32 * WARPS + threadIdx.x; i < quads; i += BLOCKS * 32 * WARPS) {
    const int row = i / (LATENT / 4), column = i % (LATENT / 4);
    const float4* product = (const float4*)outputs + (size_t)row * TOP * (LATENT / 4) + column;
    float4 values[TOP], total = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < TOP; k++) values[k] = product[(size_t)k * (LATENT / 4)];
#pragma unroll
    for (int k = 0; k < TOP; k++) {
      const float share = weights[row * TOP + k];
      total.x = fmaf(share, values[k].x, total.x), total.y = fmaf(share, values[k].y, total.y);
      total.z = fmaf(share, values[k].z, total.z), total.w = fmaf(share, values[k].w, total.w);
    }
    ((uint2*)routed)[i] = make_uint2(to_bf16(total.x) | (u32)to_bf16(total.y) << 16, to_bf16(total.z) | (u32)to_bf16(total.w) << 16);
  }
#else
#pragma unroll 1
  for (int unit = warp; unit < units; unit += WARPS) {
    const int begin = u.begin[unit], count = u.begin[unit + 1] - begin;
#pragma unroll 1
    for (int block = 0; block < own_blocks; block++) {
      const u32* stage = nullptr;
#pragma unroll 1
      for (int tile = 0; tile < count; tile += 8) {
        if (block == 0 || count > 8) load_tile(u, activation, begin, tile, count, token);
        if (tile == 0) stage = stream.take();
        float sum[4] = {0, 0, 0, 0};
        multiply<SECOND_CHUNKS>(stage, token, sum);
#pragma unroll
        for (int t = 0; t < 2; t++) {
          const int column = tile + (lane & 3) * 2 + t;
          if (column >= count) continue;
          float* target = &s.products[block][u.places[begin + column]][lane >> 2];
          target[0] = sum[t] * WEIGHT_UNIT, target[8] = sum[2 + t] * WEIGHT_UNIT;
        }
      }
      stream.release();
      ask();
    }
  }
  STAMP(6);
  __syncthreads();
  const u32 sixteen = threadIdx.x / 16, block = sixteen / rows, row = sixteen % rows, channel = threadIdx.x % 16;
  if (block < own_blocks) {
    float total = 0;
#pragma unroll
    for (int k = 0; k < TOP; k++)
      total = fmaf(s.weights[row * TOP + k], s.products[block][row * TOP + k][channel], total);
    routed[(size_t)row * LATENT + (blockIdx.x + block * BLOCKS) * 16 + channel] = to_bf16(total);
  }
#endif
#if UP
  // What this rank sends is there; here ranks exchange. No block ends before all are here.
  STAMP(7);
  if (PDL) let_dependents_launch();
  if (!grid_barrier(barrier)) return;
  STAMP(8);
  const UpTensors t = {up, latent_norm, every_routed, every_shared, residual, stream_out, normed, routed_stride,
                       routed_row_stride, shared_stride, shared_row_stride, residual_stride};
  if (one_row) {
    if (!ends) return;
    norm_row(t, s.tail, 0, s.tail.row);
    barrier_wait(&s.up_arrived, 0);
    __syncthreads();
    STAMP(9);
    up_rows<1>(t, s.tail, s.up, blockIdx.x, 1, s.tail.row);
    STAMP(10);
    return;
  }
  for (int row = blockIdx.x; row < rows; row += BLOCKS) norm_row(t, s.tail, row, normed + (size_t)row * LATENT);
  if (!grid_barrier(barrier)) return;
  STAMP(9);
  if (!ends) return;
  barrier_wait(&s.up_arrived, 0);
  up_rows<(MOST_ROWS > 8 ? 2 : 1)>(t, s.tail, s.up, blockIdx.x, rows, normed);
  STAMP(10);
#endif
}
