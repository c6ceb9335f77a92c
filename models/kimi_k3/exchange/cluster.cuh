// Eight blocks that share a row: barriers among them, and sums over all their threads.
#pragma once
#include <stdint.h>

namespace cluster {

constexpr int kBlocks = 8;
constexpr int kThreads = 128;  // of a block: a thread has one of a row's 1024 words
constexpr int kWarps = kThreads / 32;

// Not the aligned forms: threads of a warp come from polls that end at different times.
__device__ inline void arrive() { asm volatile("barrier.cluster.arrive;" ::: "memory"); }
__device__ inline void wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// A float in another block's shared memory, at the address that `mine` has here.
__device__ inline float remote(const float* mine, int block) {
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(mine));
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

// Sums of N values over all threads of the cluster, given to all of them.
template <int N>
struct Sums {
    float warps[kWarps][N], block[N], all[N];

    // This block's part. A barrier of the cluster belongs between it and `finish`.
    __device__ void start(const float (&values)[N]) {
        static_assert(N <= kThreads, "a thread adds one of them");
        const int thread = threadIdx.x, lane = thread % 32;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float value = values[i];
#pragma unroll
            for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
            if (lane == 0) warps[thread / 32][i] = value;
        }
        __syncthreads();
        if (thread < N) {
            float total = 0;
#pragma unroll
            for (int warp = 0; warp < kWarps; ++warp) total += warps[warp][thread];
            block[thread] = total;
        }
    }

    // The same order of addition in every block, so all blocks have the same bits.
    __device__ void finish() {
        const int thread = threadIdx.x;
        if (thread < N) {
            float total = 0;
#pragma unroll
            for (int other = 0; other < kBlocks; ++other) total += remote(&block[thread], other);
            all[thread] = total;
        }
        __syncthreads();
    }
};

}  // namespace cluster
