// Elements of the float types (float, __half, __nv_bfloat16; __nv_fp8_e4m3 with a scale for each head): one at a time, or eight
// consecutive ones of a row.
#pragma once
#include "cuda.cuh"

namespace elements {

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__nv_fp8_e4m3 x) { return float(x); }

// Whether a head of this type is what is stored times a power of two of its own.
template <class T> inline constexpr bool SCALED = false;
template <> inline constexpr bool SCALED<__nv_fp8_e4m3> = true;

// The exponent of that power of two for a head whose largest finite magnitude is `largest`: divided by it, this lies in (224, 448],
// the end of e4m3's range. At least -124, so that what is stored times it is a multiple of 2^-133, and so a bfloat16 number (infinite where it rounds to 2^128).
__device__ __forceinline__ float scale_exponent(float largest) {
  const int bits = __float_as_int(largest);
  return float(max((bits >> 23) - 127 - ((bits & 0x7fffff) > 0x600000 ? 7 : 8), -124));
}
// e4m3 has no infinity: what is not finite is not a number.
__device__ __forceinline__ __nv_fp8_e4m3 scaled_down(float x, float down) {
  return __nv_fp8_e4m3(x - x == 0.0f ? x * down : NAN);
}

// Rounds to nearest, ties to even.
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_float<__half>(float x) { return __float2half(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16(x); }

// Elements that are read together; a chunk of a row.
constexpr int CHUNK = 8;

template <class T> struct alignas(CHUNK * sizeof(T) < 16 ? CHUNK * sizeof(T) : 16) Chunk {
  T at[CHUNK];
};

// Elements 8 chunk to 8 chunk + 7 of a row of `len`; zeros beyond its end. `row` starts at a multiple of 16 bytes (of
// 8 where elements are bytes) where `len` is a multiple of 8.
template <class T> __device__ __forceinline__ void load_chunk(const T* row, int chunk, int len, float (&to)[CHUNK]) {
  if (len % CHUNK == 0) {
    const Chunk<T> from = reinterpret_cast<const Chunk<T>*>(row)[chunk];
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = to_float(from.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
      const int at = chunk * CHUNK + i;
      to[i] = at < len ? to_float(row[at]) : 0.0f;
    }
  }
}

// SwiGLU's middle.
__device__ __forceinline__ float silu_mul(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

__device__ __forceinline__ int divided_up(int a, int b) { return (a + b - 1) / b; }

}  // namespace elements
