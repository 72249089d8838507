// Tiles of a matrix (tiles.cuh has the layout) from the rows of a file: once, when a model is loaded. Readable, not fast: a
// few bytes of a lane at a time, each read from the cache about as often as a block has bytes.
//
// Grid (ceil(cols / 32), ceil(n / 16)), 32 threads: a warp makes one step of a panel, each lane its own fragments, and the
// first eight the scales of rows r and r + 8. Rows from n on are zeros, and so are columns from cols on.
//
// Bytes: those of the matrix, read and written. Launch contract: no dynamic shared memory, no dependent launch; w aligned to
// 2 bytes, tiles to 16; cols a whole number of blocks. tiles has ceil(n / 16) panels of `panel_bytes(cols)`.
#include "tiles.cuh"
#include "weights.cuh"

namespace {

using tiles::Byte;

// Blocks of a file: element i as the whole number it is stored as, before anything is taken away.

__device__ __forceinline__ unsigned bit_of(const Byte* bits, int i) { return bits[i / 8] >> (i % 8) & 1; }
__device__ __forceinline__ unsigned nibble_of(const Byte* pairs, int i) { return pairs[i % 16] >> (i / 16 * 4) & 15; }

struct FileQ4_0 : weights::Blocks<FileQ4_0, 32, 18> {
  static __device__ __forceinline__ unsigned quant(const Byte* block, int i) { return nibble_of(block + 2, i); }
};
struct FileQ4_1 : weights::Blocks<FileQ4_1, 32, 20> {
  static __device__ __forceinline__ unsigned quant(const Byte* block, int i) { return nibble_of(block + 4, i); }
};
struct FileQ5_0 : weights::Blocks<FileQ5_0, 32, 22> {
  static __device__ __forceinline__ unsigned quant(const Byte* block, int i) {
    return nibble_of(block + 6, i) | bit_of(block + 2, i) << 4;
  }
};
struct FileQ5_1 : weights::Blocks<FileQ5_1, 32, 24> {
  static __device__ __forceinline__ unsigned quant(const Byte* block, int i) {
    return nibble_of(block + 8, i) | bit_of(block + 4, i) << 4;
  }
};
// Of q8_0, and of e4m3 (f8), whose blocks are a float16 and 32 bytes as well.
struct FileQ8_0 : weights::Blocks<FileQ8_0, 32, 34> {
  static __device__ __forceinline__ unsigned quant(const Byte* block, int i) { return block[2 + i]; }
};
// Byte l of each 32 holds elements l and l + 32 of 64.
__device__ __forceinline__ unsigned nibble_of_256(const Byte* pairs, int i) {
  return pairs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}
struct FileQ4_K : weights::Blocks<FileQ4_K, 256, 144> {
  static __device__ __forceinline__ unsigned quant(const Byte* block, int i) { return nibble_of_256(block + 16, i); }
};
struct FileQ5_K : weights::Blocks<FileQ5_K, 256, 176> {
  static __device__ __forceinline__ unsigned quant(const Byte* block, int i) {
    return nibble_of_256(block + 48, i) | (block[16 + i % 32] >> (i / 32) & 1u) << 4;
  }
};
struct FileQ6_K : weights::Blocks<FileQ6_K, 256, 210> {
  static __device__ __forceinline__ unsigned quant(const Byte* block, int i) {
    const int half = i / 128, at = i % 128;
    const unsigned low = block[half * 64 + at % 64] >> (at / 64 * 4) & 15;
    const unsigned high = block[128 + half * 32 + at % 32] >> (at / 32 * 2) & 3;
    return low | high << 4;
  }
};

// The panel and step of this warp, in the file.
template <class File, int LEN> struct Source {
  const Byte* rows;
  int n, cols, panel, step;

  __device__ __forceinline__ Source(const Byte* rows, int n, int cols)
      : rows(rows), n(n), cols(cols), panel(blockIdx.y), step(blockIdx.x) {}

  // The block that holds the step of row `row` of the panel; null beyond the end.
  __device__ __forceinline__ const Byte* block(int row) const {
    const int output = panel * tiles::PANEL + row;
    const size_t bytes_of_block = File::row_bytes(LEN);
    return output < n ? rows + output * File::row_bytes(cols) + step * tiles::STEP / LEN * bytes_of_block : nullptr;
  }
  // Element i of a lane's fragment `half`.
  __device__ __forceinline__ unsigned quant(int half, int i) const {
    const Byte* const from = block(tiles::row_of(tiles::lane(), i));
    return from ? File::quant(from, step * tiles::STEP % LEN + half * 16 + tiles::column_of(tiles::lane(), i)) : 0u;
  }
};

// The float16 at byte `at` of a block, as its bits.
__device__ __forceinline__ unsigned half_bits(const Byte* block, int at) { return block ? weights::pair_at(block + at) : 0u; }

__device__ __forceinline__ void store_pair(Byte* to, unsigned value) { *reinterpret_cast<unsigned short*>(to) = (unsigned short)value; }
__device__ __forceinline__ void store_word(Byte* to, unsigned value) { *reinterpret_cast<unsigned*>(to) = value; }

template <class T>
__device__ __forceinline__ void float_tiles(const Byte* rows, Byte* to, int n, int cols) {
  const int lane = tiles::lane(), panel = blockIdx.y, step = blockIdx.x;
  to += panel * tiles::Float<T>::panel_bytes(cols) + size_t(step) * 2 * tiles::Float<T>::FRAGMENTS + lane * 16;
  for (int half = 0; half < 2; half++) {
    const int first = step * tiles::STEP + half * 16;
    if (first >= cols) return;
    for (int i = 0; i < 8; i++) {
      const int output = panel * tiles::PANEL + tiles::row_of(lane, i), col = first + tiles::column_of(lane, i);
      const bool is_there = output < n && col < cols;
      store_pair(to + half * tiles::Float<T>::FRAGMENTS + 2 * i,
                 is_there ? weights::pair_at(rows + (size_t(output) * cols + col) * sizeof(T)) : 0u);
    }
  }
}

__device__ __forceinline__ void q8_0_tiles(const Byte* rows, Byte* to, int n, int cols) {
  using Tile = tiles::Q8_0;
  const Source<FileQ8_0, 32> source(rows, n, cols);
  const int lane = tiles::lane();
  to += source.panel * Tile::panel_bytes(cols) + size_t(source.step) * Tile::TILE;
  for (int half = 0; half < 2; half++)
    for (int i = 0; i < 8; i++) to[lane * 16 + half * 8 + tiles::byte_of(i)] = Byte(source.quant(half, i));
  if (lane < 8) store_word(to + Tile::QUANTS + 4 * lane, half_bits(source.block(lane), 0) | half_bits(source.block(lane + 8), 0) << 16);
}

// Nibbles and upper bits of a step.
template <int HIGH, class From> __device__ __forceinline__ void store_quants(const From& source, Byte* to) {
  const int lane = tiles::lane();
  unsigned even = 0, odd = 0;  // upper bits of pairs
  for (int i = 0; i < 8; i++) {
    const unsigned first = source.quant(0, i), second = source.quant(1, i);
    to[lane * 8 + tiles::byte_of(i)] = Byte((first & 15) | (second & 15) << 4);
    const unsigned upper = first >> 4 << HIGH * (i / 2) | second >> 4 << HIGH * (4 + i / 2);
    (i % 2 ? odd : even) |= upper;
  }
  Byte* const upper = to + tiles::Quants<HIGH>::NIBBLES;
  if (HIGH == 1) store_pair(upper + 2 * lane, even | odd << 8);
  if (HIGH == 2) store_word(upper + 4 * lane, even | odd << 16);
}

// d of rows r and r + 8, and what is `between` bytes behind it in a block, if that is not zero.
template <class From> __device__ __forceinline__ void store_scales(const From& source, Byte* to, int d, int between) {
  const int r = tiles::lane();
  if (r >= 8) return;
  const Byte *const low = source.block(r), *const high = source.block(r + 8);
  to += r * (between ? 8 : 4);
  store_word(to, half_bits(low, d) | half_bits(high, d) << 16);
  if (between) store_word(to + 4, half_bits(low, d + between) | half_bits(high, d + between) << 16);
}

template <class File, class Tile, int HIGH>
__device__ __forceinline__ void tiles_of_32(const Byte* rows, Byte* to, int n, int cols) {
  const Source<File, 32> source(rows, n, cols);
  to += source.panel * Tile::panel_bytes(cols) + size_t(source.step) * Tile::TILE;
  store_quants<HIGH>(source, to);
  store_scales(source, to + tiles::Quants<HIGH>::BYTES, 0, Tile::MINIMUM ? 2 : 0);
}

// Scale and minimum of step `j` of Q4_K and Q5_K: four bits each, and the two bits above. The first four pairs of six bits lie whole
// in bytes j and j + 4; of the last four the low nibbles share byte j + 4 and the high bits are on top of the first eight bytes.
__device__ __forceinline__ uint2 split_scale_min(const Byte* block, int j) {
  if (!block) return make_uint2(0, 0);
  const Byte* const packed = block + 4;
  const unsigned scale = j < 4 ? packed[j] & 63u : (packed[j + 4] & 15u) | packed[j - 4] >> 6 << 4;
  const unsigned min = j < 4 ? packed[j + 4] & 63u : unsigned(packed[j + 4] >> 4 | packed[j] >> 6 << 4);
  return make_uint2((scale & 15) | (min & 15) << 4, scale >> 4 | min >> 4 << 2);
}

template <class File, class Tile, int HIGH>
__device__ __forceinline__ void scaled_tiles_of_256(const Byte* rows, Byte* to, int n, int cols) {
  const Source<File, 256> source(rows, n, cols);
  const int sub = source.step % 8, r = tiles::lane();
  to += source.panel * Tile::panel_bytes(cols) + size_t(source.step / 8) * Tile::SUPER_TILE;
  store_quants<HIGH>(source, to + sub * tiles::Quants<HIGH>::BYTES);
  if (sub == 0) store_scales(source, to + Tile::D_MIN, 0, 2);
  if (r >= 8) return;
  const uint2 low = split_scale_min(source.block(r), sub), high = split_scale_min(source.block(r + 8), sub);
  store_pair(to + Tile::LOW_SCALES + sub * 16 + 2 * r, low.x | high.x << 8);
  to[Tile::HIGH_SCALES + sub * 8 + r] = Byte(low.y | high.y << 4);
}

__device__ __forceinline__ void q6_k_tiles(const Byte* rows, Byte* to, int n, int cols) {
  using Tile = tiles::Q6_K;
  const Source<FileQ6_K, 256> source(rows, n, cols);
  const int sub = source.step % 8, r = tiles::lane();
  to += source.panel * Tile::panel_bytes(cols) + size_t(source.step / 8) * Tile::SUPER_TILE;
  store_quants<2>(source, to + sub * tiles::Quants<2>::BYTES);
  if (sub == 0) store_scales(source, to + Tile::D, 208, 0);
  if (r >= 8) return;
  for (int i = 0; i < 4; i++) {
    const Byte* const block = source.block(r + i % 2 * 8);
    to[Tile::SCALES + sub * 32 + r * 4 + i] = block ? block[192 + sub * 2 + i / 2] : Byte(0);
  }
}

}  // namespace

// w: n rows of the file; tiles as above. The last argument is the function, whose commas are the macro's.
#define SHUFFLE(name, ...)                                                           \
  extern "C" __global__ void __launch_bounds__(32)                                   \
      shuffle_##name(const unsigned char* w, unsigned char* to, int n, int cols) {   \
    __VA_ARGS__(w, to, n, cols);                                                     \
  }                                                                                  \
  EXPORT_KERNEL(shuffle_##name)
SHUFFLE(f16, float_tiles<__half>)
SHUFFLE(bf16, float_tiles<__nv_bfloat16>)
SHUFFLE(q4_0, tiles_of_32<FileQ4_0, tiles::Q4_0, 0>)
SHUFFLE(q4_1, tiles_of_32<FileQ4_1, tiles::Q4_1, 0>)
SHUFFLE(q5_0, tiles_of_32<FileQ5_0, tiles::Q5_0, 1>)
SHUFFLE(q5_1, tiles_of_32<FileQ5_1, tiles::Q5_1, 1>)
SHUFFLE(q8_0, q8_0_tiles)
SHUFFLE(q4_k, scaled_tiles_of_256<FileQ4_K, tiles::Q4_K, 0>)
SHUFFLE(q5_k, scaled_tiles_of_256<FileQ5_K, tiles::Q5_K, 1>)
SHUFFLE(q6_k, q6_k_tiles)
