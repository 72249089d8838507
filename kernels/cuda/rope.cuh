// Rotation of pairs of a head, and how a key is rounded for the cache, to the same bits in every kernel that does it.
#pragma once
#include "softmax_common.cuh"
#include "step.cuh"

namespace rope {

// Which pairs of a head turn: (2i, 2i + 1), or (i, i + rotary_dim / 2).
enum PairKind { ADJACENT_PAIRS = 0, HALF_SPLIT = 1 };

// A row's angles, [cos of all pairs | sin of all pairs].
struct Rotation {
  const float* angles;
  int rotary_dim, kind;

  __device__ __forceinline__ int first(int pair) const { return kind == ADJACENT_PAIRS ? 2 * pair : pair; }
  __device__ __forceinline__ int second(int pair) const { return kind == ADJACENT_PAIRS ? 2 * pair + 1 : pair + rotary_dim / 2; }
  __device__ __forceinline__ float2 turned(const float* head, int pair) const {
    const float cos = angles[pair], sin = angles[rotary_dim / 2 + pair], x = head[first(pair)], y = head[second(pair)];
    return make_float2(fmaf(x, cos, -(y * sin)), fmaf(x, sin, y * cos));
  }
};

// Rounds as the cache does; the square of what came out is added to `squares`.
template <class T> __device__ __forceinline__ T rounded(float x, float& squares) {
  const T element = elements::from_float<T>(x);
  const float again = elements::to_float(element);
  squares = fmaf(again, again, squares);
  return element;
}

// Stores a head; this lane's part of the sum of its squares, as they were rounded. The whole warp calls it.
template <class T> __device__ __forceinline__ float store_head(const float* head, StoredHead<T> to, int head_dim) {
  const int lane = threadIdx.x % 32;
  float squares = 0.0f;
  if constexpr (elements::SCALED<T>) {
    float largest = 0.0f;
    bool all_finite = true;
    for (int d = lane; d < head_dim; d += 32) {
      const float x = fabsf(head[d]);
      if (x < INFINITY) largest = softmax::larger(x, largest);
      else all_finite = false;
    }
    all_finite = __all_sync(softmax::ALL_LANES, all_finite);
    const float exponent = elements::scale_exponent(softmax::warp_largest(largest));
    const float up = softmax::power_of_two(exponent), down = softmax::power_of_two(-exponent);
    for (int d = lane; d < head_dim; d += 32) {
      to.elements[d] = elements::scaled_down(head[d], down);
      const float again = elements::to_float(to.elements[d]) * up;
      squares = fmaf(again, again, squares);
    }
    if (lane == 0) *to.scale = elements::from_float<__nv_bfloat16>(all_finite ? up : -up);
  } else {
    for (int d = lane; d < head_dim; d += 32) to.elements[d] = rounded<T>(head[d], squares);
  }
  return squares;
}

// Turns a key head in place and stores it; its length, as it was rounded. The whole warp calls it.
template <class T> __device__ __forceinline__ float store_key(Rotation rotation, float* key, StoredHead<T> to, int head_dim) {
  const int lane = threadIdx.x % 32;
  float squares = 0.0f;
  for (int pair = lane; pair < rotation.rotary_dim / 2; pair += 32) {
    const int first = rotation.first(pair), second = rotation.second(pair);
    const float2 turned = rotation.turned(key, pair);
    key[first] = turned.x;
    key[second] = turned.y;
    if constexpr (!elements::SCALED<T>) {
      to.elements[first] = rounded<T>(turned.x, squares);
      to.elements[second] = rounded<T>(turned.y, squares);
    }
  }
  if constexpr (elements::SCALED<T>) {
    __syncwarp();
    squares = store_head(key, to, head_dim);
  } else {
    for (int d = rotation.rotary_dim + lane; d < head_dim; d += 32) to.elements[d] = rounded<T>(key[d], squares);
  }
  return sqrtf(softmax::warp_sum(squares));
}

}  // namespace rope
