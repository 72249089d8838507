// RMS normalisation: y_i = x_i * scale * w_i with scale = 1 / sqrt(mean(x^2) + eps); of rows, and of the query and key heads of
// fused rows (qk_norm), in place.
//
// | kernel       | grid                                 | threads | bytes of a row     | flops of an element |
// |--------------|--------------------------------------|---------|--------------------|---------------------|
// | rms_norm     | rows                                 | 256     | 12 cols + w        | 4                   |
// | qk_norm      | rows, ceil((heads + kv_heads) / 4)   | 128     | 12 (heads + kv_heads) head_dim + w | 4   |
//
// Order of the squares' sum: thread (lane) t takes elements t, t + 256 (32), ... by fused multiply-adds, then a tree over the
// lanes of each warp, then the same tree over the warps. It depends on cols alone.
// A row is some KB that the kernel before left in the second-level cache: the launch bounds them (2 us), and above some
// thousand rows the cache's bandwidth.
//
// Launch contract of all: no dynamic shared memory, no dependent launch; cols, head_dim >= 1. x and out may be the same memory.
#include "softmax_common.cuh"
#include "step.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

// 1 / sqrt(mean + eps).
__device__ __forceinline__ float inverse_root(float sum, int len, float eps) { return 1.0f / sqrtf(sum / float(len) + eps); }

// The sum over a block's threads, in all of them. `of_warps` has a place per warp, used for this alone.
__device__ __forceinline__ float block_sum(float x, float* of_warps) {
  const int lane = threadIdx.x % 32;
  x = softmax::warp_sum(x);
  if (lane == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  return softmax::warp_sum(lane < WARPS ? of_warps[lane] : 0.0f);
}

}  // namespace

// x, out [rows, cols]; weight [cols].
extern "C" __global__ void __launch_bounds__(256) rms_norm(const float* x, const float* weight, float* out, int cols, float eps) {
  SHARED(float, of_warps, WARPS);
  x += size_t(blockIdx.x) * cols;
  out += size_t(blockIdx.x) * cols;
  float sum = 0.0f;
#pragma unroll 4
  for (int i = threadIdx.x; i < cols; i += THREADS) sum = fmaf(x[i], x[i], sum);
  const float scale = inverse_root(block_sum(sum, of_warps), cols, eps);
#pragma unroll 4
  for (int i = threadIdx.x; i < cols; i += THREADS) out[i] = x[i] * scale * weight[i];
}
EXPORT_KERNEL(rms_norm)

// A warp per head; qkv [rows, (num_heads + 2 num_kv_heads) head_dim], weights [head_dim].
extern "C" __global__ void __launch_bounds__(128)
    qk_norm(float* qkv, const float* q_weight, const float* k_weight, int num_heads, int num_kv_heads, int head_dim, float eps) {
  const int head = blockIdx.y * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= num_heads + num_kv_heads) return;  // whole warps
  float* const x = Heads{num_heads, num_kv_heads, head_dim}.of(qkv, blockIdx.x, head);
  const float* const weight = head < num_heads ? q_weight : k_weight;
  float sum = 0.0f;
#pragma unroll 4
  for (int i = lane; i < head_dim; i += 32) sum = fmaf(x[i], x[i], sum);
  const float scale = inverse_root(softmax::warp_sum(sum), head_dim, eps);
#pragma unroll 4
  for (int i = lane; i < head_dim; i += 32) x[i] = x[i] * scale * weight[i];
}
EXPORT_KERNEL(qk_norm)
