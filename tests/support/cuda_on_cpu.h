// A thread of a GPU as a fiber of one CPU thread: what cuda_on_cpu.py lets CUDA C++ be compiled against.
//
// Fibers run in turn until they wait for one another (a barrier, the lanes of a warp, a copy, another block). One order
// of many, sequentially consistent: it shows what is computed, not what a weaker memory or a race may do to it.
#pragma once
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

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
struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
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
static inline uint32_t emu_multiply_two(uint32_t one, uint32_t other) {
    const uint32_t low = __float2bfloat16(__uint_as_float(one << 16) * __uint_as_float(other << 16)).bits;
    const uint32_t high =
        __float2bfloat16(__uint_as_float(one & 0xffff0000u) * __uint_as_float(other & 0xffff0000u)).bits;
    return high << 16 | low;
}

template <class T> static inline T __ldg(const T* from) { return *from; }
template <class T> static inline T __ldcg(const T* from) { return *from; }
template <class T> static inline T __ldcs(const T* from) { return *from; }
template <class T> static inline void __stcs(T* to, T value) { *to = value; }

// Threads

struct Bar { int count = 0; long generation = 0; };
struct Mbar { int expected, pending; long bytes, phase; };
// What lanes leave for each other, in two turns; `sums`: of an MMA, by the lane that completed it.
struct Warp { Bar sync; uint32_t words[2][32][6]; float sums[2][16][8]; };
struct Block {
    unsigned char* smem;
    Bar bars[16];
    std::vector<Warp> warps;
    std::map<uint32_t, Mbar> mbars;
    std::map<int, std::vector<char>> statics;
};
struct Index { unsigned x, y; };
static Index gridDim;
static const Index blockDim = {THREADS, 1};

#if defined(__x86_64__)
// What a call keeps, kept. (swapcontext also keeps the signal mask, which takes two calls of the kernel.)
struct Context { void* stack; };
extern "C" void emu_switch(Context* from, const Context* to) __attribute__((visibility("hidden")));
asm(R"(
.text
.hidden emu_switch
.globl emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch, .-emu_switch
)");
static inline void emu_start(Context& context, char* stack, size_t size, void (*entry)()) {
    void** top = reinterpret_cast<void**>(stack + size) - 2;  // as if called: 8 bytes off a multiple of 16
    top[0] = reinterpret_cast<void*>(entry), top[1] = nullptr;
    memset(top - 6, 0, 6 * sizeof(void*));
    context.stack = top - 6;
}
#else
struct Context { ucontext_t kept; };
static inline void emu_switch(Context* from, const Context* to) { swapcontext(&from->kept, &to->kept); }
static inline void emu_start(Context& context, char* stack, size_t size, void (*entry)()) {
    getcontext(&context.kept);
    context.kept.uc_stack.ss_sp = stack, context.kept.uc_stack.ss_size = size, context.kept.uc_link = 0;
    makecontext(&context.kept, entry, 0);
}
#endif

// `seen`, unless it is null: what the fiber waits for to change from `old`.
struct Fiber { Context context; Index tid, bid; Block* block; const long* seen; long old; bool spins, done; };

static Fiber* cur;
static Context main_context;
#define threadIdx (cur->tid)
#define blockIdx (cur->bid)

static inline void leave() { emu_switch(&cur->context, &main_context); }
// Somebody else's turn: for a loop that looks again.
static inline void yield_() {
    cur->spins = true;
    leave();
}
static inline void wait_change(const long& value, long old) {
    if (value != old) return;
    cur->seen = &value, cur->old = old;
    leave();
}
static inline void finish() {
    cur->done = true;
    leave();
}

// Whether the launch in front has ended, for which griddepcontrol.wait waits.
static long predecessor_ended = 1;
static inline void emu_wait_for_predecessor() { wait_change(predecessor_ended, 0); }

// Runs fibers, each to its next wait, and those of a warp as long as one of them gets on. Returns how many are left when
// none does, or after so many rounds of looking again.
static inline size_t run_fibers(std::vector<Fiber>& fibers, bool backwards, long rounds) {
    const size_t count = fibers.size(), warps = (count + 31) / 32;
    size_t left = 0;
    for (const Fiber& fiber : fibers) left += !fiber.done;
    for (bool any = true; left && any && rounds; --rounds) {
        any = false;
        for (size_t warp = 0; warp < warps; ++warp)
            for (bool on = true; on;) {
                on = false;
                for (size_t lane = 0; lane < 32 && warp * 32 + lane < count; ++lane) {
                    const size_t i = warp * 32 + lane;
                    Fiber& f = fibers[backwards ? count - 1 - i : i];
                    if (f.done || (f.seen && *f.seen == f.old)) continue;
                    f.seen = nullptr, f.spins = false;
                    cur = &f;
                    emu_switch(&main_context, &f.context);
                    any = true, on |= !f.spins;
                    left -= f.done;
                }
            }
    }
    return left;
}

// The stacks of `fibers`, each of which starts at `entry`; for release_stacks.
static const size_t kStack = 32768;
static inline char* start_fibers(std::vector<Fiber>& fibers, void (*entry)()) {
    char* stacks = (char*)mmap(
        0, kStack * fibers.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t i = 0; i < fibers.size(); ++i) {
        fibers[i].seen = nullptr, fibers[i].done = false;
        emu_start(fibers[i].context, stacks + kStack * i, kStack, entry);
    }
    return stacks;
}
static inline void release_stacks(char* stacks, size_t fibers) { munmap(stacks, kStack * fibers); }

static inline bool arrived(Bar& bar, int count) {
    if (++bar.count < count) return false;
    bar.count = 0;
    ++bar.generation;
    return true;
}
static inline void rendezvous(Bar& bar, int count) {
    const long generation = bar.generation;
    if (!arrived(bar, count)) wait_change(bar.generation, generation);
}
static inline void emu_bar(int id, int count) { rendezvous(cur->block->bars[id], count); }
static inline void emu_bar_arrive(int id, int count) { arrived(cur->block->bars[id], count); }
static inline void __syncthreads() { emu_bar(0, THREADS); }

static inline Warp& own_warp() { return cur->block->warps[cur->tid.x >> 5]; }
static inline void __syncwarp(uint32_t mask = ~0u) { rendezvous(own_warp().sync, __builtin_popcount(mask)); }

// Lanes leave words and meet; what they left is theirs to read until they meet once more.
template <class T> static inline T emu_from_lane(T value, int source) {
    static_assert(sizeof(T) <= 8, "two words");
    Warp& warp = own_warp();
    const long turn = warp.sync.generation & 1, lane = cur->tid.x & 31;
    memcpy(warp.words[turn][lane], &value, sizeof value);
    __syncwarp();
    memcpy(&value, warp.words[turn][source], sizeof value);
    return value;
}
template <class T> static inline T __shfl_xor_sync(uint32_t, T value, int mask) {
    return emu_from_lane(value, (cur->tid.x & 31) ^ mask);
}
template <class T> static inline T __shfl_up_sync(uint32_t, T value, int by) {
    const int lane = cur->tid.x & 31;
    return emu_from_lane(value, lane < by ? lane : lane - by);
}
template <class T> static inline T __shfl_sync(uint32_t, T value, int lane) { return emu_from_lane(value, lane & 31); }
static inline uint32_t __ballot_sync(uint32_t, bool on) {
    Warp& warp = own_warp();
    const long turn = warp.sync.generation & 1;
    warp.words[turn][cur->tid.x & 31][0] = on;
    __syncwarp();
    uint32_t found = 0;
    for (int lane = 0; lane < 32; ++lane) found |= uint32_t(warp.words[turn][lane][0] != 0) << lane;
    return found;
}
static inline uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
    for (int distance = 16; distance; distance /= 2) value = max(value, __shfl_xor_sync(~0u, value, distance));
    return value;
}
static inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
static inline int __ffs(uint32_t bits) { return __builtin_ffs(bits); }
template <class T> static inline T atomicAdd(T* to, T value) {
    const T old = *to;
    *to += value;
    return old;
}
template <class T> static inline T atomicExch(T* to, T value) {
    const T old = *to;
    *to = value;
    return old;
}

static inline float element(uint32_t pair, int upper) {
    return __uint_as_float(upper ? pair & 0xffff0000u : pair << 16);
}

// m16n8k16: lane 4 g + q holds A rows g, g + 8 (registers 0 and 2, 1 and 3) and B column g, each at k 2 q and 2 q + 8.
static inline void multiply(const uint32_t (&words)[32][6], float (&sums)[16][8]) {
    float a[16][16], b[16][8];  // [row][k], [k][column]
    for (int g = 0; g < 8; ++g)
        for (int q = 0; q < 4; ++q)
            for (int half = 0; half < 2; ++half)
                for (int upper = 0; upper < 2; ++upper) {
                    const uint32_t* lane = words[4 * g + q];
                    const int k = 8 * half + 2 * q + upper;
                    a[g][k] = element(lane[2 * half], upper), a[g + 8][k] = element(lane[2 * half + 1], upper);
                    b[k][g] = element(lane[4 + half], upper);
                }
    for (int row = 0; row < 16; ++row) {
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column) sum[column] += a[row][k] * b[k][column];
        memcpy(sums[row], sum, sizeof sum);
    }
}
static inline void emu_mma(
    float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1) {
    Warp& warp = own_warp();
    const int turn = warp.sync.generation & 1, lane = cur->tid.x & 31, row = lane >> 2, column = 2 * (lane & 3);
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(warp.words[turn][lane], mine, sizeof mine);
    const long generation = warp.sync.generation;
    if (warp.sync.count == 31) multiply(warp.words[turn], warp.sums[turn]);
    if (!arrived(warp.sync, 32)) wait_change(warp.sync.generation, generation);
    d0 += warp.sums[turn][row][column], d1 += warp.sums[turn][row][column + 1];
    d2 += warp.sums[turn][row + 8][column], d3 += warp.sums[turn][row + 8][column + 1];
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
// Lane 8 m + r addresses row r of matrix m; lane 4 g + q gets elements 2 q and 2 q + 1 of row g, transposed of column g.
static inline void emu_ldmatrix(
    uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t address, bool transposed) {
    Warp& warp = own_warp();
    const int turn = warp.sync.generation & 1, lane = cur->tid.x & 31, g = lane >> 2, q = lane & 3;
    warp.words[turn][lane][0] = address;
    __syncwarp();
    uint32_t* const found[4] = {&x, &y, &z, &w};
    for (int matrix = 0; matrix < 4; ++matrix) {
        uint16_t pair[2];
        for (int i = 0; i < 2; ++i) {
            const int row = transposed ? 2 * q + i : g, column = transposed ? g : 2 * q + i;
            memcpy(pair + i, cur->block->smem + warp.words[turn][8 * matrix + row][0] + 2 * column, 2);
        }
        memcpy(found[matrix], pair, 4);
    }
}

template <class T, int NUMBER> static inline T& emu_shared() {
    std::vector<char>& memory = cur->block->statics[NUMBER];
    if (memory.empty()) memory.resize(sizeof(T));
    return *reinterpret_cast<T*>(memory.data());
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
    const Mbar& bar = mbar(address);
    while ((bar.phase & 1) == parity) wait_change(bar.phase, bar.phase);
}
static inline void emu_bulk(uint32_t to, const void* from, int bytes, uint32_t address) {
    for (int turns = 0; turns < 3; ++turns) yield_();
    memcpy(cur->block->smem + to, from, bytes);
    mbar(address).bytes -= bytes;
    settle(mbar(address));
}
