// The TOP best of EXPERTS experts of one row, by a block of ROUTE_WARPS warps: exact, whatever the network that sorts.
#pragma once

#include "mxfp4.cuh"

#define ROUTE_WARPS 16
static_assert(TOP == 16 && EXPERTS <= 64 * ROUTE_WARPS, "a warp keeps the best 16 of 64 experts");

struct RoutingWork {
  float scores[EXPERTS];
  u64 best[2 * ROUTE_WARPS][TOP];  // of every round its own: nobody waits until a list has been read
};

// Orders as score + bias does, +0 and -0 alike, NaN as minus infinity; equal sums by the lower expert first. 0 is least.
__device__ __forceinline__ u64 routing_key(float sum, int expert) {
  if (sum != sum) sum = -__int_as_float(0x7F800000);
  const u32 bits = __float_as_uint(sum + 0.f);
  return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~expert;
}

__device__ __forceinline__ u64 exchange(u64 key, int distance, bool keep_larger) {
  const u64 other = __shfl_xor_sync(~0u, key, distance);
  return (other > key) == keep_larger ? other : key;
}

// Sorts a warp's bitonic sequence, the largest first.
__device__ __forceinline__ u64 merged(u64 key) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int distance = 16; distance; distance /= 2) key = exchange(key, distance, (lane & distance) == 0);
  return key;
}

// What a thread needs to choose.
struct Candidates {
  float logit[2], bias[2];
};

// By all threads of the block: logits, bias [EXPERTS].
__device__ __forceinline__ Candidates candidates(const float* logits, const float* bias) {
  Candidates found = {};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int expert = i * 32 * ROUTE_WARPS + threadIdx.x;
    if (expert < EXPERTS) found.logit[i] = logits[expert], found.bias[i] = bias[expert];
  }
  return found;
}

// The candidates of all threads -> ids, weights [TOP], best first; s / (sum of the chosen s + 1e-20) times `scaling`. By all
// threads of the block; `ids` and `weights` are written by its first warp.
__device__ __forceinline__ void choose(RoutingWork& work, const Candidates& among, float scaling, int* ids,
                                       float* weights) {
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  u64 keys[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int expert = i * 32 * ROUTE_WARPS + thread;
    keys[i] = 0;
    if (expert < EXPERTS) {
      const float score = 1.f / (1.f + expf(-among.logit[i]));
      work.scores[expert] = score;
      keys[i] = routing_key(score + among.bias[i], expert);
    }
  }
#pragma unroll
  for (int size = 2; size <= 32; size *= 2)
#pragma unroll
    for (int distance = size / 2; distance; distance /= 2)
#pragma unroll
      for (int i = 0; i < 2; i++)
        keys[i] = exchange(keys[i], distance, ((lane & distance) == 0) == ((lane & size) == 0));
  // The second list backwards makes the two one bitonic sequence.
  const u64 second = __shfl_xor_sync(~0u, keys[1], 31);
  u64 key = merged(lane < TOP ? keys[0] : second);
#pragma unroll
  for (int lists = ROUTE_WARPS; lists > 1; lists /= 2) {
    u64(*best)[TOP] = work.best + 2 * (ROUTE_WARPS - lists);
    if (warp < lists && lane < TOP) best[warp][lane] = key;
    __syncthreads();
    if (warp < lists / 2) key = merged(best[2 * warp + (lane >= TOP)][lane < TOP ? lane : 31 - lane]);
  }
  if (warp) return;
  const int chosen = ~(u32)key;
  const float score = lane < TOP ? work.scores[chosen] : 0.f;
  float total = score;
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) total += __shfl_xor_sync(~0u, total, offset);
  if (lane < TOP) ids[lane] = chosen, weights[lane] = score / (total + 1e-20f) * scaling;
}
