// What a library's product of bfloat16 reads: weights from their tiles (tiles.cuh) back into rows, and rows of x.
//
// | kernel     | formula                             | grid                                 | threads | bytes of an element |
// |------------|-------------------------------------|--------------------------------------|---------|---------------------|
// | expand_W   | out[n][k] = bf16(w[n][k]), decoded  | ceil(cols / 256), ceil(rows / 16)    | 256     | 2 + weight          |
// | round_bf16 | out[i] = bf16(x[i])                 | ceil(count / 2048)                   | 256     | 6                   |
//
// bf16() rounds to nearest, ties to even; weights that are bfloat16 stay what they are, those of a quantized type are rounded once
// (8 significant bits, as x has). A warp decodes 16 x 32 weights, and four of its lanes write 16 bytes of a row, twice: whole sectors.
//
// Bytes: weights are read once, and written and read again as bf16 by the product behind; with as many as the second-level
// cache holds at a time these two do not reach DRAM, which bounds the first. Up to 10 flops an element.
// Launch contract: no dynamic shared memory, no dependent launch; tiles, x and out aligned to 16 bytes; cols and count multiples of 8,
// and cols a whole number of blocks. Panels in grid y: at most 65535.
#include "elements.cuh"
#include "tiles.cuh"

namespace {

using tiles::Byte;

template <class T> __device__ __forceinline__ void expand(const Byte* w, __nv_bfloat16* out, int rows, int cols) {
  const int panel = blockIdx.y, warp = threadIdx.x / 32, step = int(blockIdx.x) * 8 + warp;
  if (step >= tiles::steps(cols)) return;
  typename T::Raw raw;
  T::load(w + size_t(panel) * T::panel_bytes(cols), blockIdx.x, warp, cols, raw);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    unsigned a[4];
    T::fragment(raw, half, a);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int row = panel * tiles::PANEL + tiles::row_of(tiles::lane(), i);
      const int col = step * tiles::STEP + half * 16 + tiles::column_of(tiles::lane(), i);
      const bool is_upper = i / 2 % 2;
      const float2 x = tiles::decoded<T>(raw, half, is_upper, tiles::values(a[i / 2], typename T::Element()));
      if (row < rows && col < cols)
        *reinterpret_cast<unsigned*>(out + size_t(row) * cols + col) = ptx::pack_bf16(x.x, x.y);
    }
  }
}

}  // namespace

// w are tiles of `rows` rows of `cols` columns, from the beginning of a panel on; out [rows, cols].
#define EXPAND(name, T)                                                                     \
  extern "C" __global__ void __launch_bounds__(256)                                         \
      expand_##name(const unsigned char* w, __nv_bfloat16* out, int rows, int cols) {       \
    expand<tiles::T>(w, out, rows, cols);                                                   \
  }                                                                                         \
  EXPORT_KERNEL(expand_##name)
// float16 is not here: rounded to bfloat16 it loses what it is chosen for.
EXPAND(bf16, BF16)
EXPAND(q4_0, Q4_0)
EXPAND(q4_1, Q4_1)
EXPAND(q5_0, Q5_0)
EXPAND(q5_1, Q5_1)
EXPAND(q8_0, Q8_0)
EXPAND(q4_k, Q4_K)
EXPAND(q5_k, Q5_K)
EXPAND(q6_k, Q6_K)
EXPAND(f8, F8E4M3)

// x, out [count].
extern "C" __global__ void __launch_bounds__(256) round_bf16(const float* x, __nv_bfloat16* out, int count) {
  using elements::CHUNK;
  const int chunk = int(blockIdx.x) * 256 + int(threadIdx.x);
  if (chunk >= count / CHUNK) return;
  float values[CHUNK];
  elements::load_chunk(x, chunk, CHUNK * (chunk + 1), values);
  elements::Chunk<__nv_bfloat16> rounded;
#pragma unroll
  for (int i = 0; i < CHUNK; i++) rounded.at[i] = elements::from_float<__nv_bfloat16>(values[i]);
  reinterpret_cast<elements::Chunk<__nv_bfloat16>*>(out)[chunk] = rounded;
}
EXPORT_KERNEL(round_bf16)
