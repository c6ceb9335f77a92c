// The consumer warps of a block: 16 of them, barriers among them, and sums over them in a fixed order.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

constexpr int kWarps = 16;
constexpr int kConsumers = 32 * kWarps;

__device__ __forceinline__ void sync_consumers() { asm volatile("bar.sync 1, 512;" ::: "memory"); }

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) value += __shfl_xor_sync(~0u, value, lane);
    return value;
}

// Replaces each value by its sum over the block. `scratch`: 16 * COUNT floats, free once the call returns and every
// consumer has passed another barrier.
template <int COUNT>
__device__ __forceinline__ void block_sums(float (&values)[COUNT], float* scratch) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float sum = warp_sum(values[i]);
        if ((threadIdx.x & 31) == 0) scratch[(threadIdx.x >> 5) * COUNT + i] = sum;
    }
    sync_consumers();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        values[i] = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) values[i] += scratch[warp * COUNT + i];
    }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// Eight bf16 of a 16-byte load.
__device__ __forceinline__ void unpack(const uint4& packed, float (&values)[8]) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ uint32_t pack_two(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ uint4 pack(const float (&values)[8]) {
    return make_uint4(pack_two(values[0], values[1]), pack_two(values[2], values[3]), pack_two(values[4], values[5]),
                      pack_two(values[6], values[7]));
}

// Eight floats that another block wrote: from the L2.
__device__ __forceinline__ void load_eight(const float* source, float (&values)[8]) {
    const float4 low = __ldcg(reinterpret_cast<const float4*>(source));
    const float4 high = __ldcg(reinterpret_cast<const float4*>(source) + 1);
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

// The same from shared memory.
__device__ __forceinline__ void load_eight_near(const float* source, float (&values)[8]) {
    const float4 low = reinterpret_cast<const float4*>(source)[0], high = reinterpret_cast<const float4*>(source)[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ __forceinline__ void store_eight(float* target, const float (&values)[8]) {
    reinterpret_cast<float4*>(target)[0] = make_float4(values[0], values[1], values[2], values[3]);
    reinterpret_cast<float4*>(target)[1] = make_float4(values[4], values[5], values[6], values[7]);
}

__device__ __forceinline__ void prefetch(const void* line) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}
