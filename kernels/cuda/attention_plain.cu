// Causal attention over the paged cache, for every head size up to 256 and every storage type: out = softmax(scale q k^T) v per
// query head, with fused multiply-adds alone. What attention on tensor cores is checked against, and what runs in its place
// for odd shapes.
//
// Grid (rows, num_kv_heads * ceil(group / 8), any), 128 threads. Block (row, y, z) has up to 8 query heads of one KV head and
// the splits z, z + gridDim.z, ... of the keys that the row sees; the block that takes the last ticket merges the states of all
// splits in index order. The length of a split depends on the length of the context alone (split_len), and a block that is
// alone merges the same states in the same order as it goes: gridDim.z changes no bit, only how many blocks share a row.
// Decoding wants gridDim.z = 32, a prompt of hundreds of rows 1.
//
// A split goes by in tiles of 64 keys, one block of the cache each. Scores: warp w has heads w and w + 4, lane i keys i and
// i + 32. Values: thread t has elements t and t + 128 of all heads. Weights cross from one to the other in shared memory,
// twice buffered, so that a tile has one barrier.
//
// Order of the sums, all by fused multiply-adds. q.k: elements ascending. l: lane i adds up keys i, i + 32 of a tile and its tiles,
// then a tree over the lanes. o: keys ascending. Splits: index order.
//
// Bytes of a row, KV head and 8 query heads: 2 sizeof(T) head_dim for each key, and states of 8 (head_dim + 2) * 4 for each split,
// written and read once. Flops: 4 head_dim per key and query head, and about 25 for the weight. From one row to the next keys come
// from the second-level cache. A tile of 64 keys of 128 bf16 elements takes an SM some 1800 cycles of shared memory and first-level
// cache, and its share of 4.3 TB/s brings one in 1000 ns: DRAM and the load units are nearly balanced for long decoding, latency
// bounds short ones, the load units prompts. Computed, not measured.
//
// Launch contract: no dynamic shared memory, no dependent launch; tables and cache as in step.cuh; tickets are zero before and after.
#include "attention_plain.cuh"

using namespace attention;

namespace {

// Queries that were turned, and keys that were stored.
struct Turned {
  static constexpr bool WITH_NEWEST = false;

  template <class T>
  __device__ __forceinline__ void bring(const Arguments& given, const Call<T>& call, Shared& shared, int first_head) const {
    const int head_dim = given.heads.head_dim;
    for (int i = threadIdx.x; i < HEADS * MAX_DIM; i += THREADS) {
      const int head = i / MAX_DIM, d = i % MAX_DIM;
      const bool there = head < call.heads && d < head_dim;
      const float* const query = given.heads.of(given.qkv, blockIdx.x, first_head + head);
      shared.q[head][d] = there ? query[d] * given.log2_scale : 0.0f;
    }
  }
};

// Blocks of threads that a multiprocessor holds at least; the compiler wants more for compute capability 12, and spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int RESIDENT = 2;
#else
constexpr int RESIDENT = 1;
#endif

}  // namespace

// qkv [rows, qkv_width], turned; layer, positions, table_starts and block_tables as in step.cuh. ranges [num_kv_heads][3] = phi,
// below, above, read under arm 2 only (below may be minus infinity; above is at most 127). states [rows][gridDim.y][32][8 (head_dim + 2)]
// and tickets [rows][gridDim.y] may be null if gridDim.z is 1. *recomputed is added the (row, head) pairs that were computed again.
// out [rows, num_heads * head_dim]; rows of nobody are left alone. head_dim <= 256; log2_scale is the factor on q.k times log2 e.
#define ATTENTION(name, T)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(128, RESIDENT)                                                               \
      attention_plain_##name(const float* qkv, void* layer, const int* positions, const int* table_starts,                  \
                             const int* block_tables, const float* ranges, float* states, unsigned* tickets,                \
                             unsigned* recomputed, float* out, int num_heads, int num_kv_heads, int head_dim,               \
                             float log2_scale, int arm) {                                                                   \
    const Heads heads{num_heads, num_kv_heads, head_dim};                                                                   \
    attend<T>(Arguments{qkv, layer, positions, table_starts, block_tables, ranges, states, tickets, recomputed, out, heads, \
                        log2_scale, arm},                                                                                   \
              Turned{});                                                                                                    \
  }                                                                                                                         \
  EXPORT_KERNEL(attention_plain_##name)
ATTENTION(bf16, __nv_bfloat16)
ATTENTION(f16, __half)
ATTENTION(f32, float)
