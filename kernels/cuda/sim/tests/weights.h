// Weights of every type: random blocks, and the value of an element of a row by the formulas of
// kernels/src/reference/dequantize.rs, element by element.
#pragma once
#include "../types.h"
#include "launch.h"

namespace check {

struct WeightType {
  const char* name;
  int block_len, block_bytes;
  // Where the float16 scales of a block are.
  std::vector<int> scales;
  float (*element)(const uint8_t* block, int i);
};

inline float half_at(const uint8_t* at) { return __half2float({uint16_t(at[0] | at[1] << 8)}); }
inline int bit(const uint8_t* bits, int i) { return bits[i / 8] >> (i % 8) & 1; }
// Of 16 bytes, byte i holds elements i and i + 16.
inline int nibble(const uint8_t* pairs, int i) { return i < 16 ? pairs[i] & 15 : pairs[i - 16] >> 4; }

inline std::pair<int, int> scale_min(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, packed[j + 4] >> 4 | (packed[j] >> 6) << 4};
}

inline const std::vector<WeightType>& weight_types() {
  using Block = const uint8_t*;
  static const std::vector<WeightType> all = {
      {"f32", 1, 4, {}, [](Block b, int) { float x; std::memcpy(&x, b, 4); return x; }},
      {"f16", 1, 2, {}, [](Block b, int) { return half_at(b); }},
      {"bf16", 1, 2, {}, [](Block b, int) { return __bfloat162float({uint16_t(b[0] | b[1] << 8)}); }},
      {"q4_0", 32, 18, {0}, [](Block b, int i) { return half_at(b) * (nibble(b + 2, i) - 8); }},
      {"q4_1", 32, 20, {0, 2}, [](Block b, int i) { return half_at(b) * nibble(b + 4, i) + half_at(b + 2); }},
      {"q5_0", 32, 22, {0}, [](Block b, int i) { return half_at(b) * (nibble(b + 6, i) + 16 * bit(b + 2, i) - 16); }},
      {"q5_1", 32, 24, {0, 2}, [](Block b, int i) { return half_at(b) * (nibble(b + 8, i) + 16 * bit(b + 4, i)) + half_at(b + 2); }},
      {"q8_0", 32, 34, {0}, [](Block b, int i) { return half_at(b) * int8_t(b[2 + i]); }},
      {"q2_k", 256, 84, {80, 82}, [](Block b, int i) {
         const int q = b[16 + i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3, scale = b[i / 16];
         return half_at(b + 80) * (scale & 15) * q - half_at(b + 82) * (scale >> 4);
       }},
      {"q3_k", 256, 110, {108}, [](Block b, int i) {
         const int q = b[32 + i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3, third = b[i % 32] >> (i / 32) & 1, s = i / 16;
         const int scale = (b[96 + s % 8] >> (4 * (s / 8)) & 15) | (b[104 + s % 4] >> (2 * (s / 4)) & 3) << 4;
         return half_at(b + 108) * (scale - 32) * ((q | third << 2) - 4);
       }},
      {"q4_k", 256, 144, {0, 2}, [](Block b, int i) {
         const int q = b[16 + i / 64 * 32 + i % 32] >> (4 * (i % 64 / 32)) & 15;
         const auto [scale, min] = scale_min(b + 4, i / 32);
         return half_at(b) * scale * q - half_at(b + 2) * min;
       }},
      {"q5_k", 256, 176, {0, 2}, [](Block b, int i) {
         const int q = b[48 + i / 64 * 32 + i % 32] >> (4 * (i % 64 / 32)) & 15, fifth = b[16 + i % 32] >> (i / 32) & 1;
         const auto [scale, min] = scale_min(b + 4, i / 32);
         return half_at(b) * scale * (q | fifth << 4) - half_at(b + 2) * min;
       }},
      {"q6_k", 256, 210, {208}, [](Block b, int i) {
         const int half = i / 128, at = i % 128;
         const int low = b[half * 64 + at % 64] >> (4 * (at / 64)) & 15, top = b[128 + half * 32 + at % 32] >> (2 * (at / 32)) & 3;
         return half_at(b + 208) * int8_t(b[192 + i / 16]) * ((low | top << 4) - 32);
       }},
      {"f8", 32, 34, {0}, [](Block b, int i) {
         __nv_fp8_e4m3 code;
         code.__x = b[2 + i];
         return half_at(b) * float(code);
       }},
  };
  return all;
}

// Those with kernels for a file's rows; the others have them for tiles alone.
inline std::vector<WeightType> row_types() {
  std::vector<WeightType> types;
  for (const WeightType& type : weight_types())
    for (const char* name : {"f32", "f16", "bf16", "q2_k", "q3_k"})
      if (std::strcmp(type.name, name) == 0) types.push_back(type);
  return types;
}

// Rows of a matrix: random bytes, whose scales are made small ordinary numbers, and whose codes stand for some.
struct Matrix {
  const WeightType& type;
  int rows, cols;
  std::vector<uint8_t> bytes;

  Matrix(Random& random, const WeightType& type, int rows, int cols) : type(type), rows(rows), cols(cols) {
    const int blocks = rows * cols / type.block_len;
    bytes.resize(size_t(blocks) * type.block_bytes);
    const bool has_codes = type.name[0] == 'f' && type.block_len > 1;
    for (uint8_t& byte : bytes) {
      byte = uint8_t(random.next());
      if (has_codes && (byte & 0x7f) == 0x7f) byte ^= 1;
    }
    for (int i = 0; i < blocks; i++) {
      uint8_t* const block = &bytes[size_t(i) * type.block_bytes];
      const float value = random.uniform();
      const uint16_t narrow = type.name[0] == 'b' ? __float2bfloat16(value).bits : __float2half(value).bits;
      if (type.block_bytes == 4) std::memcpy(block, &value, 4);
      if (type.block_bytes == 2) std::memcpy(block, &narrow, 2);
      for (int at : type.scales) {
        const uint16_t scale = __float2half(random.uniform() / 16).bits;
        std::memcpy(block + at, &scale, 2);
      }
    }
  }
  size_t row_bytes() const { return size_t(cols) / type.block_len * type.block_bytes; }
  float at(int row, int col) const {
    return type.element(&bytes[row * row_bytes() + size_t(col) / type.block_len * type.block_bytes], col % type.block_len);
  }
  Row row(int row) const {
    Row values(cols);
    for (int col = 0; col < cols; col++) values[col] = at(row, col);
    return values;
  }
};

}  // namespace check
