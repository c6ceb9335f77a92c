// A warp's weights on their way into shared memory; barriers and counters of a grid whose blocks all run.
#pragma once

typedef unsigned int u32;

__device__ __forceinline__ u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Barriers of shared memory (mbarrier): arrivals release what a thread wrote, waits acquire it.
__device__ __forceinline__ void barrier_init(unsigned long long* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(unsigned long long* barrier, u32 parity) {
  u32 done;
  do
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  while (!done);
}

// By whoever initialised barriers, before the block's next barrier.
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Weights are read once a step, so they leave the L2 first: what layers share, code and what they hand on to each other stay.
__device__ __forceinline__ unsigned long long read_once() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// By one thread: brings `bytes` (a multiple of 16) from `source` to shared memory, both aligned to 16; `barrier` has one
// arrival.
__device__ __forceinline__ void bring(unsigned long long* barrier, void* to, const void* source, u32 bytes) {
  const u32 address = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(to)),
      "l"(source), "r"(bytes), "r"(address), "l"(read_once())
      : "memory");
}

// By one thread: `bytes` (a multiple of 16) from `source` on their way into the L2.
__device__ __forceinline__ void bring_near(const void* source, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(source), "r"(bytes), "l"(read_once())
               : "memory");
}

// A ring of DEPTH stages that one warp fills (its first lane, by bulk copies) and reads: what is to come is under way
// while the warp computes, or waits for other blocks. Stages are taken in the order in which they were asked for.
// `arrived`: DEPTH barriers of one arrival.
template <int DEPTH, int BYTES>
struct WeightStream {
  unsigned char* stages;
  unsigned long long* arrived;
  int asked = 0, taken = 0;

  __device__ __forceinline__ WeightStream(unsigned char* stages, unsigned long long* arrived)
      : stages(stages), arrived(arrived) {}

  // By the first lane: brings `bytes` (a multiple of 16) from `source` (aligned to 16).
  __device__ __forceinline__ void ask(const void* source, u32 bytes) {
    bring(arrived + asked % DEPTH, stages + asked % DEPTH * BYTES, source, bytes);
    asked++;
  }

  // By every lane: waits for the oldest stage, which is free again after `release`.
  __device__ __forceinline__ const u32* take() const {
    const int stage = taken % DEPTH;
    barrier_wait(arrived + stage, taken / DEPTH & 1);
    return (const u32*)(stages + stage * BYTES);
  }

  // By every lane: what it has read of the stage comes before the copy that fills it again, which writes through another
  // proxy.
  __device__ __forceinline__ void settle() const {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
  }

  // By every lane: the stage may be filled again.
  __device__ __forceinline__ void release() {
    settle();
    taken++;
  }
};

// Polls of the barrier before a block gives up: seconds.
#define MOST_POLLS (1 << 22)

// Waits until every block of the grid is here; what each wrote before, all may read afterwards. `state` are two words
// that outlive a launch: the first counts (its highest bit is flipped once by each barrier, the others come back to
// zero), the second becomes 1 where a block gave up. Returns whether all came: the same for all threads of a block.
__device__ __forceinline__ bool grid_barrier(u32* state) {
  __shared__ bool all_here;
  __syncthreads();
  if (threadIdx.x == 0) {
    const u32 blocks = gridDim.x, share = blockIdx.x ? 1u : 0x80000000u - (blocks - 1);
    u32 before, now;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(state), "r"(share) : "memory");
    int polls = 0;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(state) : "memory");
    while (!((before ^ now) & 0x80000000u) && ++polls < MOST_POLLS);
    all_here = polls < MOST_POLLS;
    if (!all_here) atomicExch(state + 1, 1u);
  }
  __syncthreads();
  return all_here;
}

// By one thread: `count` more are done. What its warp wrote before the last __syncwarp, whoever sees the count may read.
__device__ __forceinline__ void count_up(u32* counter, u32 count) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
}

// By every lane: waits until `counter` has come to `target`; gives up as a barrier does, and goes on, to worthless results.
__device__ __forceinline__ void wait_for(const u32* counter, u32 target, u32* state) {
  u32 now;
  int polls = 0;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  while (now < target && ++polls < MOST_POLLS);
  if (now < target) atomicExch(state + 1, 1u);
}
