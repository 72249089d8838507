// Decoders of the weights that stay as they lie in the file: f32, q2_k, q3_k, and f16 and bf16 with an odd number of columns; all
// others are tiles (tiles.cuh). Eight consecutive elements of a row at a time, to the values of
// kernels/src/reference/dequantize.rs to the bit. Its head has the table of the types and their blocks.
//
// A type W has `row_bytes(cols)` and `load(row, chunk, cols, to)`: elements 8 chunk to 8 chunk + 7, zeros beyond the end of a row
// of a float type; rows are a whole number of runs of BLOCK. Blocks of 110 bytes are aligned to two bytes only, so quantized bytes are
// read in pairs; products of scales and small integers are exact in float32, and only the addition of a minimum rounds.
#pragma once
#include "elements.cuh"

namespace weights {

using elements::CHUNK;
using Byte = unsigned char;

template <class T> struct Float {
  static constexpr int BLOCK = 1;
  static __device__ __forceinline__ size_t row_bytes(int cols) { return size_t(cols) * sizeof(T); }
  static __device__ __forceinline__ void load(const Byte* row, int chunk, int cols, float (&to)[CHUNK]) {
    elements::load_chunk(reinterpret_cast<const T*>(row), chunk, cols, to);
  }
};
using F32 = Float<float>;
using F16 = Float<__half>;
using BF16 = Float<__nv_bfloat16>;

// At even addresses.
__device__ __forceinline__ unsigned pair_at(const Byte* at) { return *reinterpret_cast<const unsigned short*>(at); }
__device__ __forceinline__ unsigned word_at(const Byte* at) { return pair_at(at) | pair_at(at + 2) << 16; }
__device__ __forceinline__ float half_at(const Byte* at) { return __half2float(*reinterpret_cast<const __half*>(at)); }

// Eight bytes from an even address on.
struct Eight {
  unsigned low, high;

  explicit __device__ __forceinline__ Eight(const Byte* at) : low(word_at(at)), high(word_at(at + 4)) {}
  __device__ __forceinline__ unsigned operator[](int i) const { return (i < 4 ? low : high) >> (i % 4 * 8) & 255; }
};

// Types whose blocks hold LEN elements in BYTES; W::decode(block, first, to) gives elements first to first + 7 of a block.
template <class W, int LEN, int BYTES> struct Blocks {
  static constexpr int BLOCK = LEN;
  static __device__ __forceinline__ size_t row_bytes(int cols) { return size_t(cols / LEN) * BYTES; }
  static __device__ __forceinline__ void load(const Byte* row, int chunk, int, float (&to)[CHUNK]) {
    constexpr int CHUNKS = LEN / CHUNK;
    W::decode(row + size_t(chunk / CHUNKS) * BYTES, chunk % CHUNKS * CHUNK, to);
  }
};

// Blocks of 256, with scales for runs of 16. `first / n` is the same for all eight elements.

struct Q2_K : Blocks<Q2_K, 256, 84> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const unsigned scale = block[first / 16];
    const float d = half_at(block + 80) * float(scale & 15), m = half_at(block + 82) * float(scale >> 4);
    // Byte l of each 32 holds elements l, l + 32, l + 64, l + 96 of 128, lowest bits first.
    const Eight q(block + 16 + first / 128 * 32 + first % 32);
    const int shift = first % 128 / 32 * 2;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float(q[i] >> shift & 3) - m;
  }
};

struct Q3_K : Blocks<Q3_K, 256, 110> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    // Scale s: its low nibble in byte s % 8, its two high bits in byte 8 + s % 4.
    const Byte* const scales = block + 96;
    const int s = first / 16;
    const int scale = (scales[s % 8] >> (s / 8 * 4) & 15) | (scales[8 + s % 4] >> (s / 4 * 2) & 3) << 4;
    const float d = half_at(block + 108) * float(scale - 32);
    const Eight third(block + first % 32), q(block + 32 + first / 128 * 32 + first % 32);
    const int shift = first % 128 / 32 * 2, bit = first / 32;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float(int((q[i] >> shift & 3) | (third[i] >> bit & 1) << 2) - 4);
  }
};

}  // namespace weights

// FOR_EACH_ROW_TYPE(INSTANCE) is INSTANCE(suffix of the kernel's name, type) for each.
#define FOR_EACH_ROW_TYPE(INSTANCE) \
  INSTANCE(f32, weights::F32)       \
  INSTANCE(f16, weights::F16)       \
  INSTANCE(bf16, weights::BF16)     \
  INSTANCE(q2_k, weights::Q2_K)     \
  INSTANCE(q3_k, weights::Q3_K)
