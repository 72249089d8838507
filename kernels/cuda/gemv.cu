// Products of a few rows with a weight matrix in the file's layout (weights.cuh says what is left in it), alone or joined with what
// comes before and after them in a layer; float32 activations and sums, weights decoded to float32 in registers:
//
//     x'[r][k] = x[r][k] scale[r] norm_weight[k], scale = 1 / sqrt(mean(x^2) + eps)        or x, without a norm's weight
//     sum[r][i] = sum_k x'[r][k] w[i][k] (+ bias[i])
//     out[r][i] = sum[r][i]                                 STORE     with a norm, the bits of rms_norm, then STORE without
//     out[r][i] += sum[r][i]                                ADD       the bits of that, then add
//     out[r][i] = silu(sum[r][i]) sum_k x'[r][k] up[i][k]   SILU_MUL  the bits of STORE with [w | up], then silu_mul
//
// So a layer at decode is five launches: q, k and v (norm, STORE), attention_decode.cu, the output of attention (ADD), gate and up (norm,
// SILU_MUL), down (ADD).
//
// Grid (ceil(n / 16), ceil(rows / 4)), and (ceil(n / 8), ...) under SILU_MUL; 256 threads. A warp has two outputs (SILU_MUL: gate
// and up of one) of up to four rows; gemv.cuh and rms.cuh have the orders of the sums, which depend on cols alone.
//
// Every block computes the scales of its rows and puts x' into shared memory, 6144 elements of one row or 1536 of four at a time:
// a norm costs two multiplications per block and element instead of per warp. The halves of chunks lie apart, so a warp's 16-byte
// reads meet no bank twice: 4 cycles each, where eight consecutive floats a lane take 8.
//
// Bytes: n * row_bytes(cols) for every four rows (from the second-level cache after the first), 4 cols rows of x per block of threads,
// twice with a norm, and out once more under ADD. Flops: 2 n cols rows, and 4 cols rows per block of threads for the norm: some 7 % of
// the instructions of a product of 4096 columns. One row is bound by DRAM where decoding leaves time: float types; q2_k and q3_k need
// 32 instructions for eight weights at least, where an H200 has issue slots for 20 or 27 while 2.6 or 3.4 bytes come at 4.3 TB/s. Of
// several rows, reads of shared memory are at most half of the issue slots of their multiply-adds. Computed, not measured.
//
// Before it waits for the kernel before it (ptx.cuh) it reads weights alone, which nothing writes while a model is loaded: the first
// 2 KB of each row of w and up, and norm_weight, are asked for into the second-level cache; the compiler may load of w, up,
// norm_weight and bias what it likes.
//
// Launch contract: no dynamic shared memory; may be launched with the attribute of programmatic stream serialization, and without.
// w, up, x and norm_weight are aligned to 16 bytes; cols is a whole number of blocks. n outputs; out points at the first of them in
// the first row, and out_stride elements on at that of the next. x and out never overlap: blocks read x while others write out. So a
// residual is read by products that write elsewhere, and written in place by those that read something else. bias is null under
// SILU_MUL, up under the others.
#include "gemv.cuh"
#include "rms.cuh"

using namespace gemv;

namespace {

// Blocks of threads that a multiprocessor holds at least; compute capability 12 spills at three.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int RESIDENT = 2;
#else
constexpr int RESIDENT = 3;
#endif

enum Epilogue { STORE = 0, ADD = 1, SILU_MUL = 2 };

struct Call {
  const float *x, *norm_weight;
  const Byte *w, *up;
  const float* bias;
  float* out;
  int rows, n, cols, out_stride;
  float eps;
  int epilogue;
};

// Some chunks of ROWS rows in shared memory: of each row, the first halves of all chunks, then the second halves.
template <int ROWS> struct Tile {
  static constexpr int COLS = 6144 / ROWS, CHUNKS = COLS / CHUNK;
  // Sixteen banks between the halves, so that a warp that writes chunks meets no bank twice either.
  static constexpr int HALF = COLS / 2 + 16, FLOATS = ROWS * 2 * HALF;

  float* at;
  int first;  // chunk

  // Of a row, half `half` of its chunks.
  __device__ __forceinline__ void store(int row, int half, float4 x) const {
    reinterpret_cast<float4*>(at + (row * 2 + half % 2) * HALF)[half / 2 - first] = x;
  }
  __device__ __forceinline__ void load(int row, int chunk, float (&to)[CHUNK]) const {
    const float4* const halves = reinterpret_cast<const float4*>(at + row * 2 * HALF) + (chunk - first);
    const float4 low = halves[0], high = halves[HALF / 4];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }
};

// Shared memory of a block.
struct Shared {
  float *tile, *of_warps, *scales;
};

constexpr int SHARED_FLOATS = Tile<MOST_ROWS>::FLOATS;
static_assert(Tile<1>::FLOATS <= SHARED_FLOATS, "one row has room where four have");

// Row `row` of the block's, the last one where there are fewer.
__device__ __forceinline__ const float* row_of(const Call& call, int row) {
  return call.x + size_t(min(int(blockIdx.y) * MOST_ROWS + row, call.rows - 1)) * call.cols;
}

// The scales of the block's rows, in shared memory, 1 without a norm; ends with a barrier. The whole block calls it.
template <int ROWS> __device__ __forceinline__ void find_scales(const Call& call, const Shared& shared) {
  const int warp = threadIdx.x / 32;
  if (call.norm_weight) {
    const float* rows[ROWS];
    float sums[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) rows[row] = row_of(call, row);
    rms::squares_of_thread(rows, call.cols, sums);
#pragma unroll
    for (int row = 0; row < ROWS; row++) rms::leave_warp_sum(sums[row], shared.of_warps + row * rms::WARPS);
    __syncthreads();
  }
  // A warp per row: then the divisions and roots of rows take as long as those of one.
  if (warp < ROWS) {
    float scale = 1.0f;
    if (call.norm_weight) scale = rms::inverse_root(rms::sum_of_warps(shared.of_warps + warp * rms::WARPS), call.cols, call.eps);
    if (threadIdx.x % 32 == 0) shared.scales[warp] = scale;
  }
  __syncthreads();
}

// Four elements of a row, `whole` if its length is a multiple of four; zeros beyond its end.
__device__ __forceinline__ float4 load_half(const float* row, int half, int len, bool whole) {
  if (whole) return reinterpret_cast<const float4*>(row)[half];
  const int at = 4 * half;
  return make_float4(at < len ? row[at] : 0.0f, at + 1 < len ? row[at + 1] : 0.0f, at + 2 < len ? row[at + 2] : 0.0f,
                     at + 3 < len ? row[at + 3] : 0.0f);
}

// Puts the chunks of a tile up to `end` into it. Multiplying by 1 where there is no norm changes no bit.
template <int ROWS>
__device__ __forceinline__ void fill(const Tile<ROWS>& tile, const Call& call, int end, const float* scales, bool whole) {
#pragma unroll(ROWS == 1 ? 4 : 1)
  for (int half = 2 * tile.first + threadIdx.x; half < 2 * end; half += rms::THREADS) {
    float4 weight = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    if (call.norm_weight) weight = load_half(call.norm_weight, half, call.cols, whole);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      const float4 x = load_half(row_of(call, row), half, call.cols, whole);
      const float by = scales[row];
      tile.store(row, half, make_float4(x.x * by * weight.x, x.y * by * weight.y, x.z * by * weight.z, x.w * by * weight.w));
    }
  }
}

__device__ __forceinline__ int first_output_of_warp(const Call& call) {
  return (blockIdx.x * WARPS + threadIdx.x / 32) * (call.epilogue == SILU_MUL ? 1 : OUTPUTS);
}

// The block's outputs of ROWS rows; rows that are not there are computed as the last one and not written.
template <class W, int ROWS>
__device__ __forceinline__ void outputs_of_rows(const Call& call, const Byte* const (&of_outputs)[OUTPUTS], const Shared& shared) {
  const bool gated = call.epilogue == SILU_MUL;
  const int of_warp = gated ? 1 : OUTPUTS, first_output = first_output_of_warp(call);
  find_scales<ROWS>(call, shared);
  float sums[ROWS][OUTPUTS];
  clear(sums);
  const int chunks = elements::divided_up(call.cols, CHUNK);
  for (Tile<ROWS> tile{shared.tile, 0}; tile.first < chunks; tile.first += tile.CHUNKS) {
    const int end = min(tile.first + tile.CHUNKS, chunks);
    if (tile.first > 0) __syncthreads();  // all have read the tile before
    if (W::BLOCK > 1 || call.cols % CHUNK == 0)
      fill(tile, call, end, shared.scales, true);
    else
      fill(tile, call, end, shared.scales, false);
    __syncthreads();
    add_products<W>(tile, of_outputs, tile.first, end, call.cols, sums);
  }

  // Lane 2 r + i writes output i of row r. What it adds to comes while the lanes add up.
  const int lane = threadIdx.x % 32, row = blockIdx.y * MOST_ROWS + lane / 2, output = first_output + lane % 2;
  const bool writes = lane < 2 * ROWS && row < call.rows && lane % 2 < of_warp && output < call.n;
  float* const to = call.out + size_t(row) * call.out_stride + output;
  const float before = writes && call.epilogue == ADD ? *to : 0.0f;
  add_up(sums);
  float sum[OUTPUTS];
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < OUTPUTS; j++)
      if (i == 0 || lane / 2 == i) sum[j] = sums[i][j];
  if (!writes) return;
  if (gated) {
    *to = elements::silu_mul(sum[0], sum[1]);
    return;
  }
  float value = lane % 2 ? sum[1] : sum[0];
  if (call.bias) value += call.bias[output];
  *to = call.epilogue == ADD ? before + value : value;
}

// Asks for what this warp and this block will read first and no kernel writes.
__device__ __forceinline__ void prefetch_weights(const Call& call, const Byte* const (&of_outputs)[OUTPUTS], size_t row_bytes) {
  constexpr int LINE = 128, FLOATS = LINE / sizeof(float), LINES = 32 / OUTPUTS;
  const int lane = threadIdx.x % 32;
  const size_t at = lane % LINES * LINE;
  if (at < row_bytes) ptx::prefetch((lane < LINES ? of_outputs[0] : of_outputs[1]) + at);
  if (!call.norm_weight) return;
#pragma unroll 1
  for (int col = threadIdx.x * FLOATS; col < call.cols; col += rms::THREADS * FLOATS) ptx::prefetch(call.norm_weight + col);
}

template <class W> __device__ __forceinline__ void product(const Call& call) {
  SHARED(float4, tile, SHARED_FLOATS / 4);
  SHARED(float, of_warps, MOST_ROWS * rms::WARPS);
  SHARED(float, scales, MOST_ROWS);
  const Shared shared{reinterpret_cast<float*>(tile), of_warps, scales};
  const bool gated = call.epilogue == SILU_MUL;
  const Byte* of_outputs[OUTPUTS];
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    const Byte* const matrix = gated && i == 1 ? call.up : call.w;
    const int output = min(first_output_of_warp(call) + (gated ? 0 : i), call.n - 1);
    of_outputs[i] = matrix + size_t(output) * W::row_bytes(call.cols);
  }
  prefetch_weights(call, of_outputs, W::row_bytes(call.cols));
  ptx::let_next_start();
  ptx::wait_for_previous();
  if (call.rows - int(blockIdx.y) * MOST_ROWS == 1)
    outputs_of_rows<W, 1>(call, of_outputs, shared);
  else
    outputs_of_rows<W, MOST_ROWS>(call, of_outputs, shared);
}

}  // namespace

// x [rows, cols]; norm_weight [cols] or null; w n rows; up n rows or null; bias [n] or null; out as above; epilogue 0 store, 1 add,
// 2 silu_mul.
#define GEMV(name, W)                                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, RESIDENT)                                                                 \
      gemv_##name(const float* x, const float* __restrict__ norm_weight, const unsigned char* __restrict__ w,           \
                        const unsigned char* __restrict__ up, const float* __restrict__ bias, float* out, int rows, int n,    \
                        int cols, int out_stride, float eps, int epilogue) {                                                  \
    product<W>(Call{x, norm_weight, w, up, bias, out, rows, n, cols, out_stride, eps, epilogue});                             \
  }                                                                                                                           \
  EXPORT_KERNEL(gemv_##name)
FOR_EACH_ROW_TYPE(GEMV)
