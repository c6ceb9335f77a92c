// MXFP4 weights as the first operand of mma.m16n8k16, bfloat16 activations as the second, float32 sums.
//
// A chunk is 16 rows x 64 columns: 16 bytes of a lane are its registers of four fragments. With g = lane / 4 and
// q = lane % 4, fragment 2 a + s holds, of rows g and g + 8, columns 32 a + 8 q + 4 s + {0, 1, 2, 3} of the chunk:
// columns are permuted within a scale group, so that a lane's activations for two fragments are 16 bytes as well.
//
// E2M1 becomes bfloat16 by moving bits: sign to bit 15, exponent and mantissa to bits 8 to 6, which reads as the value
// times 2^-126, subnormal included. Activations therefore come in times 2^96 (exact below 2^31), and as scale bytes are
// kept one higher than E8M0's (a float's exponent field has no 2^-127), sums leave times 2^29: WEIGHT_UNIT.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

#define ACTIVATION_UNIT 0x1p96f
#define WEIGHT_UNIT 0x1p29f

__device__ __forceinline__ u16 to_bf16(float value) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Two bfloat16 times 2^96, exactly.
__device__ __forceinline__ u32 raised(u32 pair) {
  u32 result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(0x6F806F80u));
  return result;
}

__device__ __forceinline__ uint4 raised(uint4 x) {
  return make_uint4(raised(x.x), raised(x.y), raised(x.z), raised(x.w));
}

// The four registers of the first operand: rows g, g + 8 of the lane's first two columns, then of the other two. Words
// are stored so that each is one mask of at most two shifted words: nine operations, where eight elements taken apart
// field by field need eleven.
__device__ __forceinline__ void unpack(u32 word, u32 (&a)[4]) {
  a[0] = word & 0x81C081C0u;
  a[1] = (word << 3) & 0x81C081C0u;
  a[2] = ((word << 1) ^ (word << 6)) & 0x81C081C0u;
  a[3] = ((word << 2) ^ (word >> 3)) & 0x81C081C0u;
}

// sum += a 16 x 16 fragment times 16 x 8 activations.
__device__ __forceinline__ void mma(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sum += 16 rows of COUNT chunks in shared memory (fragments, then a word of four scale bytes for each chunk and g: rows
// g, g + 8 of its first 32 columns, then of its last) times the activations of eight tokens: x[c][a] are this lane's 16
// bytes for group a of chunk c, of token g. Lane (g, q) holds rows g (first two sums) and g + 8 of tokens 2 q and 2 q + 1.
template <int COUNT>
__device__ __forceinline__ void multiply(const u32* stage, const uint4 (&x)[COUNT][2], float (&sum)[4]) {
  const int lane = threadIdx.x & 31;
  const u32* scales = stage + COUNT * 128 + (lane >> 2);
#pragma unroll
  for (int c = 0; c < COUNT; c++) {
    const uint4 words = *(const uint4*)(stage + c * 128 + lane * 4);
    const u32 bytes = scales[c * 8];
#pragma unroll
    for (int a = 0; a < 2; a++) {
      u32 first[4], second[4];
      unpack(a ? words.z : words.x, first);
      unpack(a ? words.w : words.y, second);
      float part[4] = {0, 0, 0, 0};
      mma(part, first, x[c][a].x, x[c][a].y);
      mma(part, second, x[c][a].z, x[c][a].w);
      // A scale byte is a float's exponent field.
      const float low = __uint_as_float((a ? bytes << 7 : bytes << 23) & 0x7F800000u);
      const float high = __uint_as_float((a ? bytes >> 1 : bytes << 15) & 0x7F800000u);
      sum[0] = fmaf(part[0], low, sum[0]);
      sum[1] = fmaf(part[1], low, sum[1]);
      sum[2] = fmaf(part[2], high, sum[2]);
      sum[3] = fmaf(part[3], high, sum[3]);
    }
  }
}
