// Data types of CUDA: vectors, bfloat16, float16 and the 8-bit float e4m3.
//
// Models: sizes, alignments and conversions; conversions to 16 and 8 bits round to nearest, ties to even, as the hardware
// does. Leaves out: arithmetic in the narrow types, but for the one addition below. Kernels convert to float32,
// compute, and convert back.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr size_t count() const { return size_t(x) * y * z; }
};

#define SIM_VECTOR2(T, NAME) \
  struct alignas(2 * sizeof(T)) NAME { T x, y; }; \
  inline NAME make_##NAME(T x, T y) { return {x, y}; }
#define SIM_VECTOR4(T, NAME) \
  struct alignas(4 * sizeof(T)) NAME { T x, y, z, w; }; \
  inline NAME make_##NAME(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTOR2(float, float2)
SIM_VECTOR4(float, float4)
SIM_VECTOR2(int, int2)
SIM_VECTOR4(int, int4)
SIM_VECTOR2(unsigned, uint2)
SIM_VECTOR4(unsigned, uint4)
#undef SIM_VECTOR2
#undef SIM_VECTOR4

template <class To, class From> inline To sim_bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float x) { return sim_bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return sim_bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return sim_bit_cast<float>(x); }
inline float __int_as_float(int x) { return sim_bit_cast<float>(x); }

struct __nv_bfloat16 { uint16_t bits; };

inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16(float x) {
  if (std::isnan(x)) return {0x7fff};
  const unsigned bits = __float_as_uint(x);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// The bytes of x (0 to 3) and y (4 to 7) that the nibbles of `selector` name.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = uint64_t(y) << 32 | x;
  unsigned chosen = 0;
  for (int i = 0; i < 4; i++) chosen |= unsigned(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return chosen;
}

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }

namespace ptx {
inline unsigned masked_or(unsigned x, unsigned mask, unsigned bits) { return (x & mask) | bits; }
// Pairs of bfloat16: a + b or a * b, each rounded once.
template <class F> unsigned of_pairs_bf16(unsigned a, unsigned b, F f) {
  const auto of = [&](int half) {
    const auto value = [&](unsigned pair) { return __bfloat162float({uint16_t(pair >> 16 * half)}); };
    return unsigned(__float2bfloat16(f(value(a), value(b))).bits);
  };
  return of(0) | of(1) << 16;
}
inline unsigned add_bf16x2(unsigned a, unsigned b) {
  return of_pairs_bf16(a, b, [](float x, float y) { return x + y; });
}
inline unsigned multiply_bf16x2(unsigned a, unsigned b) {
  return of_pairs_bf16(a, b, [](float x, float y) { return x * y; });
}
}  // namespace ptx

namespace sim {
// The nearest number with `significand` bits after the leading one and least exponent `lowest`, which is also the exponent
// of subnormal numbers; ties to even.
inline float round_to(float x, int significand, int lowest) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const int last = (exponent - 1 < lowest ? lowest : exponent - 1) - significand;
  return std::ldexp(std::nearbyint(std::ldexp(x, -last)), last);
}
}  // namespace sim

struct __half { uint16_t bits; };

inline float __half2float(__half x) {
  const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  const float sign = x.bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(float(1024 + fraction), exponent - 25) : std::ldexp(float(fraction), -24));
}
inline __half __float2half(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return {0x7fff};
  const float rounded = std::fabs(sim::round_to(x, 10, -14));
  if (rounded >= 65536.0f) return {uint16_t(sign | 0x7c00)};
  if (rounded < std::ldexp(1.0f, -14)) return {uint16_t(sign | int(std::ldexp(rounded, 24)))};
  int exponent;
  const float fraction = std::frexp(rounded, &exponent);  // in [0.5, 1)
  return {uint16_t(sign | (exponent + 14) << 10 | (int(std::ldexp(fraction, 11)) & 1023))};
}

inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }

// Four exponent bits of bias 7, three of significand, no infinity; what is too large becomes 448.
struct __nv_fp8_e4m3 {
  uint8_t __x;
  __nv_fp8_e4m3() = default;
  explicit __nv_fp8_e4m3(float x) {
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    const float rounded = std::fmin(std::fabs(sim::round_to(x, 3, -6)), 448.0f);
    if (std::isnan(x)) {
      __x = 0x7f;
    } else if (rounded < std::ldexp(1.0f, -6)) {
      __x = uint8_t(sign | int(std::ldexp(rounded, 9)));
    } else {
      int exponent;
      const float fraction = std::frexp(rounded, &exponent);
      __x = uint8_t(sign | (exponent + 6) << 3 | (int(std::ldexp(fraction, 4)) & 7));
    }
  }
  explicit operator float() const {
    const int exponent = __x >> 3 & 15, fraction = __x & 7;
    const float sign = __x & 0x80 ? -1.0f : 1.0f;
    if (exponent == 15 && fraction == 7) return NAN;
    return sign * (exponent ? std::ldexp(float(8 + fraction), exponent - 10) : std::ldexp(float(fraction), -9));
  }
};
