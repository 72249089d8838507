// RMS normalisation: y_i = x_i * scale * w_i with scale = 1 / sqrt(mean(x^2) + eps); of rows, and of the query and key heads of
// fused rows (qk_norm), in place.
//
// | kernel       | grid                                 | threads | bytes of a row     | flops of an element |
// |--------------|--------------------------------------|---------|--------------------|---------------------|
// | rms_norm     | rows                                 | 256     | 12 cols + w        | 4                   |
// | qk_norm      | rows, ceil((heads + kv_heads) / 4)   | 128     | 12 (heads + kv_heads) head_dim + w | 4   |
//
// rms.cuh has the order of the sums.
// A row is some KB that the kernel before left in the second-level cache: the launch bounds them (2 us), and above some
// thousand rows the cache's bandwidth.
//
// Launch contract of all: no dynamic shared memory, no dependent launch; cols, head_dim >= 1. x and out may be the same memory.
#include "rms.cuh"
#include "step.cuh"

using namespace rms;

// x, out [rows, cols]; weight [cols].
extern "C" __global__ void __launch_bounds__(256) rms_norm(const float* x, const float* weight, float* out, int cols, float eps) {
  SHARED(float, of_warps, WARPS);
  x += size_t(blockIdx.x) * cols;
  out += size_t(blockIdx.x) * cols;
  const float* const rows[] = {x};
  float sum[1];
  squares_of_thread(rows, cols, sum);
  const float scale = inverse_root(block_sum(sum[0], of_warps), cols, eps);
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
  const float scale = scale_of_head(x, head_dim, eps);
#pragma unroll 4
  for (int i = lane; i < head_dim; i += 32) x[i] = x[i] * scale * weight[i];
}
EXPORT_KERNEL(qk_norm)
