// Operations on rows without sums: embedding look-up, gathering, SwiGLU's middle, addition; and the copy of a KV block.
//
// | kernel        | formula                                     | grid                   | threads | bytes of an element |
// |---------------|---------------------------------------------|------------------------|---------|---------------------|
// | embed_W       | out[r] = table[tokens[r]], decoded          | ceil(cols / 2048), rows | 256    | 4 + weight          |
// | gather_rows   | out[i] = x[picked[i]]                       | ceil(cols / 256), n    | 256     | 8                   |
// | silu_mul      | out = gate / (1 + e^-gate) * up             | ceil(cols / 256), rows | 256     | 12                  |
// | add           | residual += delta                           | ceil(cols / 256), rows | 256     | 12                  |
// | copy_kv_block | cache[layer][to] = cache[layer][from]       | any, layers            | 256     | 2 x 16 per unit     |
//
// No more than 20 flops an element. Activations are some KB to MB that the kernel before left in the second-level cache: the
// launch bounds them (2 us). copy_kv_block moves a few MB once per shared block: DRAM.
//
// Launch contract of all: no dynamic shared memory, no dependent launch. Rows in grid y: at most 65535.
#include "step.cuh"
#include "weights.cuh"

namespace {

constexpr int THREADS = 256;

__device__ __forceinline__ int column() { return int(blockIdx.x) * THREADS + int(threadIdx.x); }

// A thread decodes eight elements. Tokens of other parts are left to their kernels.
template <class W>
__device__ __forceinline__ void embed(const unsigned char* table, const int* tokens, float* out, int cols, int first, int count) {
  const int chunk = column(), row = tokens[blockIdx.y] - first;
  if (row < 0 || row >= count || chunk * elements::CHUNK >= cols) return;
  float values[elements::CHUNK];
  W::load(table + size_t(row) * W::row_bytes(cols), chunk, cols, values);
  out += size_t(blockIdx.y) * cols + chunk * elements::CHUNK;
#pragma unroll
  for (int i = 0; i < elements::CHUNK; i++)
    if (chunk * elements::CHUNK + i < cols) out[i] = values[i];
}

}  // namespace

// One part of a table: rows `first` to `first + count - 1` of the whole, at `table`, which is aligned to 16 bytes. out [rows, cols].
#define EMBED(name, W)                                                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                              \
      embed_##name(const unsigned char* table, const int* tokens, float* out, int cols, int first, int count) { \
    embed<W>(table, tokens, out, cols, first, count);                                                            \
  }                                                                                                              \
  EXPORT_KERNEL(embed_##name)
FOR_EACH_ROW_TYPE(EMBED)

// x [.., cols], picked [n], out [n, cols].
extern "C" __global__ void __launch_bounds__(256) gather_rows(const float* x, const int* picked, float* out, int cols) {
  const int i = column(), row = picked[blockIdx.y];
  if (i < cols && row >= 0) out[size_t(blockIdx.y) * cols + i] = x[size_t(row) * cols + i];
}
EXPORT_KERNEL(gather_rows)

// A row of gate_up is [gate | up], each of `cols` elements; out [rows, cols].
extern "C" __global__ void __launch_bounds__(256) silu_mul(const float* gate_up, float* out, int cols) {
  const int i = column();
  if (i >= cols) return;
  const float* const row = gate_up + size_t(blockIdx.y) * 2 * cols;
  out[size_t(blockIdx.y) * cols + i] = elements::silu_mul(row[i], row[cols + i]);
}
EXPORT_KERNEL(silu_mul)

// residual, delta [rows, cols].
extern "C" __global__ void __launch_bounds__(256) add(float* residual, const float* delta, int cols) {
  const int i = column();
  const size_t at = size_t(blockIdx.y) * cols + i;
  if (i < cols) residual[at] += delta[at];
}
EXPORT_KERNEL(add)

// Sizes in units of 16 bytes: of a block of one layer, and from one layer of the cache to the next. Blocks of threads share a layer.
extern "C" __global__ void __launch_bounds__(256)
    copy_kv_block(uint4* cache, unsigned block_units, unsigned layer_units, int from, int to) {
  uint4* const layer = cache + size_t(blockIdx.y) * layer_units;
  const uint4* const source = layer + size_t(from) * block_units;
  uint4* const target = layer + size_t(to) * block_units;
  for (unsigned i = column(); i < block_units; i += gridDim.x * THREADS) target[i] = source[i];
}
EXPORT_KERNEL(copy_kv_block)
