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
#define CLAIMS 8
#define CLAIM_BLOCKS 4
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
    int sorted[2][8 * TOP];
    float partial[GROUPS][2][SLICES][16][8];
    float products[SPREAD ? 1 : 2][SPREAD ? 1 : MOST_PLACES][16];
  };
  u64 arrived[WARPS][STAGES];
  u64 full[GROUPS][2], empty[GROUPS][2], claimed[GROUPS][CLAIMS];
  int claims[GROUPS][CLAIMS];
  int items[WARPS][STAGES];
  float weights[SPREAD ? 1 : MOST_PLACES];
  u32 sums[WARPS];
  int units;
  u16 expert[MOST_UNITS];
  u16 begin[MOST_UNITS + 1];
  u16 places[MOST_PLACES];
};

static_assert(sizeof(Shared) <= SHARED_BYTES, "the launch brings less shared memory");

// The same for up to eight rows: every place finds its rank among all, then a warp finds where experts begin.
__device__ __forceinline__ int list_few(Shared& s, const int* ids, int places) {
  constexpr int most = 8 * TOP, parts = 32 * WARPS / most, each = most / 32;
  static_assert(parts <= 32, "the threads of a place are in one warp");
  const int thread = threadIdx.x, lane = thread & 31, place = thread / parts;
  if (thread < most) s.sorted[0][thread] = thread < places ? ids[thread] : EXPERTS;
  __syncthreads();
  const int own = s.sorted[0][place];
  int rank = 0;
#pragma unroll
  for (int i = 0; i < most / parts; i++) {
    const int other = i * parts + thread % parts, expert = s.sorted[0][other];
    rank += expert < own || (expert == own && other < place);
  }
#pragma unroll
  for (int offset = 1; offset < parts; offset *= 2) rank += __shfl_xor_sync(~0u, rank, offset);
  if (thread % parts == 0) {
    s.sorted[1][rank] = own;
    if (place < places) s.places[rank] = place;
  }
  __syncthreads();
  if (thread < 32) {
    int expert[each], begins[each], own = 0;
#pragma unroll
    for (int i = 0; i < each; i++) {
      const int rank = lane * each + i;
      expert[i] = s.sorted[1][rank];
      begins[i] = rank < places && (rank == 0 || s.sorted[1][rank - 1] != expert[i]);
      own += begins[i];
    }
    int unit = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const int other = __shfl_up_sync(~0u, unit, offset);
      if (lane >= offset) unit += other;
    }
    if (lane == 31) s.units = unit, s.begin[unit] = places;
    unit -= own;
#pragma unroll
    for (int i = 0; i < each; i++)
      if (begins[i]) s.expert[unit] = expert[i], s.begin[unit++] = lane * each + i;
  }
  __syncthreads();
  return s.units;
}

// Fills expert, begin and places; returns the number of units, whose experts ascend but for one row's. Where a row
// stands in a unit may change from run to run, its result doesn't: columns of an MMA are independent.
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
  if (MOST_ROWS == 8) return list_few(s, ids, places);
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

// Tells a group's warps the n-th item that it claimed. No warp of a group is more than three items ahead of another, so
// a slot was read when its turn comes again.
__device__ __forceinline__ void publish_claim(Shared& s, int group, int n, int item) {
  s.claims[group][n % CLAIMS] = item;
  barrier_arrive(&s.claimed[group][n % CLAIMS]);
}
static_assert(CLAIMS >= STAGES + 5 && CLAIMS <= SLICES, "slots are read in time, and a warp of a group initialises each");

// x [rows, LATENT] bf16, rows x_stride apart; ids, weights [rows, TOP]; activation [rows * TOP, CHANNELS] bf16 and, with
// SPREAD, outputs [rows * TOP, LATENT] float32 are scratch; barrier: two words of grid_barrier, two counters of claims,
// zero before and after; routed [rows, LATENT] bf16.
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
    barrier_init(&s.claimed[group][slice], 1);
    barriers_ready();
  }
  // Where claims begin: the first comes while the units are listed.
  u32* counters = barrier + 2;
  int claim = 0;
  if (slice == 0 && lane == 0) claim = atomicAdd(counters, 1);
  if (!SPREAD && threadIdx.x < places) s.weights[threadIdx.x] = weights[threadIdx.x];
  const int units = list_units(s, ids, places);

  // First projection, (unit, row block): an equal share for each group, then one at a time to whoever is ready.
  const int worker = blockIdx.x * GROUPS + group, workers = gridDim.x * GROUPS;
  const int total = units * FIRST_BLOCKS, share = total / 8 * 7 / workers;
  const auto ask = [&] {
    if (lane) return;
    int item = worker * share + stream.asked;
    if (stream.asked >= share) {
      const int n = stream.asked - share, slot = n % CLAIMS;
      barrier_wait(&s.claimed[group][slot], n / CLAIMS & 1);
      item = s.claims[group][slot];
      if (item < total && slice == 0) {
        publish_claim(s, group, n + 1, workers * share + claim);
        claim = atomicAdd(counters, 1);
      }
    }
    s.items[warp][stream.asked % STAGES] = item < total ? item : -1;
    if (item >= total) return;
    const size_t block = (size_t)s.expert[item / FIRST_BLOCKS] * FIRST_BLOCKS + item % FIRST_BLOCKS;
    stream.ask(w13 + (block * SLICES + slice) * FIRST_BYTES, FIRST_BYTES);
  };
  if (slice == 0 && lane == 0) {
    publish_claim(s, group, 0, workers * share + claim);
    claim = atomicAdd(counters, 1);
  }
#pragma unroll 1
  for (int i = 0; i < STAGES; i++) {
    ask();
    __syncwarp();
    if (s.items[warp][i] < 0) break;
  }
  {
    uint4 token[FIRST_CHUNKS][2];
    int turn = 0, unit = -1, begin = 0, count = 0;
#pragma unroll 1
    for (int item; (item = s.items[warp][stream.taken % STAGES]) >= 0;) {
      const bool fresh = item / FIRST_BLOCKS != unit;
      if (fresh) unit = item / FIRST_BLOCKS, begin = s.begin[unit], count = s.begin[unit + 1] - begin;
      const u32* stage = nullptr;
#pragma unroll 1
      for (int tile = 0; tile < count; tile += 8) {
        if (fresh || count > 8) {
          const int row = s.places[begin + min(tile + (lane >> 2), count - 1)] / TOP;
          const uint4* source = (const uint4*)(x + (size_t)row * x_stride + slice * FIRST_CHUNKS * 64 + (lane & 3) * 8);
#pragma unroll
          for (int c = 0; c < 2 * FIRST_CHUNKS; c++) token[c / 2][c % 2] = raised(__ldg(source + c * 4));
        }
        if (tile == 0) stage = stream.take();
        float sum[4] = {0, 0, 0, 0};
        multiply<FIRST_CHUNKS>(stage, token, sum);
        if (tile + 8 >= count) {
          stream.release();
          ask();
          __syncwarp();
        }
        activate(s, sum, begin + tile, min(8, count - tile), turn++, activation, item % FIRST_BLOCKS * 8);
      }
    }
  }

  // Second projection. Its weights are asked for when this warp has no more of the first: those come before.
  const int second_total = units * SECOND_BLOCKS, second_workers = gridDim.x * WARPS;
  const int second_share = second_total / 8 * 7 / second_workers, second_worker = blockIdx.x * WARPS + warp;
  int asked = 0, next_unit = warp, next_block = blockIdx.x, next = second_worker * second_share;
  if (SPREAD && lane == 0) claim = atomicAdd(counters + 1, CLAIM_BLOCKS);
  const auto ask_second = [&] {
    if (lane) return;
    if (SPREAD) {
      if (asked == second_share || (asked > second_share && (asked - second_share) % CLAIM_BLOCKS == 0)) {
        next = second_workers * second_share + claim;
        claim = atomicAdd(counters + 1, CLAIM_BLOCKS);
      }
      s.items[warp][stream.asked % STAGES] = next < second_total ? next : -1;
      if (next >= second_total) return;
      next_unit = next / SECOND_BLOCKS, next_block = next % SECOND_BLOCKS;
      next++, asked++;
    } else if (next_unit >= units || next_block >= SECOND_BLOCKS) {
      return;
    }
    const size_t block = (size_t)s.expert[next_unit] * SECOND_BLOCKS + next_block;
    stream.ask(w2 + block * SECOND_BYTES, SECOND_BYTES);
    if (!SPREAD && (next_unit += WARPS) >= units) next_unit = warp, next_block += gridDim.x;
  };
#pragma unroll 1
  for (int i = 0; i < STAGES; i++) {
    ask_second();
    if (SPREAD) {
      __syncwarp();
      if (s.items[warp][(stream.taken + i) % STAGES] < 0) break;
    }
  }
  if (!grid_barrier(barrier)) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) counters[0] = 0;

  uint4 token[SECOND_CHUNKS][2];
  if constexpr (SPREAD) {
    int unit = -1, begin = 0, count = 0;
    float* target[2] = {};
#pragma unroll 1
    for (int item; (item = s.items[warp][stream.taken % STAGES]) >= 0;) {
      const bool fresh = item / SECOND_BLOCKS != unit;
      const int row = item % SECOND_BLOCKS * 16;
      if (fresh) unit = item / SECOND_BLOCKS, begin = s.begin[unit], count = s.begin[unit + 1] - begin;
      const u32* stage = nullptr;
#pragma unroll 1
      for (int tile = 0; tile < count; tile += 8) {
        if (fresh || count > 8) {
          load_tile(s, activation, begin, tile, count, token);
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
          ask_second();
          __syncwarp();
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
          if (target[t]) target[t][row] = sum[t] * WEIGHT_UNIT, target[t][row + 8] = sum[2 + t] * WEIGHT_UNIT;
      }
    }
    if (!grid_barrier(barrier)) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) counters[1] = 0;
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
        ask_second();
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
