// The end of a mixture: sum over ranks, norm, this rank's rows of the latent up-projection, shared expert and residual.
//
// From the host: BLOCKS, LATENT, HIDDEN, COLUMNS (rows of the weight on this rank), RANKS, NORM_EPS. A block keeps eight rows of
// the weight in shared memory, brought there when the launch begins: half of an MMA's first operand, the other half is
// zero. Warps share k: each takes every 16th of the double steps of 32, of which a lane has eight in a row, weights and
// activations alike.
#pragma once

#include "mxfp4.cuh"
#include "weight_stream.cuh"

#define UP_ROWS 8
#define UP_WARPS 16
#define UP_BLOCKS (COLUMNS / UP_ROWS)
#define UP_BYTES (UP_ROWS * LATENT * 2)
#define UP_STEPS (LATENT / 32 / UP_WARPS)
static_assert(COLUMNS % UP_ROWS == 0 && LATENT % (32 * UP_WARPS) == 0, "blocks and steps are whole");
static_assert(LATENT / 8 <= 32 * UP_WARPS, "a thread has eight channels of a latent row");

struct UpTensors {
  const unsigned char* weight;  // [COLUMNS / 8, LATENT / 32, 8 rows, 4, 8] bf16
  const u16* norm;              // [LATENT] bf16
  const u16* routed;            // [RANKS, rows, LATENT] bf16, what every rank's experts sent
  const u16* shared;            // [RANKS, rows, COLUMNS] bf16, what every rank's shared expert sent for these columns
  const u16* residual;          // [rows, COLUMNS] bf16
  u16* stream;                  // [rows, COLUMNS] bf16
  u16* normed;                  // scratch [rows, LATENT] bf16
  int routed_stride, routed_row_stride, shared_stride, shared_row_stride, residual_stride;
};

struct UpShared {
  float sums[UP_WARPS];
  float parts[UP_WARPS][2][UP_ROWS][8];
  alignas(16) u16 row[LATENT];
};

__device__ __forceinline__ float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

// By the whole grid: WIDTH values of each row of each of SHARERS ranks on their way into the L2.
template <int SHARERS, int WIDTH>
__device__ __forceinline__ void prefetch_shares(const u16* shares, int rows, int stride, int row_stride) {
  constexpr u32 lines = WIDTH / 64, row_lines = SHARERS * lines;  // of 128 bytes
  const u32 all = rows * row_lines;
#pragma unroll 1
  for (u32 line = blockIdx.x * 32 * UP_WARPS + threadIdx.x; line < all; line += BLOCKS * 32 * UP_WARPS) {
    const u32 row = line / row_lines, rank = line / lines % SHARERS;
    const u16* at = shares + (size_t)rank * stride + (size_t)row * row_stride + line % lines * 64;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

// The normed row `row` of the batch, by all threads of a block: into `to` [LATENT], which they may read behind a barrier.
__device__ __forceinline__ void norm_row(const UpTensors& t, UpShared& s, int row, u16* to) {
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const bool has = thread < LATENT / 8;
  float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, weight[8], squares = 0;
  if (has) {
    uint4 shares[RANKS];
    const u16* source = t.routed + (size_t)row * t.routed_row_stride + thread * 8;
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) shares[rank] = __ldcg((const uint4*)(source + (size_t)rank * t.routed_stride));
    const uint4 own = __ldg((const uint4*)t.norm + thread);
    const u32 words[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
    for (int i = 0; i < 8; i++) weight[i] = from_bf16(words[i / 2] >> 16 * (i % 2));
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) {
      const u32 share[4] = {shares[rank].x, shares[rank].y, shares[rank].z, shares[rank].w};
#pragma unroll
      for (int i = 0; i < 8; i++) sum[i] += from_bf16(share[i / 2] >> 16 * (i % 2));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) squares = fmaf(sum[i], sum[i], squares);
  }
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) squares += __shfl_xor_sync(~0u, squares, offset);
  if (lane == 0) s.sums[warp] = squares;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < UP_WARPS; i++) total += s.sums[i];
  const float scale = 1.f / sqrtf(total / LATENT + NORM_EPS);
  if (has) {
    u32 packed[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      packed[i] = to_bf16(sum[2 * i] * scale * weight[2 * i]) | (u32)to_bf16(sum[2 * i + 1] * scale * weight[2 * i + 1]) << 16;
    *(uint4*)(to + thread * 8) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }
}

// What this lane multiplies of TILES times eight normed rows; zeros behind the last one.
template <int TILES>
__device__ __forceinline__ void load_rows(const u16* normed, int first, int rows, uint4 (&x)[UP_STEPS][TILES]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int i = 0; i < UP_STEPS; i++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const int row = first + tile * 8 + (lane >> 2);
      x[i][tile] = make_uint4(0, 0, 0, 0);
      if (row < rows) x[i][tile] = *(const uint4*)(normed + (size_t)row * LATENT + (i * UP_WARPS + warp) * 32 + (lane & 3) * 8);
    }
}

// Columns 8 block .. of the stream, for TILES (one or two) times eight rows at a time, from `weight` in shared memory and
// `normed` rows. The next rows are on their way while sums are put together.
template <int TILES>
__device__ __forceinline__ void up_rows(const UpTensors& t, UpShared& s, const unsigned char* weight, int block, int rows,
                                        const u16* normed) {
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, column = block * UP_ROWS + (thread >> 3) % UP_ROWS;
  uint4 x[UP_STEPS][TILES];
  load_rows<TILES>(normed, 0, rows, x);
#pragma unroll 1
  for (int first = 0; first < rows; first += 8 * TILES) {
    // Of the 64 results of a tile, what other ranks have sent and the residual: a thread each, on its way meanwhile.
    const int row = first + thread / 64 * 8 + (thread & 7);
    const bool has = thread < 64 * TILES && row < rows;
    u16 shares[RANKS], residual = 0;
    if (has) {
#pragma unroll
      for (int rank = 0; rank < RANKS; rank++)
        shares[rank] = t.shared[(size_t)rank * t.shared_stride + (size_t)row * t.shared_row_stride + column];
      residual = t.residual[(size_t)row * t.residual_stride + column];
    }
    float sum[TILES][4] = {};
#pragma unroll
    for (int i = 0; i < UP_STEPS; i++) {
      const uint4 words = *(const uint4*)(weight + ((i * UP_WARPS + warp) * 32 + lane) * 16);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        mma(sum[tile], {words.x, 0, words.y, 0}, x[i][tile].x, x[i][tile].y);
        mma(sum[tile], {words.z, 0, words.w, 0}, x[i][tile].z, x[i][tile].w);
      }
    }
    if (first + 8 * TILES < rows) load_rows<TILES>(normed, first + 8 * TILES, rows, x);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
      *(float2*)&s.parts[warp][tile][lane >> 2][(lane & 3) * 2] = make_float2(sum[tile][0], sum[tile][1]);
    __syncthreads();
    if (has) {
      float total = 0, others = 0;
#pragma unroll
      for (int i = 0; i < UP_WARPS; i++) total += s.parts[i][thread / 64][(thread >> 3) % UP_ROWS][thread & 7];
#pragma unroll
      for (int rank = 0; rank < RANKS; rank++) others += from_bf16(shares[rank]);
      t.stream[(size_t)row * COLUMNS + column] = to_bf16(total + others + from_bf16(residual));
    }
    __syncthreads();
  }
}
