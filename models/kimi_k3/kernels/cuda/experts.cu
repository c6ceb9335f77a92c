// Sixteen MXFP4 experts a row in one persistent launch: W1 and W3 with SiTU, grid barrier, W2, weighted sum.
//
// Constants from the host: EXPERTS, TOP, LATENT, CHANNELS (of this rank), MOST_ROWS, STAGES of a
// warp's ring, SPREAD, SITU_BETA, SITU_LINEAR_BETA, SHARED_BYTES.
//
// A unit is an expert with the places (row * TOP + place) that chose it, so its weights are read once whatever their
// number; every block lists the units for itself. Weights lie in stages, each what one warp takes at a time:
//   w13 [EXPERTS, CHANNELS / 8 row blocks, 8 slices of k, 7 chunks]; a row block is eight gate rows over their up rows
//   w2  [EXPERTS, LATENT / 16 row blocks, CHANNELS / 64 chunks]
// Eight tokens are a tile; what a warp multiplies them with stays in registers from row block to row block. First
// projection: eight warps take the slices of a row block, and one of them, in turn, adds them in a fixed order and leaves
// SiTU in bfloat16 times 2^96 while the others go on. Second: a warp takes a whole row block of a unit. SPREAD 0: a block takes all units of a
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
#define MOST_PLACES (MOST_ROWS * TOP)
#define MOST_UNITS (EXPERTS < MOST_PLACES ? EXPERTS : MOST_PLACES)
static_assert(LATENT % (64 * SLICES) == 0 && CHANNELS % 64 == 0, "slices and chunks are whole");
static_assert(SPREAD || MOST_ROWS <= 16, "a block keeps the products of all places");

struct Shared {
  alignas(128) unsigned char stages[WARPS][STAGES][STAGE_BYTES];
  union {
    int counts[EXPERTS];
    float partial[GROUPS][2][SLICES][16][8];
    float products[SPREAD ? 1 : 2][SPREAD ? 1 : MOST_PLACES][16];
  };
  u64 arrived[WARPS][STAGES];
  u64 full[GROUPS][2], empty[GROUPS][2];
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

// This lane's activations of the tile's token g; of its last token where there is none: what such a column computes is
// not stored.
__device__ __forceinline__ void load_tile(const Shared& s, const u16* activation, int begin, int tile, int count,
                                          uint4 (&token)[SECOND_CHUNKS][2]) {
  const int lane = threadIdx.x & 31, place = s.places[begin + min(tile + (lane >> 2), count - 1)];
  const uint4* source = (const uint4*)(activation + (size_t)place * CHANNELS + (lane & 3) * 8);
#pragma unroll
  for (int c = 0; c < 2 * SECOND_CHUNKS; c++) token[c / 2][c % 2] = source[c * 4];
}

__device__ __forceinline__ float situ(float gate, float up) {
  return SITU_BETA * tanhf(gate / SITU_BETA) / (1.f + expf(-gate)) * (SITU_LINEAR_BETA * tanhf(up / SITU_LINEAR_BETA));
}

// Hands this warp's 16 rows x 8 tokens of row block `channel` / 8 to the group's sum; the warp whose turn it is leaves
// SiTU of eight channels. Two buffers: who is ahead waits until the sum before last was taken.
__device__ __forceinline__ void activate(Shared& s, const float (&sum)[4], int first_place, int count, int turn,
                                         u16* activation, int channel) {
  const int lane = threadIdx.x & 31, slice = (threadIdx.x >> 5) % SLICES, group = (threadIdx.x >> 5) / SLICES;
  const int row = lane >> 2, column = (lane & 3) * 2, buffer = turn & 1, round = turn >> 1;
  auto& partial = s.partial[group][buffer];
  if (round) barrier_wait(&s.empty[group][buffer], (round - 1) & 1);
  *(float2*)&partial[slice][row][column] = make_float2(sum[0], sum[1]);
  *(float2*)&partial[slice][row + 8][column] = make_float2(sum[2], sum[3]);
  __syncwarp();
  if (lane == 0) barrier_arrive(&s.full[group][buffer]);
  if (turn % SLICES != slice) return;
  barrier_wait(&s.full[group][buffer], round & 1);
  for (int token = lane >> 3; token < count; token += 4) {
    float gate = 0, up = 0;
#pragma unroll
    for (int i = 0; i < SLICES; i++) gate += partial[i][lane & 7][token], up += partial[i][8 + (lane & 7)][token];
    const float value = __uint_as_float((u32)to_bf16(situ(gate * WEIGHT_UNIT, up * WEIGHT_UNIT)) << 16);
    activation[(size_t)s.places[first_place + token] * CHANNELS + channel + (lane & 7)] =
        to_bf16(value * ACTIVATION_UNIT);
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(&s.empty[group][buffer]);
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
  if (lane == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(&s.arrived[warp][i], 1);
    if (slice < 2) barrier_init(&s.full[group][slice], SLICES), barrier_init(&s.empty[group][slice], 1);
    barriers_ready();
  }
  if (!SPREAD && threadIdx.x < places) s.weights[threadIdx.x] = weights[threadIdx.x];
  const int units = list_units(s, ids, places);

  // What this warp takes, in order: `first_count` (unit, row block), then the second projection's.
  const int worker = blockIdx.x * GROUPS + group, workers = gridDim.x * GROUPS;
  const int first = part(units * FIRST_BLOCKS, worker, workers);
  const int first_count = part(units * FIRST_BLOCKS, worker + 1, workers) - first;
  const int second = SPREAD ? part(units * SECOND_BLOCKS, blockIdx.x * WARPS + warp, gridDim.x * WARPS) : 0;
  const int second_count =
      SPREAD ? part(units * SECOND_BLOCKS, blockIdx.x * WARPS + warp + 1, gridDim.x * WARPS) - second : 0;
  int first_unit = first / FIRST_BLOCKS, first_block = first % FIRST_BLOCKS;
  int second_unit = SPREAD ? second / SECOND_BLOCKS : warp, second_block = SPREAD ? second % SECOND_BLOCKS : blockIdx.x;
  int ask_first = first_block, ask_first_unit = first_unit, ask_second = second_block, ask_second_unit = second_unit;
  const auto ask = [&] {
    if (lane) return;
    if (stream.asked < first_count) {
      const size_t block = (size_t)s.expert[ask_first_unit] * FIRST_BLOCKS + ask_first;
      stream.ask(w13 + (block * SLICES + slice) * FIRST_BYTES, FIRST_BYTES);
      if (++ask_first == FIRST_BLOCKS) ask_first = 0, ask_first_unit++;
    } else if (SPREAD ? stream.asked < first_count + second_count
                      : ask_second_unit < units && ask_second < SECOND_BLOCKS) {
      const size_t block = (size_t)s.expert[ask_second_unit] * SECOND_BLOCKS + ask_second;
      stream.ask(w2 + block * SECOND_BYTES, SECOND_BYTES);
      if (SPREAD) {
        if (++ask_second == SECOND_BLOCKS) ask_second = 0, ask_second_unit++;
      } else if ((ask_second_unit += WARPS) >= units) {
        ask_second_unit = warp, ask_second += gridDim.x;
      }
    }
  };
#pragma unroll 1
  for (int i = 0; i < STAGES; i++) ask();

  {
    uint4 token[FIRST_CHUNKS][2];
    int turn = 0, begin = 0, count = 0;
    bool fresh = true;
#pragma unroll 1
    for (int i = 0; i < first_count; i++) {
      if (fresh) begin = s.begin[first_unit], count = s.begin[first_unit + 1] - begin;
      const u32* stage = nullptr;
#pragma unroll 1
      for (int tile = 0; tile < count; tile += 8) {
        if (fresh || count > 8) {
          const int row = s.places[begin + min(tile + (lane >> 2), count - 1)] / TOP;
          const uint4* source = (const uint4*)(x + (size_t)row * x_stride + slice * FIRST_CHUNKS * 64 + (lane & 3) * 8);
#pragma unroll
          for (int c = 0; c < 2 * FIRST_CHUNKS; c++) token[c / 2][c % 2] = raised(__ldg(source + c * 4));
          fresh = false;
        }
        if (tile == 0) stage = stream.take();
        float sum[4] = {0, 0, 0, 0};
        multiply<FIRST_CHUNKS>(stage, token, sum);
        if (tile + 8 >= count) {
          stream.release();
          ask();
        }
        activate(s, sum, begin + tile, min(8, count - tile), turn++, activation, first_block * 8);
      }
      if (++first_block == FIRST_BLOCKS) first_block = 0, first_unit++, fresh = true;
    }
  }
  if (!grid_barrier(barrier)) return;

  uint4 token[SECOND_CHUNKS][2];
  if constexpr (SPREAD) {
    int begin = 0, count = 0;
    float* target[2] = {};
    bool fresh = true;
#pragma unroll 1
    for (int i = 0; i < second_count; i++) {
      if (fresh) begin = s.begin[second_unit], count = s.begin[second_unit + 1] - begin;
      const u32* stage = nullptr;
#pragma unroll 1
      for (int tile = 0; tile < count; tile += 8) {
        if (fresh || count > 8) {
          load_tile(s, activation, begin, tile, count, token);
          fresh = false;
#pragma unroll
          for (int t = 0; t < 2; t++) {
            const int column = tile + (lane & 3) * 2 + t;
            target[t] = column < count ? outputs + (size_t)s.places[begin + column] * LATENT + (lane >> 2) : nullptr;
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
            target[t][second_block * 16] = sum[t] * WEIGHT_UNIT;
            target[t][second_block * 16 + 8] = sum[2 + t] * WEIGHT_UNIT;
          }
      }
      if (++second_block == SECOND_BLOCKS) second_block = 0, second_unit++, fresh = true;
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
    // One unit for this warp: its activations stay.
    const bool stays = units <= WARPS && warp < units && s.begin[warp + 1] - s.begin[warp] <= 8;
    if (stays) load_tile(s, activation, s.begin[warp], 0, s.begin[warp + 1] - s.begin[warp], token);
    int turn = 0;
#pragma unroll 1
    for (int block = blockIdx.x; block < SECOND_BLOCKS; block += gridDim.x, turn ^= 1) {
#pragma unroll 1
      for (int unit = warp; unit < units; unit += WARPS) {
        const int begin = s.begin[unit], count = s.begin[unit + 1] - begin;
        const u32* stage = nullptr;
#pragma unroll 1
        for (int tile = 0; tile < count; tile += 8) {
          if (!stays) load_tile(s, activation, begin, tile, count, token);
          if (tile == 0) stage = stream.take();
          float sum[4] = {0, 0, 0, 0};
          multiply<SECOND_CHUNKS>(stage, token, sum);
#pragma unroll
          for (int t = 0; t < 2; t++) {
            const int column = tile + (lane & 3) * 2 + t;
            if (column >= count) continue;
            float* target = &s.products[turn][s.places[begin + column]][lane >> 2];
            target[0] = sum[t] * WEIGHT_UNIT, target[8] = sum[2 + t] * WEIGHT_UNIT;
          }
        }
        stream.release();
        ask();
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
