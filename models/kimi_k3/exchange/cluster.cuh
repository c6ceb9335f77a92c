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

// Stores a float into another block's shared memory, at the address that `mine` has here.
__device__ inline void store(float* mine, int block, float value) {
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(mine));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(block));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// Sums of up to N values over all threads of the cluster, given to all of them. Every block stores its part into every
// other's shared memory, so that behind the barrier nobody reads far away, and blocks may leave.
template <int N>
struct Sums {
    float warps[kWarps][N], parts[kBlocks][N], all[N];

    // This block's part of the first `count` values. All blocks must have begun, and a barrier of the cluster belongs
    // between it and `finish`.
    __device__ void start(const float (&values)[N], int count) {
        const int thread = threadIdx.x, lane = thread % 32;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (i >= count) continue;
            float value = values[i];
#pragma unroll
            for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
            if (lane == 0) warps[thread / 32][i] = value;
        }
        __syncthreads();
        for (int job = thread; job < count * kBlocks; job += kThreads) {
            const int i = job / kBlocks;
            float total = 0;
#pragma unroll
            for (int warp = 0; warp < kWarps; ++warp) total += warps[warp][i];
            store(&parts[blockIdx.x][i], job % kBlocks, total);
        }
    }

    // The same order of addition in every block, so all blocks have the same bits.
    __device__ void finish(int count) {
        if (threadIdx.x < count) {
            float total = 0;
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) total += parts[block][threadIdx.x];
            all[threadIdx.x] = total;
        }
        __syncthreads();
    }
};

}  // namespace cluster
