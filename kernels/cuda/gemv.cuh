// What the products of a few rows have in common: the order of their sums, which depends on cols alone, so a row has the bits it
// has alone, and the same in every kernel.
//
// A warp has two outputs of up to four rows. Lane l takes chunks l, l + 32, ... of eight consecutive k, and of each chunk k
// ascending, one fused multiply-add each; then the lanes add up as a tree.
#pragma once
#include "softmax_common.cuh"
#include "weights.cuh"

namespace gemv {

constexpr int WARPS = 8, OUTPUTS = 2, MOST_ROWS = 4;

using weights::Byte;
using elements::CHUNK;

// Chunks whose weights one lane asks for at once, as many as registers allow without spilling: decoding blocks of 256 takes more of
// them, and of float32 two chunks are as many bytes as four of bfloat16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int MOST_AT_ONCE = 3;
#else
constexpr int MOST_AT_ONCE = 4;
#endif
template <class W, int ROWS> constexpr int CHUNKS_AT_ONCE = ROWS > 1 ? 1 : W::BLOCK == 256 ? MOST_AT_ONCE - 1 : MOST_AT_ONCE;
template <> constexpr int CHUNKS_AT_ONCE<weights::F32, 1> = 2;

// Adds the products of ROWS rows with two rows of the matrix over this lane's chunks from `first`, a multiple of 32, to `end - 1`.
// `x.load(row, chunk, to)` gives eight elements of a row, zeros beyond its end.
template <class W, class X, int ROWS>
__device__ __forceinline__ void add_products(const X& x, const Byte* const (&w)[OUTPUTS], int first, int end, int cols,
                                             float (&sums)[ROWS][OUTPUTS]) {
  [[maybe_unused]] constexpr int AT_ONCE = CHUNKS_AT_ONCE<W, ROWS>;
#pragma unroll(AT_ONCE)
  for (int chunk = first + threadIdx.x % 32; chunk < end; chunk += 32) {
    float of_w[OUTPUTS][CHUNK], of_x[CHUNK];
#pragma unroll
    for (int output = 0; output < OUTPUTS; output++) W::load(w[output], chunk, cols, of_w[output]);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      x.load(row, chunk, of_x);
#pragma unroll
      for (int i = 0; i < CHUNK; i++)
#pragma unroll
        for (int output = 0; output < OUTPUTS; output++)
          sums[row][output] = fmaf(of_x[i], of_w[output][i], sums[row][output]);
    }
  }
}

template <int ROWS> __device__ __forceinline__ void clear(float (&sums)[ROWS][OUTPUTS]) {
#pragma unroll
  for (int row = 0; row < ROWS; row++)
#pragma unroll
    for (int output = 0; output < OUTPUTS; output++) sums[row][output] = 0.0f;
}

// The sums of all lanes, in every lane.
template <int ROWS> __device__ __forceinline__ void add_up(float (&sums)[ROWS][OUTPUTS]) {
#pragma unroll
  for (int row = 0; row < ROWS; row++)
#pragma unroll
    for (int output = 0; output < OUTPUTS; output++) sums[row][output] = softmax::warp_sum(sums[row][output]);
}

}  // namespace gemv
