// The TOP best of EXPERTS experts of one row, by a block of ROUTE_WARPS warps: exact, whatever the scores.
//
// Of the largest scores of 32 groups of experts, TOP are no less than the TOP-th largest of them. So the best are among the
// experts that are no less than that, some 23 of 896, which one warp orders. Where there are more than it has lanes (one row
// in a hundred of equally distributed scores, and all rows of many ties), all experts go through a sorting network.
#pragma once

#include "mxfp4.cuh"

#define ROUTE_WARPS 16
#define ROUTE_GROUPS (2 * ROUTE_WARPS)
#define ROUTE_FEW 32
static_assert(TOP == 16 && EXPERTS <= 64 * ROUTE_WARPS, "a warp keeps the best 16 of 64 experts");
static_assert(ROUTE_GROUPS == 32 && EXPERTS >= 32 * TOP, "a warp has the groups, of which enough have experts");

struct RoutingWork {
  float scores[EXPERTS];
  u32 largest[ROUTE_GROUPS];
  u64 few[ROUTE_FEW];
  u64 best[ROUTE_WARPS][TOP];
  int count;
};

// Orders as score + bias does, NaN as minus infinity. (There is no -0 among them: no score is one.) 0 is less than all.
__device__ __forceinline__ u32 routing_order(float sum) {
  if (sum != sum) sum = -__int_as_float(0x7F800000);
  const u32 bits = __float_as_uint(sum);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The same, equal ones by the lower expert first.
__device__ __forceinline__ u64 routing_key(u32 order, int expert) { return (u64)order << 32 | (u32)~expert; }

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

// The TOP largest of all threads' keys, the largest first: in the first lanes of the first warp.
__device__ __forceinline__ u64 best_of_all(RoutingWork& work, u64 (&keys)[2]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
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
    if (warp < lists && lane < TOP) work.best[warp][lane] = key;
    __syncthreads();
    if (warp < lists / 2) key = merged(work.best[2 * warp + (lane >= TOP)][lane < TOP ? lane : 31 - lane]);
    __syncthreads();
  }
  return key;
}

// The same of the `count` keys in `few`, by one warp: each goes where as many are larger.
__device__ __forceinline__ u64 best_of_few(RoutingWork& work, int count) {
  const int lane = threadIdx.x & 31;
  const u64 own = lane < count ? work.few[lane] : 0;
  int larger = 0;
#pragma unroll
  for (int i = 0; i < ROUTE_FEW; i++) larger += i < count && work.few[i] > own;
  if (lane < count && larger < TOP) work.best[0][larger] = own;
  __syncwarp();
  return lane < TOP ? work.best[0][lane] : 0;
}

// The candidates of all threads -> ids, weights [TOP], best first; s / (sum of the chosen s + 1e-20) times `scaling`. By all
// threads of the block, once; `ids` and `weights` are written by its first warp.
__device__ __forceinline__ void choose(RoutingWork& work, const Candidates& among, float scaling, int* ids,
                                       float* weights) {
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  u32 order[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int expert = i * 32 * ROUTE_WARPS + thread;
    if (expert < EXPERTS) {
      const float score = 1.f / (1.f + expf(-among.logit[i]));
      work.scores[expert] = score;
      order[i] = routing_order(score + among.bias[i]);
    }
    const u32 largest = __reduce_max_sync(~0u, order[i]);
    if (lane == 0) work.largest[2 * warp + i] = largest;
  }
  if (thread == 0) work.count = 0;
  __syncthreads();
  const u32 own = work.largest[lane];
  int larger = 0;
#pragma unroll
  for (int i = 0; i < ROUTE_GROUPS; i++) {
    const u32 other = work.largest[i];
    larger += other > own || (other == own && i < lane);
  }
  const u32 least = __shfl_sync(~0u, own, __ffs(__ballot_sync(~0u, larger == TOP - 1)) - 1);
  u64 keys[2];
  u32 here[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    keys[i] = order[i] ? routing_key(order[i], i * 32 * ROUTE_WARPS + thread) : 0;
    here[i] = __ballot_sync(~0u, order[i] && order[i] >= least);
  }
  if (here[0] | here[1]) {
    int place = lane ? 0 : atomicAdd(&work.count, __popc(here[0]) + __popc(here[1]));
    place = __shfl_sync(~0u, place, 0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int own_place = place + __popc(here[i] & ((1u << lane) - 1));
      if (here[i] >> lane & 1 && own_place < ROUTE_FEW) work.few[own_place] = keys[i];
      place += __popc(here[i]);
    }
  }
  __syncthreads();
  const int count = work.count;
  u64 key;
  if (count > ROUTE_FEW) key = best_of_all(work, keys);
  if (warp) return;
  if (count <= ROUTE_FEW) key = best_of_few(work, count);
  const int chosen = ~(u32)key;
  const float score = lane < TOP ? work.scores[chosen] : 0.f;
  float total = score;
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) total += __shfl_xor_sync(~0u, total, offset);
  if (lane < TOP) ids[lane] = chosen, weights[lane] = score / (total + 1e-20f) * scaling;
}
