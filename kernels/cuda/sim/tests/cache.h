// A paged cache of one layer as ../step.cuh lays it out, read and written here by formulas of its own; and sequences in it.
#pragma once
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "../types.h"
#include "launch.h"

namespace check {

constexpr int BLOCK_SIZE = 64;

inline float widened(float x) { return x; }
inline float widened(__half x) { return __half2float(x); }
inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
inline float widened(__nv_fp8_e4m3 x) { return float(x); }
inline void narrow(float x, __nv_fp8_e4m3& to) { to = __nv_fp8_e4m3(x); }
inline void narrow(float x, float& to) { to = x; }
inline void narrow(float x, __half& to) { to = __float2half(x); }
inline void narrow(float x, __nv_bfloat16& to) { to = __float2bfloat16(x); }
// What the type makes of a number.
template <class T> float rounded(float x) {
  T narrowed;
  narrow(x, narrowed);
  return widened(narrowed);
}

template <class T> const char* type_name();
template <> inline const char* type_name<float>() { return "f32"; }
template <> inline const char* type_name<__half>() { return "f16"; }
template <> inline const char* type_name<__nv_bfloat16>() { return "bf16"; }
template <> inline const char* type_name<__nv_fp8_e4m3>() { return "f8"; }

// Whether each key and value has a scale, a power of two, and what queries are rounded to.
template <class T> constexpr bool SCALED = std::is_same<T, __nv_fp8_e4m3>::value;
template <class T> using QueryType = std::conditional_t<SCALED<T>, __nv_bfloat16, T>;

// The least power of two, 2^-124 or more, under which the largest finite element is at most 448.
inline int scale_exponent(const float* head, int head_dim) {
  double largest = 0;
  for (int d = 0; d < head_dim; d++)
    if (std::isfinite(head[d])) largest = std::fmax(largest, std::fabs(double(head[d])));
  int exponent = -124;
  while (std::ldexp(largest, -exponent) > 448) exponent++;
  return exponent;
}

inline bool all_finite(const float* head, int head_dim) {
  return std::all_of(head, head + head_dim, [](float x) { return std::isfinite(x); });
}

// Stores a key or a value as the cache does (the scale is negative where something is not finite), and makes it what was stored.
template <class T> void store_head(float* head, int head_dim, T* to, __nv_bfloat16* scale) {
  const int exponent = SCALED<T> ? scale_exponent(head, head_dim) : 0;
  if (SCALED<T>) *scale = __float2bfloat16(std::ldexp(all_finite(head, head_dim) ? 1.0f : -1.0f, exponent));
  for (int d = 0; d < head_dim; d++) {
    narrow(SCALED<T> && !std::isfinite(head[d]) ? NAN : std::ldexp(head[d], -exponent), to[d]);
    head[d] = std::ldexp(widened(to[d]), exponent);
  }
}

// [block][kv_head]{K [64][head_dim], V [64][head_dim], key lengths [64], scales of bytes [64][2]}, filled with what is not a number.
template <class T> struct Cache {
  int num_kv_heads, head_dim;
  std::vector<char> bytes;

  Cache(int num_blocks, int num_kv_heads, int head_dim) : num_kv_heads(num_kv_heads), head_dim(head_dim) {
    bytes.assign(num_blocks * num_kv_heads * piece_bytes(), char(0xff));
  }
  size_t piece_bytes() const { return BLOCK_SIZE * (2 * head_dim * sizeof(T) + sizeof(float) + (SCALED<T> ? 4 : 0)); }
  char* piece(int slot, int kv_head) { return bytes.data() + (slot / BLOCK_SIZE * num_kv_heads + kv_head) * piece_bytes(); }
  T* key(int slot, int kv_head) { return reinterpret_cast<T*>(piece(slot, kv_head)) + slot % BLOCK_SIZE * head_dim; }
  T* value(int slot, int kv_head) { return key(slot, kv_head) + BLOCK_SIZE * head_dim; }
  float& key_length(int slot, int kv_head) {
    char* const lengths = piece(slot, kv_head) + 2 * BLOCK_SIZE * head_dim * sizeof(T);
    return reinterpret_cast<float*>(lengths)[slot % BLOCK_SIZE];
  }
  // Of the key, then of the value; null for types without.
  __nv_bfloat16* scales(int slot, int kv_head) {
    if (!SCALED<T>) return nullptr;
    char* const lengths = piece(slot, kv_head) + 2 * BLOCK_SIZE * head_dim * sizeof(T);
    return reinterpret_cast<__nv_bfloat16*>(lengths + BLOCK_SIZE * sizeof(float)) + slot % BLOCK_SIZE * 2;
  }
};

// Block ids in a random order, for sequences of these lengths.
inline std::vector<std::vector<int>> block_tables(Random& random, const std::vector<int>& lens) {
  int num_blocks = 2;
  for (int len : lens) num_blocks += divided_up(len, BLOCK_SIZE);
  std::vector<int> ids(num_blocks);
  std::iota(ids.begin(), ids.end(), 0);
  for (int i = num_blocks - 1; i > 0; i--) std::swap(ids[i], ids[random.next() % (i + 1)]);
  std::vector<std::vector<int>> tables;
  size_t next = 0;
  for (int len : lens) {
    const size_t count = divided_up(len, BLOCK_SIZE);
    tables.emplace_back(ids.begin() + next, ids.begin() + next + count);
    next += count;
  }
  return tables;
}

// Some positions of some sequences, as tables of a step.
struct Step {
  std::vector<int> positions, slots, table_starts, block_tables;

  int rows() const { return int(positions.size()); }
  void add(const std::vector<int>& blocks, int begin, int end) {
    for (int position = begin; position < end; position++) {
      positions.push_back(position);
      slots.push_back(blocks[position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE);
      table_starts.push_back(int(block_tables.size()));
    }
    block_tables.insert(block_tables.end(), blocks.begin(), blocks.end());
  }
  // A row of nobody.
  void pad() {
    positions.push_back(-1);
    slots.push_back(-1);
    table_starts.push_back(0);
  }
};

}  // namespace check
