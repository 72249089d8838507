// Scales of RMS norms, 1 / sqrt(mean(x^2) + eps), to the same bits in every kernel that needs one.
//
// Order of the squares' sum: thread (lane) t takes elements t, t + 256 (32), ... by fused multiply-adds, then a tree over the
// lanes of each warp, then the same tree over the warps. It depends on the number of elements alone.
#pragma once
#include "softmax_common.cuh"

namespace rms {

// Of the blocks that norm rows.
constexpr int THREADS = 256, WARPS = THREADS / 32;

// 1 / sqrt(mean + eps).
__device__ __forceinline__ float inverse_root(float sum, int len, float eps) { return 1.0f / sqrtf(sum / float(len) + eps); }

// The sum of what a block's warps left in `of_warps`, behind a barrier; a whole warp calls it.
__device__ __forceinline__ float sum_of_warps(const float* of_warps) {
  const int lane = threadIdx.x % 32;
  return softmax::warp_sum(lane < WARPS ? of_warps[lane] : 0.0f);
}

// Leaves the sum of a warp in its place of `of_warps`.
__device__ __forceinline__ void leave_warp_sum(float x, float* of_warps) {
  x = softmax::warp_sum(x);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
}

// The sum over a block's threads, in all of them. `of_warps` has a place per warp, used for this alone.
__device__ __forceinline__ float block_sum(float x, float* of_warps) {
  leave_warp_sum(x, of_warps);
  __syncthreads();
  return sum_of_warps(of_warps);
}

// This thread's part of the squares of some rows.
template <int ROWS>
__device__ __forceinline__ void squares_of_thread(const float* const (&x)[ROWS], int cols, float (&sums)[ROWS]) {
#pragma unroll
  for (int row = 0; row < ROWS; row++) sums[row] = 0.0f;
#pragma unroll(ROWS == 1 ? 8 : 2)
  for (int i = threadIdx.x; i < cols; i += THREADS)
#pragma unroll
    for (int row = 0; row < ROWS; row++) sums[row] = fmaf(x[row][i], x[row][i], sums[row]);
}

// The scale of a head; a whole warp calls it.
__device__ __forceinline__ float scale_of_head(const float* x, int head_dim, float eps) {
  float sum = 0.0f;
#pragma unroll 4
  for (int i = threadIdx.x % 32; i < head_dim; i += 32) sum = fmaf(x[i], x[i], sum);
  return inverse_root(softmax::warp_sum(sum), head_dim, eps);
}

}  // namespace rms
