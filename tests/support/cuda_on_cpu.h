// A thread of a GPU as a fiber of one CPU thread: what cuda_on_cpu.py lets CUDA C++ be compiled against.
//
// Fibers run in turn until they wait for one another (a barrier, the lanes of a warp, a copy, another block). One order
// of many, sequentially consistent: it shows what is computed, not what a weaker memory or a race may do to it.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
using std::max;
using std::min;

// Types and conversions

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint4 { uint32_t x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

static inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline float __int_as_float(uint32_t bits) { return __uint_as_float(bits); }
static inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
static inline float __bfloat162float(__nv_bfloat16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }
static inline __nv_bfloat16 __float2bfloat16(float value) {
    const uint32_t bits = __float_as_uint(value);
    if (value != value) return {0x7fff};
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16(x), __float2bfloat16(y)};
}
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }

template <class T> static inline T __ldg(const T* from) { return *from; }
template <class T> static inline T __ldcg(const T* from) { return *from; }
template <class T> static inline T __ldcs(const T* from) { return *from; }
template <class T> static inline void __stcs(T* to, T value) { *to = value; }

// Threads

struct Bar { int count = 0; long generation = 0; };
struct Mbar { int expected, pending; long bytes, phase; };
struct Warp { Bar sync; uint32_t words[2][32][6]; };
struct Block {
    unsigned char* smem;
    Bar bars[16];
    std::vector<Warp> warps;
    std::map<uint32_t, Mbar> mbars;
};
struct Index { unsigned x, y; };
struct Fiber { ucontext_t ctx; Index tid, bid; Block* block; bool done; };

static Fiber* cur;
static ucontext_t main_ctx;
#define threadIdx (cur->tid)
#define blockIdx (cur->bid)

static inline void yield_() { swapcontext(&cur->ctx, &main_ctx); }

static inline bool arrived(Bar& bar, int count) {
    if (++bar.count < count) return false;
    bar.count = 0;
    ++bar.generation;
    return true;
}
static inline void rendezvous(Bar& bar, int count) {
    const long generation = bar.generation;
    if (!arrived(bar, count))
        while (bar.generation == generation) yield_();
}
static inline void emu_bar(int id, int count) { rendezvous(cur->block->bars[id], count); }
static inline void emu_bar_arrive(int id, int count) { arrived(cur->block->bars[id], count); }
static inline void __syncthreads() { emu_bar(0, THREADS); }

static inline Warp& own_warp() { return cur->block->warps[cur->tid.x >> 5]; }
static inline void __syncwarp(uint32_t mask = ~0u) { rendezvous(own_warp().sync, __builtin_popcount(mask)); }

// Lanes leave words and meet; what they left is theirs to read until they meet once more.
static inline float __shfl_xor_sync(uint32_t, float value, int mask) {
    Warp& warp = own_warp();
    const long turn = warp.sync.generation & 1, lane = cur->tid.x & 31;
    warp.words[turn][lane][0] = __float_as_uint(value);
    __syncwarp();
    return __uint_as_float(warp.words[turn][lane ^ mask][0]);
}

static inline float element(uint32_t pair, int upper) {
    return __uint_as_float(upper ? pair & 0xffff0000u : pair << 16);
}

// m16n8k16: lane 4 g + q holds A rows g, g + 8 (registers 0 and 2, 1 and 3) and B column g, each at k 2 q and 2 q + 8.
static inline void emu_mma(
    float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1) {
    Warp& warp = own_warp();
    const int turn = warp.sync.generation & 1, lane = cur->tid.x & 31, row = lane >> 2, column = 2 * (lane & 3);
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(warp.words[turn][lane], mine, sizeof mine);
    __syncwarp();
    float* const sums[4] = {&d0, &d1, &d2, &d3};
    for (int cell = 0; cell < 4; ++cell) {
        const int lower = cell >> 1;
        float sum = 0;
        for (int q = 0; q < 4; ++q) {
            const uint32_t* a = warp.words[turn][4 * row + q];
            const uint32_t* b = warp.words[turn][4 * (column + (cell & 1)) + q];
            for (int half = 0; half < 2; ++half)
                for (int upper = 0; upper < 2; ++upper)
                    sum += element(a[2 * half + lower], upper) * element(b[4 + half], upper);
        }
        *sums[cell] += sum;
    }
}

// Shared memory and copies into it

static inline uint32_t __cvta_generic_to_shared(const void* pointer) {
    return static_cast<const unsigned char*>(pointer) - cur->block->smem;
}
static inline void emu_lds(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t address) {
    uint32_t words[4];
    memcpy(words, cur->block->smem + address, 16);
    x = words[0], y = words[1], z = words[2], w = words[3];
}

static inline Mbar& mbar(uint32_t address) { return cur->block->mbars[address]; }
static inline void settle(Mbar& bar) {
    if (bar.pending < 0) abort();
    if (bar.pending || bar.bytes) return;
    ++bar.phase;
    bar.pending = bar.expected;
}
static inline void emu_mbar_init(uint32_t address, int count) { mbar(address) = {count, count, 0, 0}; }
static inline void emu_arrive(uint32_t address) {
    --mbar(address).pending;
    settle(mbar(address));
}
static inline void emu_expect(uint32_t address, int bytes) {
    mbar(address).bytes += bytes;
    emu_arrive(address);
}
static inline void emu_wait(uint32_t address, uint32_t parity) {
    while ((mbar(address).phase & 1) == parity) yield_();
}
static inline void emu_bulk(uint32_t to, const void* from, int bytes, uint32_t address) {
    for (int turns = 0; turns < 3; ++turns) yield_();
    memcpy(cur->block->smem + to, from, bytes);
    mbar(address).bytes -= bytes;
    settle(mbar(address));
}
