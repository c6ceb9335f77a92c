// Tensor-core products with the weight as the first operand: D[16 weight rows, 8 batch rows] += A[16, 16] B[16, 8].
#pragma once
#include <stdint.h>

// A fragment of 16 weight rows by 16 of k in bf16, one register quadruple a lane, and two registers of activations.
// One to eight batch rows cost the same.
__device__ __forceinline__ void mma_bf16(float (&sum)[4], const uint4& weight, uint32_t low, uint32_t high) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(weight.x), "r"(weight.y), "r"(weight.z), "r"(weight.w), "r"(low), "r"(high));
}
