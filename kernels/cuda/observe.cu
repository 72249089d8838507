// How large attention's scores are, for calibration: x = scale log2 e q.k of every row, query head and key that it sees, counted by
// floor(x) and KV head, and the largest of each row and head likewise (kernels/src/scores.rs).
//
// Grid (rows, num_heads), 128 threads; thread t has keys t, t + 128, ... Products as those of attention. Counts are integers, so
// their order decides nothing.
//
// Bytes of a row and query head: sizeof(T) head_dim and an atomic addition for each key. Flops: 2 head_dim per key. The additions
// bound it; it runs for calibration alone.
//
// Launch contract: no dynamic shared memory, no dependent launch; tables and cache as in step.cuh; head_dim <= 256.
#include "attention.cuh"

using namespace attention;

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32, MAX_DIM = 256;
// Floors that are counted apart are -LIMIT to LIMIT; what lies beyond counts as the nearer end, what is not a number as the upper.
constexpr int LIMIT = 1024, FLOORS = 2 * LIMIT + 1;

__device__ __forceinline__ void count(unsigned* counts, float x) {
  const float floor = x == x ? fminf(fmaxf(floorf(x), float(-LIMIT)), float(LIMIT)) : float(LIMIT);
  atomicAdd(counts + __float2int_rz(floor) + LIMIT, 1u);
}

template <class T>
__device__ __forceinline__ void observe(const float* qkv, void* layer, const int* positions, const int* table_starts,
                                        const int* block_tables, unsigned* counts, Heads heads, float log2_scale) {
  SHARED(float, q, MAX_DIM);
  SHARED(float, largest_of_warps, WARPS);
  const int row = blockIdx.x, head = blockIdx.y, thread = threadIdx.x, lane = thread % 32, context = positions[row] + 1;
  if (context <= 0) return;  // nobody's row
  const int head_dim = heads.head_dim, kv_head = head / heads.group();
  const Keys<T> keys{layer, block_tables + table_starts[row], kv_head, heads.num_kv_heads, head_dim, context};
  unsigned *const all = counts + 2 * kv_head * FLOORS, *const of_largest = all + FLOORS;
  for (int d = thread; d < MAX_DIM; d += THREADS) q[d] = d < head_dim ? heads.of(qkv, row, head)[d] * log2_scale : 0.0f;
  __syncthreads();

  float largest = -INFINITY;
  for (int key = thread; key < context; key += THREADS) {
    const float x = product(q, keys.key(key), head_dim) * keys.key_scale(key);
    count(all, x);
    largest = softmax::larger(x, largest);
  }
  largest = softmax::warp_largest(largest);
  if (lane == 0) largest_of_warps[thread / 32] = largest;
  __syncthreads();
  largest = softmax::warp_largest(lane < WARPS ? largest_of_warps[lane] : -INFINITY);
  if (thread == 0) count(of_largest, largest);
}

}  // namespace

// qkv [rows, qkv_width], turned. counts [num_kv_heads][2][2049] are added to: all scores, then the largest, by floor from -1024 on.
#define OBSERVE(name, T)                                                                                              \
  extern "C" __global__ void __launch_bounds__(128)                                                                   \
      observe_scores_##name(const float* qkv, void* layer, const int* positions, const int* table_starts,             \
                            const int* block_tables, unsigned* counts, int num_heads, int num_kv_heads, int head_dim, \
                            float log2_scale) {                                                                       \
    observe<T>(qkv, layer, positions, table_starts, block_tables, counts, Heads{num_heads, num_kv_heads, head_dim},   \
               log2_scale);                                                                                           \
  }                                                                                                                   \
  EXPORT_KERNEL(observe_scores_##name)
OBSERVE(bf16, __nv_bfloat16)
OBSERVE(f16, __half)
OBSERVE(f32, float)
OBSERVE(f8, __nv_fp8_e4m3)
