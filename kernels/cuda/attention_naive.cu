// Causal attention with all scores in memory, the baseline: x = scale q k^T, then the softmax of each row in three passes, then the
// weighted sum of values; out = softmax(x) v per query head. Any head size, every storage type; references are whole, in log2
// units, as everywhere.
//
// Grid (rows, num_heads), 128 threads. Thread t has keys t, t + 128, ... of the scores and of their sum, and elements t and t + 128
// of the answer. Order of the sums: elements of a head ascending; keys of a thread ascending, then a tree over the lanes of each
// warp, then over the warps; values with keys ascending.
//
// Bytes of a row and query head: 2 sizeof(T) head_dim for each key, and 16 for its score, written and read twice. Flops:
// 4 head_dim + 25 per key. One block of threads for each row and head: latency bounds it, and keys are read once per query head.
//
// Launch contract: no dynamic shared memory, no dependent launch; tables and cache as in step.cuh; head_dim <= 256.
#include "attention.cuh"

using namespace attention;

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32, MAX_DIM = 256;

template <class T>
__device__ __forceinline__ void attend(const float* qkv, void* layer, const int* positions, const int* table_starts,
                                       const int* block_tables, float* scores, float* out, Heads heads, int stride,
                                       float log2_scale) {
  SHARED(float, q, MAX_DIM);
  SHARED(float, largest_of_warps, WARPS);
  SHARED(float, sum_of_warps, WARPS);
  const int row = blockIdx.x, head = blockIdx.y, thread = threadIdx.x, lane = thread % 32, context = positions[row] + 1;
  if (context <= 0) return;  // nobody's row
  const int head_dim = heads.head_dim;
  const Keys<T> keys{layer, block_tables + table_starts[row], head / heads.group(), heads.num_kv_heads, head_dim, context};
  scores += (size_t(row) * heads.num_heads + head) * stride;
  for (int d = thread; d < MAX_DIM; d += THREADS) q[d] = d < head_dim ? heads.of(qkv, row, head)[d] * log2_scale : 0.0f;
  __syncthreads();

  float largest = softmax::LOWEST;
  for (int key = thread; key < context; key += THREADS) {
    const float x = softmax::score(product(q, keys.key(key), head_dim) * keys.key_scale(key));
    scores[key] = x;
    largest = softmax::larger(x, largest);
  }
  largest = softmax::warp_largest(largest);
  if (lane == 0) largest_of_warps[thread / 32] = largest;
  __syncthreads();
  const float m = floorf(softmax::warp_largest(lane < WARPS ? largest_of_warps[lane] : softmax::LOWEST));

  float sum = 0.0f;
  for (int key = thread; key < context; key += THREADS) {
    const float p = softmax::exp2_from(scores[key], m);
    scores[key] = p;
    sum += p;
  }
  sum = softmax::warp_sum(sum);
  if (lane == 0) sum_of_warps[thread / 32] = sum;
  __syncthreads();  // for the weights, too
  const float l = softmax::divisor({m, softmax::warp_sum(lane < WARPS ? sum_of_warps[lane] : 0.0f)});

  for (int d = thread; d < head_dim; d += THREADS) {
    float o = 0.0f;
#pragma unroll 4
    for (int key = 0; key < context; key++) {
      o = fmaf(scores[key], elements::to_float(keys.value(key)[d]) * keys.value_scale(key), o);
    }
    out[(size_t(row) * heads.num_heads + head) * head_dim + d] = o / l;
  }
}

}  // namespace

// qkv [rows, qkv_width], turned; scores [rows][num_heads][stride] is working memory, stride at least the longest context; out
// [rows, num_heads * head_dim]. Rows of nobody are left alone.
#define ATTENTION(name, T)                                                                                               \
  extern "C" __global__ void __launch_bounds__(128)                                                                      \
      attention_naive_##name(const float* qkv, void* layer, const int* positions, const int* table_starts,               \
                             const int* block_tables, float* scores, float* out, int num_heads, int num_kv_heads,        \
                             int head_dim, int stride, float log2_scale) {                                               \
    attend<T>(qkv, layer, positions, table_starts, block_tables, scores, out, Heads{num_heads, num_kv_heads, head_dim},   \
              stride, log2_scale);                                                                                       \
  }                                                                                                                      \
  EXPORT_KERNEL(attention_naive_##name)
ATTENTION(bf16, __nv_bfloat16)
ATTENTION(f16, __half)
ATTENTION(f32, float)
ATTENTION(f8, __nv_fp8_e4m3)
