// The arithmetic of softmax that kernels share: 2^x under whole references, states (m, l) and their merging.
//
// Units, masks and references are those of kernels/src/softmax: scores in log2 units; a score below LOWEST is masked; the
// reference m of a set of elements is the floor of the largest, so a change of reference multiplies by an exact power of two.
// NaN or plus infinity in a row makes the whole row NaN, through l.
#pragma once
#include "cuda.cuh"

namespace softmax {

// The lowest score that is not masked, -2^99: the reference of no elements. Finite, so that differences need no special case.
constexpr float LOWEST = -6.338253e29f;
// What masked scores are read as: their weight is zero under every reference.
constexpr float MASKED = 2.0f * LOWEST;

// A score as it is read. A comparison with NaN is false, so NaN stays.
__device__ __forceinline__ float score(float x) { return x < LOWEST ? MASKED : x; }

// The larger; what is not a number is left out, and returns through the sum.
__device__ __forceinline__ float larger(float x, float m) { return x > m ? x : m; }

// 2^n of a whole n; zero from 2^-127 down, and 2^127 from there up.
__device__ __forceinline__ float power_of_two(float n) {
  const int exponent = __float2int_rz(fminf(fmaxf(n, -127.0f), 127.0f)) + 127;
  return __int_as_float(exponent << 23);
}

// 2^(x - m) of a whole m: a polynomial of the fraction (near-minimax, relative error 7.5e-8; the coefficients of
// kernels/src/cpu/vector_math.rs), scaled in the exponent. Six multiply-adds, where ex2.approx would round differently under
// every reference.
__device__ __forceinline__ float exp2_from(float x, float m) {
  const float floor = floorf(x), fraction = x - floor;
  float p = 0.0018775767f;
  p = fmaf(p, fraction, 0.00898934f);
  p = fmaf(p, fraction, 0.055826318f);
  p = fmaf(p, fraction, 0.24015362f);
  p = fmaf(p, fraction, 0.6931531f);
  p = fmaf(p, fraction, 0.99999994f);
  return p * power_of_two(floor - m);
}

// Reference and sum of a set of elements: l = sum 2^(x - m).
struct alignas(8) State {
  float m, l;
};

__device__ __forceinline__ State empty_state() { return {LOWEST, 0.0f}; }

// The state of the elements of both. One of the scales is 1, the other an exact power of two: one rounded addition, which
// commutes to the bit.
__device__ __forceinline__ State merge(State a, State b) {
  const float m = larger(a.m, b.m);
  return {m, a.l * power_of_two(a.m - m) + b.l * power_of_two(b.m - m)};
}

// Takes in N scores with one correction: m' = max(m, floor of the largest), l' = l 2^(m - m') + sum 2^(x - m').
template <int N> __device__ __forceinline__ State take_in(State state, const float (&x)[N]) {
  float largest = state.m;
#pragma unroll
  for (int i = 0; i < N; i++) largest = larger(x[i], largest);
  const float m = floorf(largest);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) sum += exp2_from(x[i], m);
  return {m, fmaf(state.l, power_of_two(state.m - m), sum)};
}

// What weights are divided by: l, and 1 where all is masked, so that zeros stay zeros.
__device__ __forceinline__ float divisor(State state) { return state.l == 0.0f ? 1.0f : state.l; }

constexpr unsigned ALL_LANES = 0xffffffffu;

// The state of a warp's elements, to the same bits in every lane: the order of additions is that of a tree.
__device__ __forceinline__ State warp_state(State state) {
#pragma unroll
  for (int bits = 16; bits; bits /= 2) {
    const State other = {__shfl_xor_sync(ALL_LANES, state.m, bits), __shfl_xor_sync(ALL_LANES, state.l, bits)};
    state = merge(state, other);
  }
  return state;
}

__device__ __forceinline__ float warp_largest(float x) {
#pragma unroll
  for (int bits = 16; bits; bits /= 2) x = larger(__shfl_xor_sync(ALL_LANES, x, bits), x);
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int bits = 16; bits; bits /= 2) x += __shfl_xor_sync(ALL_LANES, x, bits);
  return x;
}

// The state of a block's elements in every thread: a tree in each warp, then the same tree over the warps, in every warp, so
// that one barrier is enough. `of_warps` has a place per warp, used for this alone.
__device__ __forceinline__ State block_state(State state, State* of_warps, unsigned warps) {
  const unsigned lane = threadIdx.x % 32;
  state = warp_state(state);
  if (lane == 0) of_warps[threadIdx.x / 32] = state;
  __syncthreads();
  return warp_state(lane < warps ? of_warps[lane] : empty_state());
}

}  // namespace softmax
