// Sixteen MXFP4 experts a row in one persistent launch: W1 and W3 with SiTU, grid barrier, W2, weighted sum.
//
// Constants from the host: EXPERTS, TOP, LATENT, CHANNELS (of this rank), TILES (8 tokens each that an expert may have),
// STAGES of a warp's ring, SPREAD, SITU_BETA, SITU_LINEAR_BETA, SHARED_BYTES.
//
// A unit is an expert with the places (row * TOP + place) that chose it, so its weights are read once whatever their
// number; every block lists the units for itself. Weights lie in stages, each what one warp takes at a time:
//   w13 [EXPERTS, CHANNELS / 8 row blocks, 8 slices of k, 7 chunks]; a row block is eight gate rows over their up rows
//   w2  [EXPERTS, LATENT / 16 row blocks, CHANNELS / 64 chunks]
// First projection: eight warps take the slices of a row block, are added in a fixed order in shared memory, and leave
// SiTU in bfloat16 times 2^96. Second: a warp takes a whole row block of a unit. SPREAD 0: a block takes all units of a
// row block and adds each row's experts itself. SPREAD 1: warps take equal parts of all (unit, row block), their products
// go through memory in float32, and after another barrier the grid adds them. Either way experts are added in the order
// of their places in float32, so a row's bits depend on that row alone. One rounding besides SiTU's: `routed`.
#include "mxfp4.cuh"
#include "weight_stream.cuh"

#define WARPS 16
#define SLICES 8
#define GROUPS (WARPS / SLICES)
#define FIRST_CHUNKS (LATENT / 64 / SLICES)
#define FIRST_BLOCKS (CHANNELS / 8)
#define SECOND_CHUNKS (CHANNELS / 64)
#define SECOND_BLOCKS (LATENT / 16)
#define CHUNK_BYTES 544
#define FIRST_BYTES (FIRST_CHUNKS * CHUNK_BYTES)
#define SECOND_BYTES (SECOND_CHUNKS * CHUNK_BYTES)
#define STAGE_BYTES (FIRST_BYTES > SECOND_BYTES ? FIRST_BYTES : SECOND_BYTES)
#define MOST_PLACES (TILES * 8 * TOP)
#define MOST_UNITS (EXPERTS < MOST_PLACES ? EXPERTS : MOST_PLACES)
static_assert(LATENT % (64 * SLICES) == 0 && CHANNELS % 64 == 0, "slices and chunks are whole");
static_assert(SPREAD || TILES <= 2, "a block keeps the products of all places");

struct Shared {
  alignas(128) unsigned char stages[WARPS][STAGES][STAGE_BYTES];
  union {
    int counts[EXPERTS];
    float partial[GROUPS][2][SLICES][16][8];
    float products[SPREAD ? 1 : 2][SPREAD ? 1 : MOST_PLACES][16];
  };
  unsigned long long arrived[WARPS][STAGES];
  float weights[SPREAD ? 1 : MOST_PLACES];
  u32 sums[WARPS];
  u16 expert[MOST_UNITS];
  u16 begin[MOST_UNITS + 1];
  u16 places[MOST_PLACES];
};

static_assert(sizeof(Shared) <= SHARED_BYTES, "the launch brings less shared memory");

// Fills expert, begin and places; returns the number of units. Experts ascend; where a row stands in a unit may change
// from run to run, its result doesn't: columns of an MMA are independent.
__device__ __forceinline__ int list_units(Shared& s, const int* ids, int places) {
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  if (places == TOP) {  // The experts of one row are distinct.
    if (thread < TOP) {
      s.expert[thread] = ids[thread];
      s.begin[thread] = s.places[thread] = thread;
    }
    if (thread == TOP) s.begin[TOP] = TOP;
    __syncthreads();
    return TOP;
  }
  constexpr int threads = 32 * WARPS, each = (EXPERTS + threads - 1) / threads;
  for (int e = thread; e < EXPERTS; e += threads) s.counts[e] = 0;
  __syncthreads();
  for (int p = thread; p < places; p += threads) atomicAdd(s.counts + ids[p], 1);
  __syncthreads();
  u32 own = 0;  // units << 16 | places
#pragma unroll
  for (int i = 0; i < each; i++) {
    const int e = thread * each + i, count = e < EXPERTS ? s.counts[e] : 0;
    own += count | (count ? 1u << 16 : 0u);
  }
  u32 before = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const u32 other = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == 31) s.sums[warp] = before;
  __syncthreads();
  before -= own;
  u32 total = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    if (w < warp) before += s.sums[w];
    total += s.sums[w];
  }
#pragma unroll
  for (int i = 0; i < each; i++) {
    const int e = thread * each + i, count = e < EXPERTS ? s.counts[e] : 0;
    if (!count) continue;
    s.expert[before >> 16] = e;
    s.begin[before >> 16] = before & 0xFFFF;
    s.counts[e] = before & 0xFFFF;
    before += 1u << 16 | count;
  }
  if (thread == 0) s.begin[total >> 16] = places;
  __syncthreads();
  for (int p = thread; p < places; p += threads) s.places[atomicAdd(s.counts + ids[p], 1)] = p;
  __syncthreads();
  return total >> 16;
}

// The place of column g of a tile; the unit's first where there is none: what such a column computes is not stored.
__device__ __forceinline__ int place_of(const Shared& s, int unit, int tile, int column) {
  const int begin = s.begin[unit], place = begin + tile * 8 + column;
  return s.places[place < s.begin[unit + 1] ? place : begin];
}

__device__ __forceinline__ float situ(float gate, float up) {
  return SITU_BETA * tanhf(gate / SITU_BETA) / (1.f + expf(-gate)) * (SITU_LINEAR_BETA * tanhf(up / SITU_LINEAR_BETA));
}

// Adds the slices of 16 rows x 8 tokens and leaves SiTU of eight channels; a warp does one token. The other buffer
// of `partial` is next, so that one barrier of the eight warps is enough.
__device__ __forceinline__ void activate(float (&partial)[SLICES][16][8], const float (&sum)[4], const Shared& s,
                                         int unit, int tile, int turn, u16* activation, int channel) {
  const int lane = threadIdx.x & 31, slice = (threadIdx.x >> 5) % SLICES, group = (threadIdx.x >> 5) / SLICES;
  const int row = lane >> 2, column = (lane & 3) * 2;
  *(float2*)&partial[slice][row][column] = make_float2(sum[0], sum[1]);
  *(float2*)&partial[slice][row + 8][column] = make_float2(sum[2], sum[3]);
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * SLICES) : "memory");
  const int token = (slice + turn) % 8, place = s.begin[unit] + tile * 8 + token;
  if (place >= s.begin[unit + 1]) return;
  float value = 0;
#pragma unroll
  for (int i = 0; i < SLICES / 2; i++) value += partial[(lane >> 4) * (SLICES / 2) + i][lane & 15][token];
  value = (value + __shfl_xor_sync(~0u, value, 16)) * WEIGHT_UNIT;
  const float up = __shfl_xor_sync(~0u, value, 8);
  if (lane < 8)
    activation[(size_t)s.places[place] * CHANNELS + channel + lane] =
        to_bf16(__uint_as_float((u32)to_bf16(situ(value, up)) << 16) * ACTIVATION_UNIT);
}

// Gives store(place, row, value) what this lane has of a unit's products.
template <typename Store>
__device__ __forceinline__ void deliver(const Shared& s, int unit, const float (&sum)[TILES][4], Store store) {
  const int lane = threadIdx.x & 31, begin = s.begin[unit], count = s.begin[unit + 1] - begin;
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int column = t * 8 + (lane & 3) * 2 + i % 2;
      if (column < count) store(s.places[begin + column], (lane >> 2) + i / 2 * 8, sum[t][i] * WEIGHT_UNIT);
    }
}

// Part `index` of `parts` equal parts of `total`: its first.
__device__ __forceinline__ int part(int total, int index, int parts) { return (long long)total * index / parts; }

// x [rows, LATENT] bf16, rows x_stride apart; ids, weights [rows, TOP]; activation [rows * TOP, CHANNELS] bf16 and, with
// SPREAD, outputs [rows * TOP, LATENT] float32 are scratch; barrier: see grid_barrier; routed [rows, LATENT] bf16.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
experts(const unsigned char* w13, const unsigned char* w2, const u16* x, int x_stride, const int* ids,
        const float* weights, int rows, u16* activation, float* outputs, u32* barrier, u16* routed) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *(Shared*)memory;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp / SLICES, slice = warp % SLICES;
  const int places = rows * TOP;
  WeightStream<STAGES, STAGE_BYTES> stream(s.stages[warp][0], s.arrived[warp]);
  if (lane == 0) stream.initialise();
  if (!SPREAD && threadIdx.x < places) s.weights[threadIdx.x] = weights[threadIdx.x];
  const int units = list_units(s, ids, places);

  // What this warp takes, in order: first (unit, row block) from `first` on, then the second projection's.
  const int worker = blockIdx.x * GROUPS + group, workers = gridDim.x * GROUPS;
  const int first = part(units * FIRST_BLOCKS, worker, workers);
  const int first_count = part(units * FIRST_BLOCKS, worker + 1, workers) - first;
  const int second = SPREAD ? part(units * SECOND_BLOCKS, blockIdx.x * WARPS + warp, gridDim.x * WARPS) : warp;
  const int second_count =
      SPREAD ? part(units * SECOND_BLOCKS, blockIdx.x * WARPS + warp + 1, gridDim.x * WARPS) - second : 0;
  int next_unit = SPREAD ? second / SECOND_BLOCKS : warp, next_block = SPREAD ? second % SECOND_BLOCKS : blockIdx.x;
  const auto ask = [&] {
    if (lane) return;
    if (stream.asked < first_count) {
      const int item = first + stream.asked, unit = item / FIRST_BLOCKS;
      const size_t block = (size_t)s.expert[unit] * FIRST_BLOCKS + item % FIRST_BLOCKS;
      stream.ask(w13 + (block * SLICES + slice) * FIRST_BYTES, FIRST_BYTES);
    } else if (SPREAD ? stream.asked < first_count + second_count : next_unit < units && next_block < SECOND_BLOCKS) {
      const size_t block = (size_t)s.expert[next_unit] * SECOND_BLOCKS + next_block;
      stream.ask(w2 + block * SECOND_BYTES, SECOND_BYTES);
      if (SPREAD) {
        if (++next_block == SECOND_BLOCKS) next_block = 0, next_unit++;
      } else if ((next_unit += WARPS) >= units) {
        next_unit = warp, next_block += gridDim.x;
      }
    }
  };
#pragma unroll
  for (int i = 0; i < STAGES; i++) ask();

  int turn = 0;
  for (int i = 0; i < first_count; i++) {
    const int item = first + i, unit = item / FIRST_BLOCKS, channel = item % FIRST_BLOCKS * 8;
    const int tiles = TILES == 1 ? 1 : (s.begin[unit + 1] - s.begin[unit] + 7) / 8;
    const uint4* token[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++)
      token[t] = (const uint4*)(x + (size_t)(place_of(s, unit, t, lane >> 2) / TOP) * x_stride +
                                slice * FIRST_CHUNKS * 64 + (lane & 3) * 8);
    float sum[TILES][4] = {};
    if (TILES == 1) {
      uint4 b[FIRST_CHUNKS][2];  // Before the wait for the weights.
#pragma unroll
      for (int c = 0; c < 2 * FIRST_CHUNKS; c++) b[c / 2][c % 2] = __ldg(token[0] + c * 4);
      multiply<FIRST_CHUNKS, TILES>(stream.take(), 1, [&](int, int c, int a) { return raised(b[c][a]); }, sum);
    } else {
      multiply<FIRST_CHUNKS, TILES>(
          stream.take(), tiles, [&](int t, int c, int a) { return raised(__ldg(token[t] + c * 8 + a * 4)); }, sum);
    }
    stream.release();
    ask();
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      if (t && t >= tiles) break;
      activate(s.partial[group][turn & 1], sum[t], s, unit, t, turn, activation, channel);
      turn++;
    }
  }
  if (!grid_barrier(barrier)) return;

  // The products of `unit`'s places with the 16 rows of the next stage.
  const auto project = [&](int unit, float (&sum)[TILES][4]) {
    const int tiles = TILES == 1 ? 1 : (s.begin[unit + 1] - s.begin[unit] + 7) / 8;
    const uint4* token[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++)
      token[t] = (const uint4*)(activation + (size_t)place_of(s, unit, t, lane >> 2) * CHANNELS + (lane & 3) * 8);
    if (TILES == 1) {
      uint4 b[SECOND_CHUNKS][2];
#pragma unroll
      for (int c = 0; c < 2 * SECOND_CHUNKS; c++) b[c / 2][c % 2] = token[0][c * 4];
      multiply<SECOND_CHUNKS, TILES>(stream.take(), 1, [&](int, int c, int a) { return b[c][a]; }, sum);
    } else {
      multiply<SECOND_CHUNKS, TILES>(
          stream.take(), tiles, [&](int t, int c, int a) { return token[t][c * 8 + a * 4]; }, sum);
    }
    stream.release();
    ask();
  };
  if constexpr (SPREAD) {
    int unit = second / SECOND_BLOCKS, block = second % SECOND_BLOCKS;
    for (int i = 0; i < second_count; i++) {
      float sum[TILES][4] = {};
      project(unit, sum);
      deliver(s, unit, sum, [&](int place, int row, float value) {
        outputs[(size_t)place * LATENT + block * 16 + row] = value;
      });
      if (++block == SECOND_BLOCKS) block = 0, unit++;
    }
    if (!grid_barrier(barrier)) return;
    const int pairs = rows * (LATENT / 2);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += gridDim.x * blockDim.x) {
      const int row = i / (LATENT / 2), column = i % (LATENT / 2);
      const float2* product = (const float2*)outputs + (size_t)row * TOP * (LATENT / 2) + column;
      float2 total = {0, 0};
#pragma unroll
      for (int k = 0; k < TOP; k++) {
        const float weight = __ldg(weights + row * TOP + k);
        const float2 value = product[(size_t)k * (LATENT / 2)];
        total.x = fmaf(weight, value.x, total.x), total.y = fmaf(weight, value.y, total.y);
      }
      ((u32*)routed)[i] = to_bf16(total.x) | (u32)to_bf16(total.y) << 16;
    }
  } else {
    for (int block = blockIdx.x, turn = 0; block < SECOND_BLOCKS; block += gridDim.x, turn ^= 1) {
      for (int unit = warp; unit < units; unit += WARPS) {
        float sum[TILES][4] = {};
        project(unit, sum);
        deliver(s, unit, sum, [&](int place, int row, float value) { s.products[turn][place][row] = value; });
      }
      __syncthreads();
      if (threadIdx.x < rows * 16) {
        const int row = threadIdx.x / 16, channel = threadIdx.x % 16;
        float total = 0;
#pragma unroll
        for (int k = 0; k < TOP; k++)
          total = fmaf(s.weights[row * TOP + k], s.products[turn][row * TOP + k][channel], total);
        routed[(size_t)row * LATENT + block * 16 + channel] = to_bf16(total);
      }
    }
  }
}
