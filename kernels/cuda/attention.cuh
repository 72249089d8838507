// What the attention kernels have in common: which keys a row sees, how they are split, references of the softmax, and the last
// of the blocks of threads that share a row.
//
// Scores are in log2 units and all references whole, so correcting by 2^(m - m') rounds nothing, and the arms have the same
// bits where no weight is below 2^-126 of its reference (kernels/src/cpu/attention/references.rs has the exact condition):
//
// | arm              | reference m of a row and head                                     | computed again, under running ones, if           |
// |------------------|-------------------------------------------------------------------|--------------------------------------------------|
// | ONLINE           | floor of the largest score so far                                 | never                                            |
// | BOUNDED          | floor(B) - 100, B = |q| max|k| scale log2 e bounds all its scores | not 2^-100 keys <= l < 2^126, or o is not finite |
// | CALIBRATED       | phi of the KV head                                                | a score outside (phi + below, phi + above), or so |
// | ONLINE_THRESHOLD | that floor where it was last more than 8 above the one before     | never                                            |
//
// ONLINE_THRESHOLD is the rule of FlashAttention-4: sums are rescaled where a reference has fallen behind by a factor of more than
// 2^8, and weights are less than 2^9. Within a split alone: each begins with a reference of its own. Kernels by multiply-adds, and those over
// f16, take it for ONLINE.
#pragma once
#include "softmax_common.cuh"
#include "step.cuh"

namespace attention {

enum Arm { ONLINE = 0, BOUNDED = 1, CALIBRATED = 2, ONLINE_THRESHOLD = 3 };

// How far the floor of the largest score may be above a running reference, in log2 units.
constexpr float THRESHOLD = 8.0f;

// Whether references are chosen before a row's scores are known.
__device__ __forceinline__ bool is_fixed(int arm) { return arm == BOUNDED || arm == CALIBRATED; }

constexpr int MAX_SPLITS = 32;

// Keys of a split: 64 up to a context of 2048, and never more than 32 splits. It depends on the row's context alone, so that
// the row's bits do, too.
__device__ __forceinline__ int split_len(int context) {
  int len = BLOCK_SIZE;
  while (len * MAX_SPLITS < context) len *= 2;
  return len;
}

// Keys and values of one KV head that a row sees.
template <class T> struct Keys {
  void* layer;
  const int* blocks;  // ids of its sequence's blocks
  int kv_head, num_kv_heads, head_dim;
  int context;  // how many

  __device__ __forceinline__ Piece<T> piece(int tile) const {
    return Piece<T>(layer, blocks[tile], kv_head, num_kv_heads, head_dim);
  }
  __device__ __forceinline__ const T* key(int position) const {
    return piece(position / BLOCK_SIZE).keys + position % BLOCK_SIZE * head_dim;
  }
  __device__ __forceinline__ const T* value(int position) const {
    return piece(position / BLOCK_SIZE).values + position % BLOCK_SIZE * head_dim;
  }
  // What elements that key and value point at are multiples of.
  __device__ __forceinline__ float key_scale(int position) const {
    if constexpr (elements::SCALED<T>) return fabsf(elements::to_float(piece(position / BLOCK_SIZE).scales[position % BLOCK_SIZE].key));
    return 1.0f;
  }
  __device__ __forceinline__ float value_scale(int position) const {
    if constexpr (elements::SCALED<T>) return fabsf(elements::to_float(piece(position / BLOCK_SIZE).scales[position % BLOCK_SIZE].value));
    return 1.0f;
  }
  // The largest length of a key; a whole warp calls it.
  __device__ __forceinline__ float longest() const {
    const int last = (context - 1) / BLOCK_SIZE;
    float longest = 0.0f;
    for (int tile = threadIdx.x % 32; tile <= last; tile += 32) {
      const int place = tile < last ? BLOCK_SIZE - 1 : (context - 1) % BLOCK_SIZE;
      longest = softmax::larger(piece(tile).key_lengths[place], longest);
    }
    return softmax::warp_largest(longest);
  }
};

// q.k of one key by one thread: elements ascending, a fused multiply-add each. q is followed by zeros up to a multiple of 8.
template <class T> __device__ __forceinline__ float product(const float* q, const T* key, int head_dim) {
  float x = 0.0f;
#pragma unroll 2
  for (int chunk = 0; chunk * elements::CHUNK < head_dim; chunk++) {
    float k[elements::CHUNK];
    elements::load_chunk(key, chunk, head_dim, k);
#pragma unroll
    for (int i = 0; i < elements::CHUNK; i++) x = fmaf(q[chunk * elements::CHUNK + i], k[i], x);
  }
  return x;
}

// floor(B) - 100 of a query of this length, in log2 units. A score is a sum of head_dim products in float32, and the two
// lengths are such sums: room is left for what their rounding may add to the bound.
__device__ __forceinline__ float bounded_reference(float query_length, float longest_key, int head_dim) {
  const float rounding = 1.0f + float(4 * head_dim + 64) * 1.1920929e-7f;
  return floorf(query_length * longest_key * rounding) - 100.0f;
}

// Whether a sum of so many weights under a fixed reference holds their softmax: what was lost below 2^-126 of the reference is
// less than 2^-26 of l if 2^-100 keys <= l, and no weight was cut at 2^127 if l < 2^126.
__device__ __forceinline__ bool fits(float l, int keys) { return float(keys) * 7.888609e-31f <= l && l < 8.507059e37f; }

// How the sums of two sets of keys become those of both; scales are exact powers of two, one of them 1.
struct Merging {
  softmax::State state;
  float my_scale, their_scale;

  __device__ __forceinline__ Merging(softmax::State mine, softmax::State theirs) : state(softmax::merge(mine, theirs)) {
    my_scale = softmax::power_of_two(mine.m - state.m);
    their_scale = softmax::power_of_two(theirs.m - state.m);
  }
  // Adding zero makes a negative zero positive: then merging into nothing first changes no bit.
  __device__ __forceinline__ float sum(float mine, float theirs) const {
    return fmaf(theirs + 0.0f, their_scale, mine * my_scale);
  }
};

// Whether this block of threads is the last of `blocks` that come here; what all of them published before may then be read.
// `place` is shared, for one number; *ticket is zero before and after.
__device__ __forceinline__ bool is_last(unsigned* ticket, unsigned blocks, unsigned* place) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // what was published before the ticket
    *place = atomicInc(ticket, blocks - 1);
    __threadfence();  // the tickets before what others published
  }
  __syncthreads();
  return *place == blocks - 1;
}

}  // namespace attention
