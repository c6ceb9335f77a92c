// A thread of a GPU as a fiber of one CPU thread: what cuda_on_cpu.py lets CUDA C++ be compiled against.
//
// Fibers run in turn until they wait for one another (a barrier, the lanes of a warp, a copy, another block). One order of
// many, sequentially consistent: it shows what is computed, not what a weaker memory or a race may do to it.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>
#include <algorithm>
#include <ucontext.h>
#include <sys/mman.h>
#define __device__
#define __global__
#define __forceinline__ inline
using std::min; using std::max;
struct float2 { float x, y; }; struct float4 { float x, y, z, w; }; struct uint4 { uint32_t x, y, z, w; };
static inline float2 make_float2(float a, float b) { return {a, b}; }
static inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
static inline uint4 make_uint4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return {a, b, c, d}; }
static inline float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t __float_as_uint(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float __int_as_float(uint32_t u) { return __uint_as_float(u); }
struct __nv_bfloat16 { uint16_t bits; }; struct __nv_bfloat162 { __nv_bfloat16 x, y; };
static inline float __bfloat162float(__nv_bfloat16 b) { return __uint_as_float(uint32_t(b.bits) << 16); }
static inline __nv_bfloat16 __float2bfloat16(float f) {
    uint32_t u = __float_as_uint(f);
    if (f != f) return {0x7fff};
    return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__float2bfloat16(a), __float2bfloat16(b)}; }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
struct Bar { int count = 0; long gen = 0; };
struct Mbar { int expected, pending; long tx; long phase; };
struct Warp { Bar sync; uint32_t words[2][32][6]; };
struct Block { unsigned char* smem; Bar bars[16]; std::vector<Warp> warps; std::map<uint32_t, Mbar> mbars; };
struct Dim { unsigned x; };
struct Fiber { ucontext_t ctx; Dim tid, bid; Block* block; bool done; };
static Fiber* cur; static ucontext_t main_ctx;
#define threadIdx (cur->tid)
#define blockIdx (cur->bid)
static inline void yield_() { Fiber* me = cur; swapcontext(&me->ctx, &main_ctx); }
static inline void rendezvous(Bar& bar, int count) {
    long gen = bar.gen;
    if (++bar.count == count) { bar.count = 0; ++bar.gen; return; }
    while (bar.gen == gen) yield_();
}
static inline void emu_bar(int id, int count) { rendezvous(cur->block->bars[id], count); }
static inline void emu_bar_arrive(int id, int count) { Bar& bar = cur->block->bars[id]; if (++bar.count == count) { bar.count = 0; ++bar.gen; } }
static inline void __syncthreads() { emu_bar(0, THREADS); }
static inline Warp& warp_() { return cur->block->warps[cur->tid.x >> 5]; }
static inline void __syncwarp(uint32_t mask = ~0u) { rendezvous(warp_().sync, __builtin_popcount(mask)); }
static inline float __shfl_xor_sync(uint32_t, float v, int x) {
    Warp& w = warp_(); long g = w.sync.gen & 1; int lane = cur->tid.x & 31;
    w.words[g][lane][0] = __float_as_uint(v); __syncwarp();
    return __uint_as_float(w.words[g][lane ^ x][0]);
}
static inline uint32_t __cvta_generic_to_shared(const void* p) { return (const unsigned char*)p - cur->block->smem; }
static inline float half_(uint32_t w, int e) { return __uint_as_float(e ? w & 0xffff0000u : w << 16); }
static inline void emu_mma(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    Warp& w = warp_(); long gen = w.sync.gen & 1; int lane = cur->tid.x & 31;
    uint32_t mine[6] = {a0, a1, a2, a3, b0, b1}; memcpy(w.words[gen][lane], mine, 24); __syncwarp();
    int g = lane >> 2, q = lane & 3;
    float* d[4] = {&d0, &d1, &d2, &d3};
    for (int o = 0; o < 4; ++o) {
        int up = o >> 1, n = 2 * q + (o & 1); float sum = 0;
        for (int qq = 0; qq < 4; ++qq) {
            const uint32_t* A = w.words[gen][g * 4 + qq]; const uint32_t* B = w.words[gen][n * 4 + qq];
            for (int e = 0; e < 2; ++e) sum += half_(A[up], e) * half_(B[4], e) + half_(A[2 + up], e) * half_(B[5], e);
        }
        *d[o] += sum;
    }
}
static inline Mbar* mbar(uint32_t address) { return &cur->block->mbars[address]; }
static inline void settle(Mbar* m) { if (m->pending == 0 && m->tx == 0) { ++m->phase; m->pending = m->expected; } }
static inline void emu_mbar_init(uint32_t a, int n) { *mbar(a) = {n, n, 0, 0}; }
static inline void emu_expect(uint32_t a, int bytes) { Mbar* m = mbar(a); m->tx += bytes; --m->pending; settle(m); }
static inline void emu_arrive(uint32_t a) { Mbar* m = mbar(a); --m->pending; if (m->pending < 0) { puts("too many arrivals"); abort(); } settle(m); }
static inline void emu_wait(uint32_t a, uint32_t parity) { Mbar* m = mbar(a); while ((m->phase & 1) == parity) yield_(); }
static inline void emu_bulk(uint32_t dst, const void* src, int bytes, uint32_t bar) {
    for (int i = 0; i < 3; ++i) yield_();
    memcpy(cur->block->smem + dst, src, bytes); Mbar* m = mbar(bar); m->tx -= bytes; settle(m);
}
static inline uint4 emu_lds(uint32_t a) { uint4 v; memcpy(&v, cur->block->smem + a, 16); return v; }
