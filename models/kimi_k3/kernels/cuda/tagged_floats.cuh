// Floats that blocks of a launch hand to each other without a barrier.
#pragma once
#include "block.cuh"

// Four bytes that say which launch they belong to: eight, written and read at once, so the value is its own flag.
__device__ __forceinline__ void send_bits(unsigned long long* cell, uint32_t bits, uint32_t epoch) {
    const unsigned long long word = static_cast<unsigned long long>(epoch) << 32 | bits;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(cell), "l"(word) : "memory");
}

__device__ __forceinline__ void send(unsigned long long* cell, float value, uint32_t epoch) {
    send_bits(cell, __float_as_uint(value), epoch);
}

// Waits for it; gives up after a tenth of a second and more, and says so in the health word.
__device__ __forceinline__ float receive(
    const unsigned long long* cell, uint32_t epoch, unsigned long long* health) {
    unsigned long long word;
    unsigned spin = 0;
    do {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(cell) : "memory");
    } while (word >> 32 != epoch && ++spin < 1u << 18);
    if (word >> 32 != epoch) *health = 1;
    return __uint_as_float(static_cast<uint32_t>(word));
}

// COUNT of them at once, whose loads wait together.
template <int COUNT>
__device__ __forceinline__ void receive_bits(
    const unsigned long long* const (&cells)[COUNT], uint32_t (&bits)[COUNT], uint32_t epoch, unsigned long long* health) {
    unsigned long long words[COUNT];
    bool here = false;
    for (unsigned spin = 0; !here && spin < 1u << 18; ++spin) {
        here = true;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(words[i]) : "l"(cells[i]) : "memory");
#pragma unroll
        for (int i = 0; i < COUNT; ++i) here = here && static_cast<uint32_t>(words[i] >> 32) == epoch;
    }
    if (!here) *health = 1;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) bits[i] = static_cast<uint32_t>(words[i]);
}

template <int COUNT>
__device__ __forceinline__ void receive_all(
    const unsigned long long* const (&cells)[COUNT], float (&values)[COUNT], uint32_t epoch, unsigned long long* health) {
    uint32_t bits[COUNT];
    receive_bits(cells, bits, epoch, health);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] = __uint_as_float(bits[i]);
}

// Cells that lie behind one another: thread i of the consumers takes number i of each `kConsumers`. The first one is waited for
// alone: were all of them asked for until they are there, by every block, the L2 would serve nothing else.
template <int COUNT>
__device__ __forceinline__ void receive_row(
    const unsigned long long* cells, uint32_t (&bits)[COUNT], uint32_t epoch, unsigned long long* health) {
    const unsigned long long* from[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) from[i] = cells + threadIdx.x + i * kConsumers;
    receive(from[0], epoch, health);
    receive_bits(from, bits, epoch, health);
}
