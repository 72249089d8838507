// Rows of q, k and v as a product left them: what norms of query and key heads (or none) and the rotation make of a head, to the
// bits of qk_norm and rope_kv_store.
#pragma once
#include "rms.cuh"
#include "rope.cuh"

namespace rope {

// How a row's heads become those that attention reads. Functions are called by a whole warp.
struct Unturned {
  Rotation rotation;
  const float *q_weight, *k_weight;  // [head_dim], or null
  float eps;

  // Asks for what no kernel writes, into the second-level cache; two warps do.
  __device__ __forceinline__ void prefetch(int head_dim) const {
    constexpr int FLOATS = 32;  // of a line of the cache
    const int at = threadIdx.x % 32 * FLOATS;
    const float* const weight = threadIdx.x < 32 ? q_weight : threadIdx.x < 64 ? k_weight : nullptr;
    if (weight && at < head_dim) ptx::prefetch(weight + at);
  }
  // Copies a head, normed if there is a weight.
  __device__ __forceinline__ void copy_head(const float* from, const float* weight, int head_dim, float* to) const {
    const float scale = weight ? rms::scale_of_head(from, head_dim, eps) : 1.0f;
    for (int d = threadIdx.x % 32; d < head_dim; d += 32) to[d] = weight ? from[d] * scale * weight[d] : from[d];
    __syncwarp();
  }
  // A query, normed, turned and times `scale`.
  __device__ __forceinline__ void bring_query(const float* from, int head_dim, float scale, float* to) const {
    copy_head(from, q_weight, head_dim, to);
    const int lane = threadIdx.x % 32;
    for (int pair = lane; pair < rotation.rotary_dim / 2; pair += 32) {
      const float2 turned = rotation.turned(to, pair);
      to[rotation.first(pair)] = turned.x * scale;
      to[rotation.second(pair)] = turned.y * scale;
    }
    for (int d = rotation.rotary_dim + lane; d < head_dim; d += 32) to[d] *= scale;
    __syncwarp();
  }
  // A key, normed, turned and rounded; its length, as it was rounded. `turning` is room for a head.
  template <class T>
  __device__ __forceinline__ float bring_key(const float* from, int head_dim, float* turning, StoredHead<T> to) const {
    copy_head(from, k_weight, head_dim, turning);
    return store_key(rotation, turning, to, head_dim);
  }
};

}  // namespace rope
