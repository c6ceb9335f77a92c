// Routed MXFP4 experts of one rank, W4A16: choose, group, first projection with SiTU, second projection, weighted sum.
//
// Constants from the host: EXPERTS, TOP_K, LATENT, INTER (local channels), and what `tactics.py` makes of them. Weights
// lie as `packing.py` describes: one 16-byte load of a lane is four 16 x 16 fragments (64 columns of k), weights being
// the first operand of mma.m16n8k16, so that one to eight tokens of an expert cost the same. A unit is an expert with
// up to eight of its tokens; -1 ends a list.
//
// E2M1 becomes bfloat16 by moving bits: exponent and mantissa land on the lowest exponent bits, which reads as the
// value times 2^-126. Activations therefore come in times 2^96 (exact: they stay far below 2^31), and sums leave times
// 2^30. Rounded to bfloat16: gate, up, the activation, each expert's output, the weighted sum. All sums are float32.

typedef unsigned int u32;
typedef unsigned short u16;

#define GROUP_TOKENS 8
#define FIRST_CHUNKS ((LATENT + 63) / 64)
#define SECOND_CHUNKS ((INTER + 63) / 64)
#define INTER_STRIDE (SECOND_CHUNKS * 64)
#define FIRST_BLOCKS (INTER / 8)
#define SECOND_BLOCKS (LATENT / 16)
// Few registers, for 40 warps on a multiprocessor (registers go to warps by the four): a step of one token is one wave.
#define FIRST_RESIDENT (FIRST_WARPS > 20 ? 1 : 40 / ((FIRST_WARPS + 3) / 4 * 4))

__device__ __forceinline__ float widen(u16 bits) { return __uint_as_float((u32)bits << 16); }

__device__ __forceinline__ u16 narrow(float value) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ float rounded(float value) { return widen(narrow(value)); }

// 4, 8 or 16 bytes on their way to shared memory, past the registers: a compiler cannot delay them to their use.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  const u32 target = (u32)__cvta_generic_to_shared(shared);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(target), "l"(global) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target), "l"(global), "n"(BYTES) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last PENDING groups of this thread's copies are there.
template <int PENDING>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// sum = addend + a 16 x 16 fragment of weights, times 2^-126, times 16 x 8 activations. The A registers are rows l / 4
// and l / 4 + 8 of the first column pair, then of the second.
__device__ __forceinline__ void mma(float (&sum)[4], float c0, float c1, float c2, float c3, u32 v, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
      : "r"(v & 0x81C081C0u), "r"((v << 3) & 0x81C081C0u), "r"((v << 6) & 0x81C081C0u),
        "r"(((v << 1) & 0x80008000u) | ((v >> 5) & 0x01000100u) | ((v >> 4) & 0x00C000C0u)), "r"(b0), "r"(b1),
        "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}

// A warp's weights in flight. Every lane copies what it will read itself, so that no barrier is needed.
template <int DEPTH, int VECTOR>
struct Queue {
  uint4 fragments[DEPTH][32];
  u32 scales[DEPTH / VECTOR][32][VECTOR];
};

// Walks BLOCKS row blocks of CHUNKS * 64 columns each, which lie behind each other in memory: after each, `done` gets
// the block's index and the products of its 16 rows with eight tokens, times 2^-30. `weights` and `scales` point at
// this lane's first fragment and row, `token` at the first column of its token. Lane l gets rows l / 4 (first two
// sums) and l / 4 + 8 (last two) of tokens 2 (l % 4) and 2 (l % 4) + 1.
template <int BLOCKS, int CHUNKS, int DEPTH, int VECTOR, typename Done>
__device__ __forceinline__ void stream(Queue<DEPTH, VECTOR>& queue, const uint4* weights, const u32* scales,
                                       const u16* token, Done done) {
  constexpr int total = BLOCKS * CHUNKS;
  static_assert(DEPTH % VECTOR == 0 && CHUNKS % VECTOR == 0, "");
  const int lane = threadIdx.x & 31;
  const auto enqueue = [&](int i) {
    if (i < total) {
      copy_async<16>(&queue.fragments[i % DEPTH][lane], weights + i * 32);
      if (i % VECTOR == 0) copy_async<4 * VECTOR>(queue.scales[i % DEPTH / VECTOR][lane], scales + i * 8);
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < DEPTH; i++) enqueue(i);
  float sum[4] = {0, 0, 0, 0};
  u32 exponents[VECTOR];
#pragma unroll
  for (int i = 0; i < total; i++) {
    uint4 x[2];
#pragma unroll
    for (int group = 0; group < 2; group++) x[group] = *(const uint4*)(token + i % CHUNKS * 64 + group * 32);
    await_copies<DEPTH - 1>();
    const uint4 fragment = queue.fragments[i % DEPTH][lane];
    const u32 words[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
    if (i % VECTOR == 0) {
#pragma unroll
      for (int j = 0; j < VECTOR; j++) exponents[j] = queue.scales[i % DEPTH / VECTOR][lane][j];
    }
    const u32 bytes = exponents[i % VECTOR];
    enqueue(i + DEPTH);
#pragma unroll
    for (int group = 0; group < 2; group++) {
      float part[4];
      mma(part, 0.f, 0.f, 0.f, 0.f, words[group * 2], x[group].x, x[group].y);
      mma(part, part[0], part[1], part[2], part[3], words[group * 2 + 1], x[group].z, x[group].w);
      // An E8M0 byte is a float's exponent field.
      const float low = __uint_as_float((group ? bytes << 7 : bytes << 23) & 0x7F800000u);
      const float high = __uint_as_float((group ? bytes >> 1 : bytes << 15) & 0x7F800000u);
      sum[0] = fmaf(part[0], low, sum[0]);
      sum[1] = fmaf(part[1], low, sum[1]);
      sum[2] = fmaf(part[2], high, sum[2]);
      sum[3] = fmaf(part[3], high, sum[3]);
    }
    if (i % CHUNKS == CHUNKS - 1) {
      done(i / CHUNKS, sum);
      sum[0] = sum[1] = sum[2] = sum[3] = 0;
    }
  }
}

__device__ __forceinline__ float situ(float gate, float up) {
  return SITU_BETA * tanhf(gate / SITU_BETA) / (1.f + expf(-gate)) * (SITU_LINEAR_BETA * tanhf(up / SITU_LINEAR_BETA));
}

// The pair at `place` of a unit; its first where there is none, so that every lane has a token to read. Columns of an
// MMA are independent, and what such a lane computes is not stored.
__device__ __forceinline__ int pair_of(const int* pairs, int place) {
  const int pair = __ldg(pairs + place);
  return pair < 0 ? __ldg(pairs) : pair;
}

// latent [rows, LATENT] bf16 times 2^96, rows latent_stride apart -> activated [pairs, INTER_STRIDE] bf16 times 2^96. grid (FIRST_BLOCKS, units).
// A row block is eight gate rows over their eight up rows.
extern "C" __global__ void __launch_bounds__(32 * FIRST_WARPS, FIRST_RESIDENT)
first(const uint4* weights, const u32* scales, const u16* latent, int latent_stride, const int* unit_expert,
      const int* unit_pairs, int max_units, u16* activated) {
  constexpr int chunks = FIRST_CHUNKS / FIRST_WARPS;
  __shared__ Queue<FIRST_DEPTH, FIRST_VECTOR> queues[FIRST_WARPS];
  __shared__ float partial[FIRST_WARPS][16][GROUP_TOKENS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, begin = warp * chunks;
  for (int unit = blockIdx.y; unit < max_units; unit += gridDim.y) {
    const int expert = __ldg(unit_expert + unit), pair = pair_of(unit_pairs + unit * GROUP_TOKENS, lane >> 2);
    if (expert < 0) return;
    const size_t block = (size_t)expert * FIRST_BLOCKS + blockIdx.x;
    stream<1, chunks, FIRST_DEPTH, FIRST_VECTOR>(
        queues[warp], weights + (block * FIRST_CHUNKS + begin) * 32 + lane,
        scales + (block * FIRST_CHUNKS + begin) * 8 + (lane >> 2) * FIRST_VECTOR,
        latent + (size_t)(pair / TOP_K) * latent_stride + begin * 64 + (lane & 3) * 8, [&](int, const float (&sum)[4]) {
          const int row = lane >> 2, token = (lane & 3) * 2;
          partial[warp][row][token] = sum[0];
          partial[warp][row][token + 1] = sum[1];
          partial[warp][row + 8][token] = sum[2];
          partial[warp][row + 8][token + 1] = sum[3];
        });
    __syncthreads();
    for (int i = threadIdx.x; i < 8 * GROUP_TOKENS; i += 32 * FIRST_WARPS) {
      const int token = i >> 3, channel = i & 7;
      const int pair = __ldg(unit_pairs + unit * GROUP_TOKENS + token);
      float gate = 0, up = 0;
#pragma unroll
      for (int w = 0; w < FIRST_WARPS; w++) {
        gate += partial[w][channel][token];
        up += partial[w][channel + 8][token];
      }
      if (pair >= 0)
        activated[(size_t)pair * INTER_STRIDE + blockIdx.x * 8 + channel] =
            narrow(rounded(situ(rounded(gate * 0x1p30f), rounded(up * 0x1p30f))) * 0x1p96f);
    }
    __syncthreads();
  }
}

// activated -> outputs [pairs, LATENT] bf16. grid (ceil(SECOND_BLOCKS / (SECOND_WARPS * EACH)), units); a warp owns
// EACH row blocks.
template <int EACH>
__device__ __forceinline__ void project(const uint4* weights, const u32* scales, const u16* activated,
                                        const int* unit_expert, const int* unit_pairs, int max_units, u16* outputs) {
  __shared__ Queue<SECOND_DEPTH, SECOND_VECTOR> queues[SECOND_WARPS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int rows = (blockIdx.x * SECOND_WARPS + warp) * EACH;
  if (rows >= SECOND_BLOCKS) return;
  for (int unit = blockIdx.y; unit < max_units; unit += gridDim.y) {
    const int* pairs = unit_pairs + unit * GROUP_TOKENS;
    const int expert = __ldg(unit_expert + unit), pair = pair_of(pairs, lane >> 2);
    if (expert < 0) return;
    const int targets[2] = {__ldg(pairs + (lane & 3) * 2), __ldg(pairs + (lane & 3) * 2 + 1)};
    const size_t block = (size_t)expert * SECOND_BLOCKS + rows;
    stream<EACH, SECOND_CHUNKS, SECOND_DEPTH, SECOND_VECTOR>(
        queues[warp], weights + block * SECOND_CHUNKS * 32 + lane,
        scales + block * SECOND_CHUNKS * 8 + (lane >> 2) * SECOND_VECTOR,
        activated + (size_t)pair * INTER_STRIDE + (lane & 3) * 8, [&](int index, const float (&sum)[4]) {
          const int row = (rows + index) * 16 + (lane >> 2);
#pragma unroll
          for (int i = 0; i < 2; i++) {
            if (targets[i] < 0) continue;
            outputs[(size_t)targets[i] * LATENT + row] = narrow(sum[i] * 0x1p30f);
            outputs[(size_t)targets[i] * LATENT + row + 8] = narrow(sum[2 + i] * 0x1p30f);
          }
        });
  }
}

// Few units: many warps, each soon done. Many: what a warp does once is spread over more rows.
extern "C" __global__ void __launch_bounds__(32 * SECOND_WARPS)
second_few(const uint4* weights, const u32* scales, const u16* activated, const int* unit_expert, const int* unit_pairs,
           int max_units, u16* outputs) {
  project<SECOND_FEW>(weights, scales, activated, unit_expert, unit_pairs, max_units, outputs);
}

extern "C" __global__ void __launch_bounds__(32 * SECOND_WARPS)
second_many(const uint4* weights, const u32* scales, const u16* activated, const int* unit_expert,
            const int* unit_pairs, int max_units, u16* outputs) {
  project<SECOND_MANY>(weights, scales, activated, unit_expert, unit_pairs, max_units, outputs);
}

// routed [rows, LATENT] bf16 = sum over the TOP_K experts, best first, of weight times output. grid (., rows).
extern "C" __global__ void combine(const u32* outputs, const float* routing_weights, u32* routed) {
  const int pair_of_channels = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (pair_of_channels >= LATENT / 2) return;
  float low = 0, high = 0;
#pragma unroll
  for (int k = 0; k < TOP_K; k++) {
    const float weight = __ldg(routing_weights + row * TOP_K + k);
    const u32 value = __ldg(outputs + ((size_t)row * TOP_K + k) * (LATENT / 2) + pair_of_channels);
    low += weight * __uint_as_float(value << 16);
    high += weight * __uint_as_float(value & 0xFFFF0000u);
  }
  routed[(size_t)row * (LATENT / 2) + pair_of_channels] = narrow(low) | (u32)narrow(high) << 16;
}

#define ROUTE_WARPS ((EXPERTS + 31) / 32)
#define KEPT 16
static_assert(ROUTE_WARPS <= 32 && TOP_K <= KEPT, "a block chooses up to 16 of up to 1024 experts");

typedef unsigned long long u64;

// Orders as the selection score does, +0 and -0 alike, NaN as -inf; equal scores by the lower expert first. 0 is least.
__device__ __forceinline__ u64 key_of(float score, int expert) {
  if (score != score) score = -__int_as_float(0x7F800000);
  const u32 bits = __float_as_uint(score + 0.f);
  return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~expert;
}

// One step of a bitonic network across a warp.
__device__ __forceinline__ u64 exchange(u64 key, int distance, bool keep_larger) {
  const u64 other = __shfl_xor_sync(~0u, key, distance);
  return (other > key) == keep_larger ? other : key;
}

// Puts the pairs (row * TOP_K + place) of `ids` into units: a whole block's work.
__device__ __forceinline__ void group_pairs(const int* ids, int rows, int max_units, int* unit_expert,
                                            int* unit_pairs) {
  __shared__ int count[EXPERTS], first_unit[EXPERTS], warp_units[ROUTE_WARPS];
  constexpr int threads = 32 * ROUTE_WARPS, per_thread = (EXPERTS + threads - 1) / threads;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pairs = rows * TOP_K;
  for (int e = threadIdx.x; e < EXPERTS; e += threads) count[e] = 0;
  for (int i = threadIdx.x; i < max_units; i += threads) unit_expert[i] = -1;
  for (int i = threadIdx.x; i < max_units * GROUP_TOKENS; i += threads) unit_pairs[i] = -1;
  __syncthreads();
  for (int pair = threadIdx.x; pair < pairs; pair += threads) atomicAdd(count + __ldcg(ids + pair), 1);
  __syncthreads();
  int units[per_thread], total = 0;
#pragma unroll
  for (int i = 0; i < per_thread; i++) {
    const int e = threadIdx.x * per_thread + i;
    units[i] = e < EXPERTS ? (count[e] + GROUP_TOKENS - 1) / GROUP_TOKENS : 0;
    total += units[i];
  }
  int before = total;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int other = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == 31) warp_units[warp] = before;
  __syncthreads();
  before -= total;
  for (int w = 0; w < warp; w++) before += warp_units[w];
#pragma unroll
  for (int i = 0; i < per_thread; i++) {
    const int e = threadIdx.x * per_thread + i;
    if (e >= EXPERTS) break;
    first_unit[e] = before;
    count[e] = 0;
    for (int u = 0; u < units[i]; u++) unit_expert[before++] = e;
  }
  __syncthreads();
  // The place of a token within its unit depends on timing, its result does not: columns of an MMA are independent.
  for (int pair = threadIdx.x; pair < pairs; pair += threads) {
    const int e = __ldcg(ids + pair), place = atomicAdd(count + e, 1);
    unit_pairs[(first_unit[e] + place / GROUP_TOKENS) * GROUP_TOKENS + place % GROUP_TOKENS] = pair;
  }
}

// For experts chosen elsewhere. Block 0: ids -> units. The others: x [rows, LATENT] bf16, rows x_stride apart -> latent
// [rows, LATENT] bf16 times 2^96. grid (1 + rows).
extern "C" __global__ void __launch_bounds__(32 * ROUTE_WARPS)
group(const int* ids, const u16* x, int x_stride, int rows, int max_units, int* unit_expert, int* unit_pairs,
      u16* latent) {
  if (blockIdx.x == 0) return group_pairs(ids, rows, max_units, unit_expert, unit_pairs);
  const size_t row = blockIdx.x - 1;
  for (int i = threadIdx.x; i < LATENT; i += 32 * ROUTE_WARPS)
    latent[row * LATENT + i] = narrow(widen(x[row * x_stride + i]) * 0x1p96f);
}

// logits [rows, EXPERTS] float32, rows logits_stride apart -> ids and weights [rows, TOP_K], best first, ties to the
// lower expert: a block sorts a row's experts by the warp and merges the best of each pair of warps. The last block to
// finish then groups the pairs into units, unless max_units is 0. `arrived` is zero before and after.
extern "C" __global__ void __launch_bounds__(32 * ROUTE_WARPS)
route(const float* logits, int logits_stride, const float* bias, int rows, int max_units, int* ids,
      float* routing_weights, int* unit_expert, int* unit_pairs, u32* arrived) {
  __shared__ float scores[EXPERTS];
  __shared__ u64 best[ROUTE_WARPS][KEPT];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.x;
  u64 key = 0;
  if (threadIdx.x < EXPERTS) {
    const float score = 1.f / (1.f + expf(-logits[(size_t)row * logits_stride + threadIdx.x]));
    scores[threadIdx.x] = score;
    key = key_of(score + bias[threadIdx.x], threadIdx.x);
  }
#pragma unroll
  for (int size = 2; size <= 32; size *= 2)
#pragma unroll
    for (int distance = size / 2; distance; distance /= 2)
      key = exchange(key, distance, ((lane & distance) == 0) == ((lane & size) == 0));
  for (int lists = ROUTE_WARPS; lists > 1; lists = (lists + 1) / 2) {
    if (warp < lists && lane < KEPT) best[warp][lane] = key;
    __syncthreads();
    const int list = 2 * warp + (lane >= KEPT);  // The second list backwards makes the two one bitonic sequence.
    if (warp < (lists + 1) / 2) {
      key = list < lists ? best[list][lane < KEPT ? lane : 31 - lane] : 0;
#pragma unroll
      for (int distance = 16; distance; distance /= 2) key = exchange(key, distance, (lane & distance) == 0);
    }
    __syncthreads();
  }
  if (ROUTE_WARPS == 1) __syncwarp();  // Where nothing was merged, nothing has ordered `scores` yet.
  if (warp == 0) {
    const int chosen = ~(u32)key;
    const float score = lane < TOP_K ? scores[chosen] : 0.f;
    float total = score;
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) total += __shfl_xor_sync(~0u, total, offset);
    if (lane < TOP_K) {
      ids[row * TOP_K + lane] = chosen;
      routing_weights[row * TOP_K + lane] = score / (total + 1e-20f) * ROUTED_SCALING;
      if (rows == 1 && max_units) {  // Its experts are distinct: each is a unit of its own.
        unit_expert[lane] = chosen;
        for (int i = 0; i < GROUP_TOKENS; i++) unit_pairs[lane * GROUP_TOKENS + i] = i ? -1 : lane;
      }
    }
  }
  if (rows == 1 || !max_units) return;

  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  group_pairs(ids, rows, max_units, unit_expert, unit_pairs);
}
