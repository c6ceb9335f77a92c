// The units of a step: which experts were chosen, and by which places (row * TOP + place). Every block lists them.
// From the host: EXPERTS, TOP, MOST_ROWS. Blocks have UNIT_WARPS warps.
#pragma once

#include "mxfp4.cuh"

#define UNIT_WARPS 16
#define MOST_PLACES (MOST_ROWS * TOP)
#define MOST_UNITS (EXPERTS < MOST_PLACES ? EXPERTS : MOST_PLACES)

// Unit i is expert[i] with places[begin[i]] up to places[begin[i + 1] - 1].
struct Units {
  u16 expert[MOST_UNITS];
  u16 begin[MOST_UNITS + 1];
  u16 places[MOST_PLACES];
  int count;
};

// What listing needs, and nobody afterwards.
struct UnitsWork {
  union {
    int counts[EXPERTS];
    int sorted[2][8 * TOP];
  };
  u32 sums[UNIT_WARPS];
};

// For up to eight rows: every place finds its rank among all, then a warp finds where experts begin.
__device__ __forceinline__ void list_few(Units& u, UnitsWork& work, const int* ids, int places) {
  constexpr int most = 8 * TOP, parts = 32 * UNIT_WARPS / most, each = most / 32;
  static_assert(parts <= 32, "the threads of a place are in one warp");
  const int thread = threadIdx.x, lane = thread & 31, place = thread / parts;
  if (thread < most) work.sorted[0][thread] = thread < places ? ids[thread] : EXPERTS;
  __syncthreads();
  const int own = work.sorted[0][place];
  int rank = 0;
#pragma unroll
  for (int i = 0; i < most / parts; i++) {
    const int other = i * parts + thread % parts, expert = work.sorted[0][other];
    rank += expert < own || (expert == own && other < place);
  }
#pragma unroll
  for (int offset = 1; offset < parts; offset *= 2) rank += __shfl_xor_sync(~0u, rank, offset);
  if (thread % parts == 0) {
    work.sorted[1][rank] = own;
    if (place < places) u.places[rank] = place;
  }
  __syncthreads();
  if (thread < 32) {
    int expert[each], begins[each], own = 0;
#pragma unroll
    for (int i = 0; i < each; i++) {
      const int rank = lane * each + i;
      expert[i] = work.sorted[1][rank];
      begins[i] = rank < places && (rank == 0 || work.sorted[1][rank - 1] != expert[i]);
      own += begins[i];
    }
    int unit = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const int other = __shfl_up_sync(~0u, unit, offset);
      if (lane >= offset) unit += other;
    }
    if (lane == 31) u.count = unit, u.begin[unit] = places;
    unit -= own;
#pragma unroll
    for (int i = 0; i < each; i++)
      if (begins[i]) u.expert[unit] = expert[i], u.begin[unit++] = lane * each + i;
  }
  __syncthreads();
}

// Fills all of `u`. Experts of units ascend but for one row's. Where a row
// stands in a unit may change from run to run, its result doesn't: columns of an MMA are independent.
__device__ __forceinline__ void list_units(Units& u, UnitsWork& work, const int* ids, int places) {
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  if (places == TOP) {  // The experts of one row are distinct.
    if (thread < TOP) {
      u.expert[thread] = ids[thread];
      u.begin[thread] = u.places[thread] = thread;
    }
    if (thread == TOP) u.begin[TOP] = u.count = TOP;
    __syncthreads();
    return;
  }
  if (MOST_ROWS == 8) {
    list_few(u, work, ids, places);
    return;
  }
  constexpr int threads = 32 * UNIT_WARPS, each = (EXPERTS + threads - 1) / threads;
  for (int e = thread; e < EXPERTS; e += threads) work.counts[e] = 0;
  __syncthreads();
  for (int p = thread; p < places; p += threads) atomicAdd(work.counts + ids[p], 1);
  __syncthreads();
  u32 own = 0;  // units << 16 | places
#pragma unroll
  for (int i = 0; i < each; i++) {
    const int e = thread * each + i, count = e < EXPERTS ? work.counts[e] : 0;
    own += count | (count ? 1u << 16 : 0u);
  }
  u32 before = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const u32 other = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == 31) work.sums[warp] = before;
  __syncthreads();
  before -= own;
  u32 total = 0;
#pragma unroll
  for (int w = 0; w < UNIT_WARPS; w++) {
    if (w < warp) before += work.sums[w];
    total += work.sums[w];
  }
#pragma unroll
  for (int i = 0; i < each; i++) {
    const int e = thread * each + i, count = e < EXPERTS ? work.counts[e] : 0;
    if (!count) continue;
    u.expert[before >> 16] = e;
    u.begin[before >> 16] = before & 0xFFFF;
    work.counts[e] = before & 0xFFFF;
    before += 1u << 16 | count;
  }
  if (thread == 0) u.count = total >> 16, u.begin[total >> 16] = places;
  __syncthreads();
  for (int p = thread; p < places; p += threads) u.places[atomicAdd(work.counts + ids[p], 1)] = p;
  __syncthreads();
}
