// Products of a few rows with a weight matrix in the file's layout: out[r][n] = sum_k x[r][k] w[n][k] (+ bias[n]), float32
// activations and sums, weights decoded to float32 in registers (weights.cuh, which says what is left in that layout).
//
// Grid (ceil(n / 16), ceil(rows / 4)), 256 threads: a warp has two outputs of up to four rows. Lane l takes chunks l, l + 32, ...
// of eight consecutive k, and of each chunk k ascending, one fused multiply-add each; then the lanes add up as a tree. That
// order depends on cols alone: a row has the bits it has alone.
//
// Bytes: n * row_bytes(cols) for every four rows (from the second-level cache after the first), and 4 cols rows of x per block
// of threads. Flops: 2 n cols rows. One row is bound by DRAM where decoding leaves time: float types; q2_k and q3_k need
// 32 instructions for eight weights at least, where an H200 has issue slots for 20 or 27 while 2.6 or 3.4 bytes come at 4.3 TB/s.
// Reads of x from the first-level cache bound several rows: 40 cycles for 64 multiply-adds of a warp, so at most 40 % of 67 TFLOP/s.
// Computed, not measured.
//
// Launch contract: no dynamic shared memory, no dependent launch; w aligned to 16 bytes, x too; cols a whole number of blocks.
// out points at the first output of this part in the first row, and out_stride elements on at that of the next.
#include "softmax_common.cuh"
#include "weights.cuh"

namespace {

constexpr int WARPS = 8, OUTPUTS = 2, MOST_ROWS = 4;

using weights::Byte;
using elements::CHUNK;

// Products of ROWS rows of x, `x[i]` being row i, with two rows of the matrix; the sums in every lane.
template <class W, int ROWS>
__device__ __forceinline__ void products(const float* const (&x)[ROWS], const Byte* const (&w)[OUTPUTS], int cols,
                                         float (&sums)[ROWS][OUTPUTS]) {
#pragma unroll
  for (int row = 0; row < ROWS; row++)
#pragma unroll
    for (int output = 0; output < OUTPUTS; output++) sums[row][output] = 0.0f;

#pragma unroll(ROWS == 1 ? 4 : 1)
  for (int chunk = threadIdx.x % 32; chunk * CHUNK < cols; chunk += 32) {
    float of_w[OUTPUTS][CHUNK], of_x[CHUNK];
#pragma unroll
    for (int output = 0; output < OUTPUTS; output++) W::load(w[output], chunk, cols, of_w[output]);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      elements::load_chunk(x[row], chunk, cols, of_x);
#pragma unroll
      for (int i = 0; i < CHUNK; i++)
#pragma unroll
        for (int output = 0; output < OUTPUTS; output++)
          sums[row][output] = fmaf(of_x[i], of_w[output][i], sums[row][output]);
    }
  }
#pragma unroll
  for (int row = 0; row < ROWS; row++)
#pragma unroll
    for (int output = 0; output < OUTPUTS; output++) sums[row][output] = softmax::warp_sum(sums[row][output]);
}

// Rows `first_row` to `first_row + ROWS - 1`; those from `rows` on are computed as the last one and not written.
template <class W, int ROWS>
__device__ __forceinline__ void outputs_of_rows(const float* x, const Byte* matrix, const float* bias, float* out, int first_row,
                                                int rows, int n, int cols, int out_stride) {
  const int first_output = (blockIdx.x * WARPS + threadIdx.x / 32) * OUTPUTS;
  if (first_output >= n) return;  // whole warps
  const float* of_rows[ROWS];
  const Byte* of_outputs[OUTPUTS];
#pragma unroll
  for (int row = 0; row < ROWS; row++) of_rows[row] = x + size_t(min(first_row + row, rows - 1)) * cols;
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) of_outputs[i] = matrix + size_t(min(first_output + i, n - 1)) * W::row_bytes(cols);

  float sums[ROWS][OUTPUTS];
  products<W>(of_rows, of_outputs, cols, sums);
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int row = 0; row < ROWS; row++)
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
      const int output = first_output + i;
      if (first_row + row >= rows || output >= n) continue;
      out[size_t(first_row + row) * out_stride + output] = bias ? sums[row][i] + bias[output] : sums[row][i];
    }
}

template <class W>
__device__ __forceinline__ void gemv(const float* x, const Byte* matrix, const float* bias, float* out, int rows, int n, int cols,
                                     int out_stride) {
  const int first_row = blockIdx.y * MOST_ROWS;
  if (rows - first_row == 1)
    outputs_of_rows<W, 1>(x, matrix, bias, out, first_row, rows, n, cols, out_stride);
  else
    outputs_of_rows<W, MOST_ROWS>(x, matrix, bias, out, first_row, rows, n, cols, out_stride);
}

}  // namespace

// x [rows, cols]; w n rows; bias [n] or null; out as above.
#define GEMV(name, W)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(256)                                                                     \
      gemv_##name(const float* __restrict__ x, const unsigned char* __restrict__ w, const float* __restrict__ bias,     \
                  float* __restrict__ out, int rows, int n, int cols, int out_stride) {                                 \
    gemv<W>(x, w, bias, out, rows, n, cols, out_stride);                                                                \
  }                                                                                                                     \
  EXPORT_KERNEL(gemv_##name)
FOR_EACH_ROW_TYPE(GEMV)
