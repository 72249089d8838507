// Embedding look-up in a table that is stored as tiles (tiles.cuh): out[r] = table[tokens[r]], decoded, to the bits that
// the rows of the file have. A table that is the output head as well then lies in memory once.
//
// Grid (ceil(cols / 256), rows), 256 threads: warp w of a block has step 8 blockIdx.x + w, and the four of its lanes that have the
// token's row decode 8 elements each. Rows in grid y: at most 65535.
//
// Bytes of an element: 4, and twice its weight's, for a lane's fragments are of two rows. The launch bounds it (2 us).
// Launch contract: no dynamic shared memory, no dependent launch; table aligned to 16 bytes, out to 8; cols even, and a whole number of blocks.
#include "tiles.cuh"

namespace {

using tiles::Byte;

// Tokens of other parts are left to their kernels.
template <class T>
__device__ __forceinline__ void embed(const Byte* table, const int* tokens, float* out, int cols, int first, int count) {
  const int warp = threadIdx.x / 32, step = int(blockIdx.x) * 8 + warp, row = tokens[blockIdx.y] - first;
  if (row < 0 || row >= count || step >= tiles::steps(cols)) return;
  const bool is_upper = row % tiles::PANEL >= 8;
  if (tiles::lane() / 4 != row % 8) return;
  typename T::Raw raw;
  T::load(table + row / tiles::PANEL * T::panel_bytes(cols), blockIdx.x, warp, cols, raw);
  out += size_t(blockIdx.y) * cols;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    unsigned a[4];
    T::fragment(raw, half, a);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int col = step * tiles::STEP + half * 16 + tiles::column_of(tiles::lane(), 4 * i);
      const float2 x = tiles::values(is_upper ? a[2 * i + 1] : a[2 * i], typename T::Element());
      if (col < cols) *reinterpret_cast<float2*>(out + col) = tiles::decoded<T>(raw, half, is_upper, x);
    }
  }
}

}  // namespace

// One part of a table: rows `first` to `first + count - 1` of the whole, whose tiles are at `table`. out [rows, cols].
#define EMBED_TILES(name, T)                                                                                            \
  extern "C" __global__ void __launch_bounds__(256)                                                                    \
      embed_tiles_##name(const unsigned char* table, const int* tokens, float* out, int cols, int first, int count) {  \
    embed<tiles::T>(table, tokens, out, cols, first, count);                                                           \
  }                                                                                                                    \
  EXPORT_KERNEL(embed_tiles_##name)
FOR_EACH_TILED_TYPE(EMBED_TILES)
