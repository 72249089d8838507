// Weights as the tensor cores want them: the tiles that shuffle.cu makes of a file's rows, once, and that a warp's lanes load
// straight into registers.
//
// A matrix [n, cols] is panels of 16 outputs (n padded with zeros), one after the other, each in steps of 32 columns. Of a step
// a lane has two fragments, one for each 16 columns: what mma.m16n8k16 wants of it as its row-major operand A (a warp's part of
// wgmma's m64k16 is the same). Element i of 0 to 7 is at row lane / 4 (+ 8 where i is 2, 3, 6, 7) and column
// 2 (lane % 4) + i % 2 (+ 8 where i is 4 to 7); elements 2 j and 2 j + 1 are the pair of register j.
//
// | type             | bytes of 16 x 32, in this order                                                               |
// |------------------|-----------------------------------------------------------------------------------------------|
// | bf16, f16        | first fragments, 16 bytes a lane; second ones. cols is padded to 16, so the last may be missing |
// | q8_0, f8         | 16 a lane: first fragment, second; then d                                                     |
// | q4_0, q4_1       | 8 a lane: low nibbles first fragment, high ones second; then d, (d, m)                        |
// | q5_0, q5_1       | the same nibbles; 2 a lane: fifth bits; then d, (d, m)                                        |
//
// Bytes of a lane are its elements in the order 0 2 1 3, 4 6 5 7: the pairs of a word are bytes 0, 2 and bytes 1, 3, so that a
// mask gives two halves of a register. Bit p of the first (second) byte of fifth bits belongs to the even (odd) element of
// pair p, counted through both fragments. d are float16 of rows r and r + 8 side by side, for r from 0 to 7: one load of a
// lane; (d, m) are d of both, then m of both.
//
// Blocks of 256 are super-tiles of eight steps:
//
// | type       | bytes of 16 x 256, in this order                                                                     |
// |------------|------------------------------------------------------------------------------------------------------|
// | q4_k, q5_k | eight times nibbles (and fifth bits); (d, dmin) as (d, m) above; 8 x 16 low scale bits; 8 x 8 high ones |
// | q6_k       | eight times nibbles, then 4 a lane: upper bits; 8 x 32 scales; d                                      |
//
// Low scale bits of a step, two bytes for each r: scale & 15 and min & 15 of row r, then of r + 8. High ones, a byte: the two
// bits each of scale and min of r, of r + 8. Upper bits of q6_k: the even elements' in the low half of a word, two bits a pair,
// the odd ones' in the other. Scales of q6_k: four signed bytes for each r: row r's of the first 16 columns, r + 8's, and of
// the second 16.
//
// All in all the bytes of the file. Quantized values are at most eight bits, exact in bfloat16, and so are those of e4m3 (f8), four
// bits from 2^-9 to 448; the products of their scales are exact in float32.
//
// A type T has `Raw`, what a lane has of a step; `load(panel, eight, sub, cols, raw)` of step 8 eight + sub;
// `fragment(raw, half, a)`; and where RUN is not zero a scale for each RUN columns: `scale(raw, half)` of rows lane / 4 and
// lane / 4 + 8, and with MINIMUM what is added to all values, `minimum(raw)`.
#pragma once
#include "cuda.cuh"

namespace tiles {

using Byte = unsigned char;

constexpr int PANEL = 16, STEP = 32;

// The place in its 16 x 16 of element i of a lane's fragment.
__device__ __forceinline__ int row_of(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
__device__ __forceinline__ int column_of(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 4 * 8; }
// Which of a lane's bytes has element i.
__device__ __forceinline__ int byte_of(int i) { return i / 4 * 4 + i % 2 * 2 + i / 2 % 2; }

__device__ __forceinline__ int steps(int cols) { return (cols + STEP - 1) / STEP; }
__device__ __forceinline__ int lane() { return int(threadIdx.x % 32); }

// Of two float16 in a word.
__device__ __forceinline__ float2 halves(unsigned pair) {
  return make_float2(__half2float(__ushort_as_half((unsigned short)(pair & 0xffff))),
                     __half2float(__ushort_as_half((unsigned short)(pair >> 16))));
}

template <class T> struct Float {
  using Element = T;
  static constexpr int RUN = 0;
  static constexpr bool MINIMUM = false;
  static constexpr int FRAGMENTS = 512;
  struct Raw {
    uint4 of[2];
  };

  static __device__ __forceinline__ size_t panel_bytes(int cols) { return size_t((cols + 15) / 16) * FRAGMENTS; }
  static __device__ __forceinline__ void load(const Byte* panel, int eight, int sub, int cols, Raw& raw) {
    const int step = eight * 8 + sub;
    const uint4* const at = reinterpret_cast<const uint4*>(panel + size_t(step) * 2 * FRAGMENTS) + lane();
    raw.of[0] = ptx::load_once(at);
    raw.of[1] = step * STEP + 16 < cols ? ptx::load_once(at + 32) : uint4{0, 0, 0, 0};
  }
  static __device__ __forceinline__ void fragment(const Raw& raw, int half, unsigned (&a)[4]) {
    a[0] = raw.of[half].x;
    a[1] = raw.of[half].y;
    a[2] = raw.of[half].z;
    a[3] = raw.of[half].w;
  }
};
using F16 = Float<__half>;
using BF16 = Float<__nv_bfloat16>;

// 128 as a pair of bfloat16. The seven bits below are whole numbers: 0x4300 + q is 128 + q.
constexpr unsigned PAIR_OF_128 = 0x43004300, MINUS = 0x80008000;
// The same number in both halves of a word.
__device__ constexpr unsigned twice(unsigned half) { return half << 16 | half; }

// A byte for each weight, and a scale for each 32.
struct Bytes32 {
  using Element = __nv_bfloat16;
  static constexpr int RUN = 32;
  static constexpr bool MINIMUM = false;
  static constexpr int QUANTS = 512, TILE = QUANTS + 32;
  struct Raw {
    uint4 quants;
    unsigned d;
  };

  static __device__ __forceinline__ size_t panel_bytes(int cols) { return size_t(steps(cols)) * TILE; }
  static __device__ __forceinline__ void load(const Byte* panel, int eight, int sub, int, Raw& raw) {
    const Byte* const tile = panel + size_t(eight * 8 + sub) * TILE;
    raw.quants = ptx::load_once(reinterpret_cast<const uint4*>(tile) + lane());
    raw.d = ptx::load_once(reinterpret_cast<const unsigned*>(tile + QUANTS) + lane() / 4);
  }
  static __device__ __forceinline__ float2 scale(const Raw& raw, int) { return halves(raw.d); }
  // The word that has pair j of a fragment.
  static __device__ __forceinline__ unsigned word(const Raw& raw, int half, int j) {
    return half ? (j / 2 ? raw.quants.w : raw.quants.z) : (j / 2 ? raw.quants.y : raw.quants.x);
  }
};

struct Q8_0 : Bytes32 {
  // The low seven bits count from 128 on; the eighth makes the 128 that is taken away 256.
  static __device__ __forceinline__ void fragment(const Raw& raw, int half, unsigned (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const unsigned pair = word(raw, half, j) >> j % 2 * 8;
      a[j] = ptx::add_bf16x2(ptx::masked_or(pair, twice(0x7f), PAIR_OF_128), ptx::masked_or(pair, twice(0x80), PAIR_OF_128 | MINUS));
    }
  }
};

struct F8E4M3 : Bytes32 {
  // Sign, exponent and significand to where bfloat16 has them; its exponent counts from 120 powers of two below, for subnormal numbers
  // as well. Every code stands for a number: those that e4m3 has for none are never made.
  static __device__ __forceinline__ void fragment(const Raw& raw, int half, unsigned (&a)[4]) {
    constexpr unsigned UP = 0x7b80;  // 2^120
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const unsigned codes = word(raw, half, j) << (j % 2 ? 0 : 8);  // in the upper byte of each half
      a[j] = ptx::multiply_bf16x2(ptx::masked_or(codes, MINUS, codes >> 4 & twice(0x07f0)), twice(UP));
    }
  }
};

// Values of 4 + HIGH bits: what a lane has of a step, and how it lies from `tile` on.
template <int HIGH> struct Quants {
  static constexpr int NIBBLES = 256, BYTES = NIBBLES + 64 * HIGH;
  uint2 nibbles;
  unsigned high;

  __device__ __forceinline__ void load(const Byte* tile) {
    nibbles = ptx::load_once(reinterpret_cast<const uint2*>(tile) + lane());
    const Byte* const upper = tile + NIBBLES;
    if (HIGH == 1) {  // to the low bytes of both halves
      const unsigned bits = reinterpret_cast<const unsigned short*>(upper)[lane()];
      high = (bits & 0xff) | bits >> 8 << 16;
    }
    if (HIGH == 2) high = ptx::load_once(reinterpret_cast<const unsigned*>(upper) + lane());
  }
  // Values less ZERO.
  template <int ZERO> __device__ __forceinline__ void fragment(int half, unsigned (&a)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      unsigned pair = ptx::masked_or((j / 2 ? nibbles.y : nibbles.x) >> (j % 2 * 8 + half * 4), twice(15), PAIR_OF_128);
      const int from = HIGH * (half * 4 + j);
      if (HIGH) pair = ptx::masked_or(from < 4 ? high << (4 - from) : high >> (from - 4), twice(((1 << HIGH) - 1) << 4), pair);
      a[j] = ptx::add_bf16x2(pair, (PAIR_OF_128 + twice(ZERO)) | MINUS);
    }
  }
};

// Blocks of 32 with 4 + HIGH bits, whose values are less ZERO, or have a minimum.
template <int HIGH, int ZERO, bool HAS_MINIMUM> struct Blocks32 {
  using Element = __nv_bfloat16;
  static constexpr int RUN = 32;
  static constexpr bool MINIMUM = HAS_MINIMUM;
  static constexpr int TILE = Quants<HIGH>::BYTES + (MINIMUM ? 64 : 32);
  struct Raw {
    Quants<HIGH> quants;
    uint2 d_m;
  };

  static __device__ __forceinline__ size_t panel_bytes(int cols) { return size_t(steps(cols)) * TILE; }
  static __device__ __forceinline__ void load(const Byte* panel, int eight, int sub, int, Raw& raw) {
    const Byte* const tile = panel + size_t(eight * 8 + sub) * TILE;
    const Byte* const scales = tile + Quants<HIGH>::BYTES;
    raw.quants.load(tile);
    if (MINIMUM)
      raw.d_m = ptx::load_once(reinterpret_cast<const uint2*>(scales) + lane() / 4);
    else
      raw.d_m.x = ptx::load_once(reinterpret_cast<const unsigned*>(scales) + lane() / 4);
  }
  static __device__ __forceinline__ void fragment(const Raw& raw, int half, unsigned (&a)[4]) {
    raw.quants.template fragment<ZERO>(half, a);
  }
  static __device__ __forceinline__ float2 scale(const Raw& raw, int) { return halves(raw.d_m.x); }
  static __device__ __forceinline__ float2 minimum(const Raw& raw) { return halves(raw.d_m.y); }
};
using Q4_0 = Blocks32<0, 8, false>;
using Q4_1 = Blocks32<0, 0, true>;
using Q5_0 = Blocks32<1, 16, false>;
using Q5_1 = Blocks32<1, 0, true>;

// Q4_K and Q5_K.
template <int HIGH> struct Scaled256 {
  using Element = __nv_bfloat16;
  static constexpr int RUN = 32;
  static constexpr bool MINIMUM = true;
  // Where in a super-tile they begin.
  static constexpr int D_MIN = 8 * Quants<HIGH>::BYTES, LOW_SCALES = D_MIN + 64, HIGH_SCALES = LOW_SCALES + 8 * 16;
  static constexpr int SUPER_TILE = HIGH_SCALES + 8 * 8;
  struct Raw {
    Quants<HIGH> quants;
    uint2 d_min;
    unsigned low_scales, high_scales;
  };

  static __device__ __forceinline__ size_t panel_bytes(int cols) { return size_t(cols / 256) * SUPER_TILE; }
  static __device__ __forceinline__ void load(const Byte* panel, int eight, int sub, int, Raw& raw) {
    const Byte* const super_tile = panel + size_t(eight) * SUPER_TILE;
    const int r = lane() / 4;
    raw.quants.load(super_tile + sub * Quants<HIGH>::BYTES);
    // Eight warps read these, one for each step.
    raw.d_min = __ldg(reinterpret_cast<const uint2*>(super_tile + D_MIN) + r);
    raw.low_scales = __ldg(reinterpret_cast<const unsigned short*>(super_tile + LOW_SCALES) + sub * 8 + r);
    raw.high_scales = __ldg(super_tile + HIGH_SCALES + sub * 8 + r);
  }
  static __device__ __forceinline__ void fragment(const Raw& raw, int half, unsigned (&a)[4]) {
    raw.quants.template fragment<0>(half, a);
  }
  static __device__ __forceinline__ float2 scale(const Raw& raw, int) {
    const float2 d = halves(raw.d_min.x);
    return make_float2(d.x * six_bits(raw, 0), d.y * six_bits(raw, 2));
  }
  static __device__ __forceinline__ float2 minimum(const Raw& raw) {
    const float2 d = halves(raw.d_min.y);
    return make_float2(-d.x * six_bits(raw, 1), -d.y * six_bits(raw, 3));
  }

 private:
  // Scale and min of row r, scale and min of row r + 8.
  static __device__ __forceinline__ float six_bits(const Raw& raw, int i) {
    return float((raw.low_scales >> 4 * i & 15) | (raw.high_scales >> 2 * i & 3) << 4);
  }
};
using Q4_K = Scaled256<0>;
using Q5_K = Scaled256<1>;

struct Q6_K {
  using Element = __nv_bfloat16;
  static constexpr int RUN = 16;
  static constexpr bool MINIMUM = false;
  static constexpr int SCALES = 8 * Quants<2>::BYTES, D = SCALES + 8 * 32, SUPER_TILE = D + 32;
  struct Raw {
    Quants<2> quants;
    unsigned scales, d;
  };

  static __device__ __forceinline__ size_t panel_bytes(int cols) { return size_t(cols / 256) * SUPER_TILE; }
  static __device__ __forceinline__ void load(const Byte* panel, int eight, int sub, int, Raw& raw) {
    const Byte* const super_tile = panel + size_t(eight) * SUPER_TILE;
    const int r = lane() / 4;
    raw.quants.load(super_tile + sub * Quants<2>::BYTES);
    raw.scales = __ldg(reinterpret_cast<const unsigned*>(super_tile + SCALES) + sub * 8 + r);
    raw.d = __ldg(reinterpret_cast<const unsigned*>(super_tile + D) + r);
  }
  static __device__ __forceinline__ void fragment(const Raw& raw, int half, unsigned (&a)[4]) {
    raw.quants.template fragment<32>(half, a);
  }
  static __device__ __forceinline__ float2 scale(const Raw& raw, int half) {
    const float2 d = halves(raw.d);
    const unsigned both = raw.scales >> 16 * half;
    return make_float2(d.x * float(static_cast<signed char>(both & 0xff)), d.y * float(static_cast<signed char>(both >> 8 & 0xff)));
  }
};

// Two elements of a fragment.
__device__ __forceinline__ float2 values(unsigned pair, __half) { return halves(pair); }
__device__ __forceinline__ float2 values(unsigned pair, __nv_bfloat16) {
  return make_float2(__int_as_float(pair << 16), __int_as_float(pair & 0xffff0000));
}

// Products of scales and small whole numbers are exact, and only the addition of a minimum rounds.
template <class T> __device__ __forceinline__ float2 decoded(const typename T::Raw& raw, int half, bool is_upper, float2 x) {
  if constexpr (T::RUN > 0) {
    const float2 scales = T::scale(raw, half);
    const float scale = is_upper ? scales.y : scales.x;
    x = make_float2(scale * x.x, scale * x.y);
  }
  if constexpr (T::MINIMUM) {
    const float2 minimums = T::minimum(raw);
    const float minimum = is_upper ? minimums.y : minimums.x;
    x = make_float2(x.x + minimum, x.y + minimum);
  }
  return x;
}

}  // namespace tiles

// FOR_EACH_TILED_TYPE(INSTANCE) is INSTANCE(suffix of the kernel's name, type) for each, the other for each that files have.
#define FOR_EACH_TILED_TYPE_OF_FILES(INSTANCE) \
  INSTANCE(f16, F16)                           \
  INSTANCE(bf16, BF16)                         \
  INSTANCE(q4_0, Q4_0)                         \
  INSTANCE(q4_1, Q4_1)                         \
  INSTANCE(q5_0, Q5_0)                         \
  INSTANCE(q5_1, Q5_1)                         \
  INSTANCE(q8_0, Q8_0)                         \
  INSTANCE(q4_k, Q4_K)                         \
  INSTANCE(q5_k, Q5_K)                         \
  INSTANCE(q6_k, Q6_K)
#define FOR_EACH_TILED_TYPE(INSTANCE)    \
  FOR_EACH_TILED_TYPE_OF_FILES(INSTANCE) \
  INSTANCE(f8, F8E4M3)
