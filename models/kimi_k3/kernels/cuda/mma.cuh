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

// Four 8 x 8 matrices of bf16 from shared memory, whose rows of 16 bytes the lanes address eight by eight: as they
// lie, lane (g, q) gets elements 2 q and 2 q + 1 of row g of each.
__device__ __forceinline__ uint4 load_matrices(uint32_t row) {
    uint4 found;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w) : "r"(row) : "memory");
    return found;
}

// The same transposed: elements g of rows 2 q and 2 q + 1.
__device__ __forceinline__ uint4 load_transposed(uint32_t row) {
    uint4 found;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w) : "r"(row) : "memory");
    return found;
}
