// Decoders of the weight types, from the file's own layout: eight consecutive elements of a row at a time, to the values
// of kernels/src/reference/dequantize.rs to the bit. Its head has the table of the types and their blocks.
//
// A type W has `row_bytes(cols)` and `load(row, chunk, cols, to)`: elements 8 chunk to 8 chunk + 7, zeros beyond the end of a row
// of a float type; rows are a whole number of runs of BLOCK. Blocks of 18, 34, 110 or 210 bytes are aligned to two bytes only, so quantized bytes are read in pairs;
// products of scales and small integers are exact in float32, and only the addition of a minimum rounds.
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

// Blocks of 32. Of 16 bytes of nibble pairs, byte i holds elements i and i + 16.
__device__ __forceinline__ unsigned nibble(Eight pairs, int i, int first) { return pairs[i] >> (first / 16 * 4) & 15; }

struct Q8_0 : Blocks<Q8_0, 32, 34> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const float d = half_at(block);
    const Eight q(block + 2 + first);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float(static_cast<signed char>(q[i]));
  }
};

struct Q4_0 : Blocks<Q4_0, 32, 18> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const float d = half_at(block);
    const Eight pairs(block + 2 + first % 16);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float(int(nibble(pairs, i, first)) - 8);
  }
};

struct Q4_1 : Blocks<Q4_1, 32, 20> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const float d = half_at(block), m = half_at(block + 2);
    const Eight pairs(block + 4 + first % 16);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float(nibble(pairs, i, first)) + m;
  }
};

struct Q5_0 : Blocks<Q5_0, 32, 22> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const float d = half_at(block);
    const unsigned fifth = word_at(block + 2) >> first;
    const Eight pairs(block + 6 + first % 16);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float(int(nibble(pairs, i, first) | (fifth >> i & 1) << 4) - 16);
  }
};

struct Q5_1 : Blocks<Q5_1, 32, 24> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const float d = half_at(block), m = half_at(block + 2);
    const unsigned fifth = word_at(block + 4) >> first;
    const Eight pairs(block + 8 + first % 16);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float(nibble(pairs, i, first) | (fifth >> i & 1) << 4) + m;
  }
};

// Blocks of 256, with scales for runs of 16 or 32. `first / n` is the same for all eight elements.

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

// The scale and minimum of run j of Q4_K and Q5_K, six bits each: the first four lie whole in bytes j and j + 4; of the last four
// the low nibbles share byte j + 4 and the high bits are on top of the first eight bytes.
__device__ __forceinline__ float2 scale_min(const Byte* packed, int j) {
  const unsigned scale = j < 4 ? packed[j] & 63u : (packed[j + 4] & 15u) | packed[j - 4] >> 6 << 4;
  const unsigned min = j < 4 ? packed[j + 4] & 63u : unsigned(packed[j + 4] >> 4 | packed[j] >> 6 << 4);
  return make_float2(float(scale), float(min));
}

struct Q4_K : Blocks<Q4_K, 256, 144> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const float2 run = scale_min(block + 4, first / 32);
    const float d = half_at(block) * run.x, m = half_at(block + 2) * run.y;
    // Byte l of each 32 holds elements l and l + 32 of 64.
    const Eight q(block + 16 + first / 64 * 32 + first % 32);
    const int shift = first % 64 / 32 * 4;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float(q[i] >> shift & 15) - m;
  }
};

struct Q5_K : Blocks<Q5_K, 256, 176> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const float2 run = scale_min(block + 4, first / 32);
    const float d = half_at(block) * run.x, m = half_at(block + 2) * run.y;
    const Eight fifth(block + 16 + first % 32), q(block + 48 + first / 64 * 32 + first % 32);
    const int shift = first % 64 / 32 * 4, bit = first / 32;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = d * float((q[i] >> shift & 15) | (fifth[i] >> bit & 1) << 4) - m;
  }
};

struct Q6_K : Blocks<Q6_K, 256, 210> {
  static __device__ __forceinline__ void decode(const Byte* block, int first, float (&to)[CHUNK]) {
    const float d = half_at(block + 208) * float(static_cast<signed char>(block[192 + first / 16]));
    // Of each 128 elements, l and l + 64 share byte l of the nibbles, and l, l + 32, l + 64, l + 96 byte l of the upper two bits.
    const int half = first / 128, at = first % 128;
    const Eight low(block + half * 64 + at % 64), high(block + 128 + half * 32 + at % 32);
    const int low_shift = at / 64 * 4, high_shift = at / 32 * 2;
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
      to[i] = d * float(int((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
  }
};

}  // namespace weights

// FOR_EACH_WEIGHT_TYPE(INSTANCE) is INSTANCE(suffix of the kernel's name, type) for each.
#define FOR_EACH_WEIGHT_TYPE(INSTANCE) \
  INSTANCE(f32, weights::F32)          \
  INSTANCE(f16, weights::F16)          \
  INSTANCE(bf16, weights::BF16)        \
  INSTANCE(q4_0, weights::Q4_0)        \
  INSTANCE(q4_1, weights::Q4_1)        \
  INSTANCE(q5_0, weights::Q5_0)        \
  INSTANCE(q5_1, weights::Q5_1)        \
  INSTANCE(q8_0, weights::Q8_0)        \
  INSTANCE(q2_k, weights::Q2_K)        \
  INSTANCE(q3_k, weights::Q3_K)        \
  INSTANCE(q4_k, weights::Q4_K)        \
  INSTANCE(q5_k, weights::Q5_K)        \
  INSTANCE(q6_k, weights::Q6_K)
