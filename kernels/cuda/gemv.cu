// Products of a few rows with a weight matrix in the file's layout: out[r][n] = sum_k x[r][k] w[n][k] (+ bias[n]), float32
// activations and sums, weights decoded to float32 in registers (weights.cuh).
//
// Grid (ceil(n / 16), ceil(rows / 4)), 256 threads: a warp has two outputs of up to four rows; gemv.cuh has the order of the sums.
//
// Bytes: n * row_bytes(cols) for every four rows (from the second-level cache after the first), and 4 cols rows of x per block
// of threads. Flops: 2 n cols rows. One row is bound by DRAM where decoding leaves time: float types; four-bit types need about
// 35 instructions for eight weights, as many as an H200 has issue slots for 4.5 bytes of 4.3 TB/s. Reads of x from the first-level
// cache bound several rows: 40 cycles for 64 multiply-adds of a warp, so at most 40 % of 67 TFLOP/s. Computed, not measured.
//
// Launch contract: no dynamic shared memory, no dependent launch; w aligned to 16 bytes, x too; cols a whole number of blocks.
// out points at the first output of this part in the first row, and out_stride elements on at that of the next.
#include "gemv.cuh"

using namespace gemv;

namespace {

// Rows of x where they lie.
template <int ROWS> struct Rows {
  const float* rows[ROWS];
  int cols;

  __device__ __forceinline__ void load(int row, int chunk, float (&to)[CHUNK]) const {
    elements::load_chunk(rows[row], chunk, cols, to);
  }
};

// Rows `first_row` to `first_row + ROWS - 1`; those from `rows` on are computed as the last one and not written.
template <class W, int ROWS>
__device__ __forceinline__ void outputs_of_rows(const float* x, const Byte* matrix, const float* bias, float* out, int first_row,
                                                int rows, int n, int cols, int out_stride) {
  const int first_output = (blockIdx.x * WARPS + threadIdx.x / 32) * OUTPUTS;
  if (first_output >= n) return;  // whole warps
  Rows<ROWS> of_x;
  of_x.cols = cols;
  const Byte* of_outputs[OUTPUTS];
#pragma unroll
  for (int row = 0; row < ROWS; row++) of_x.rows[row] = x + size_t(min(first_row + row, rows - 1)) * cols;
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) of_outputs[i] = matrix + size_t(min(first_output + i, n - 1)) * W::row_bytes(cols);

  float sums[ROWS][OUTPUTS];
  clear(sums);
  add_products<W>(of_x, of_outputs, 0, elements::divided_up(cols, CHUNK), cols, sums);
  add_up(sums);
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
__device__ __forceinline__ void product(const float* x, const Byte* matrix, const float* bias, float* out, int rows, int n,
                                        int cols, int out_stride) {
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
    product<W>(x, w, bias, out, rows, n, cols, out_stride);                                                             \
  }                                                                                                                     \
  EXPORT_KERNEL(gemv_##name)
FOR_EACH_WEIGHT_TYPE(GEMV)
