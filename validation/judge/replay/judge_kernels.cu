// The judge's own kernels: a keyed digest, noise, small changes and a delay. judge_kernels.ptx is made of this file, for
// compute_80, so that the driver of any card of this project can load it without a compiler on the machine:
//   nvcc -ptx -arch=compute_80 -o judge_kernels.ptx judge_kernels.cu      (or NVRTC)
// kernels.py holds the same arithmetic for a host.

typedef unsigned long long u64;

__device__ __forceinline__ u64 mixed(u64 x) {  // the finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection
    x ^= x >> 30; x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27; x *= 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

__device__ __forceinline__ u64 drawn(u64 key, u64 index) { return mixed(key + (index + 1) * 0x9E3779B97F4A7C15ull); }

// Adds the digest of `bytes` bytes at `data` (8-byte aligned), whose first word has number `first`, to sums[0..1].
extern "C" __global__ void judge_digest(const u64* data, u64 bytes, u64 first, u64 key0, u64 key1, u64* sums) {
    u64 words = (bytes + 7) / 8, low = 0, high = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) {
        u64 word = 0;
        if (i + 1 < words || bytes % 8 == 0) word = data[i];
        else for (u64 b = 8 * i; b < bytes; b++) word |= (u64)((const unsigned char*)data)[b] << (8 * (b - 8 * i));
        u64 t = mixed(word ^ drawn(key0, first + i));
        low += t;
        high += mixed(t + key1);
    }
    for (int lane = 16; lane; lane /= 2) {
        low += __shfl_down_sync(0xffffffffu, low, lane);
        high += __shfl_down_sync(0xffffffffu, high, lane);
    }
    if (threadIdx.x % 32 == 0) { atomicAdd(sums, low); atomicAdd(sums + 1, high); }
}

// Fills `bytes` bytes at `data` (8-byte aligned) with noise.
extern "C" __global__ void judge_noise(u64* data, u64 bytes, u64 seed) {
    u64 words = (bytes + 7) / 8;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) {
        u64 word = drawn(seed, i);
        if (i + 1 < words || bytes % 8 == 0) data[i] = word;
        else for (u64 b = 8 * i; b < bytes; b++) ((unsigned char*)data)[b] = (unsigned char)(word >> (8 * (b - 8 * i)));
    }
}

// Flips bits of `bytes` bytes at `data` (8-byte aligned) where `mask` has them set: inputs that never were before.
extern "C" __global__ void judge_freshen(u64* data, u64 bytes, u64 seed, u64 mask) {
    u64 words = (bytes + 7) / 8;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) {
        u64 flips = drawn(seed, i) & mask;
        if (i + 1 < words || bytes % 8 == 0) data[i] ^= flips;
        else for (u64 b = 8 * i; b < bytes; b++) ((unsigned char*)data)[b] ^= (unsigned char)(flips >> (8 * (b - 8 * i)));
    }
}

// Keeps its stream busy for `nanoseconds`. One thread.
extern "C" __global__ void judge_delay(u64 nanoseconds) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        __nanosleep(200);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
