// Attention of rows that are the only one of their sequence in the step, from rows of q, k and v as the product left them: norms
// of query and key heads (or none), rotation, the store of key and value, and out = softmax(scale q k^T) v. To the bits, in the
// output, the cache and the count, of qk_norm, rope_kv_store and attention_plain one after the other.
//
// Grid (rows, num_kv_heads * ceil(group / 8), any), 128 threads; the division of the work, the order of sums and the bounds are
// those of attention_plain.cu. Every block turns its queries and the row's key and rounds key and value itself, in shared memory: some hundred
// bytes and instructions a thread, and no block waits for another's. It uses them in place of what the cache has at the row's
// position, which one block of each row and KV head writes in this launch and none reads. The length of the new key, which the bound
// of BOUNDED needs in every split, is computed in the same way by each.
//
// Bytes beyond those of attention_plain.cu: 2 sizeof(T) num_kv_heads head_dim of a row stored, and 8 head_dim of key and value and
// 4 rotary_dim of angles read by each block, from the second-level cache. It saves one launch, or two. Computed, not measured.
//
// Before it waits for the kernel before it (ptx.cuh) it reads weights alone, which nothing writes while a model is loaded: q_weight
// and k_weight are asked for into the second-level cache.
//
// Launch contract: no dynamic shared memory; may be launched with the attribute of programmatic stream serialization, and without;
// tables and cache as in step.cuh; tickets are zero before and after. No two rows of the step are of one sequence: a row would not
// see keys that others store in the launch. So guesses of speculation and pieces of prompts take rope_kv_store and attention_plain.
// The place of a key is that of its position in block_tables, as slots would say; rows of nobody (position -1) store nothing. qkv is
// left as it is.
#include "attention_plain.cuh"
#include "unturned.cuh"

using namespace attention;

namespace {

// Key and value of a row, rounded; the key as it turns.
template <class T> struct alignas(16) NewestMemory {
  T key[MAX_DIM], value[MAX_DIM];
  float turning[MAX_DIM];
  float length;
};

// Rows as the product left them.
template <class T> struct Raw {
  static constexpr bool WITH_NEWEST = true;

  rope::Unturned unturned;

  __device__ __forceinline__ void bring(const Arguments& given, Call<T>& call, Shared& shared, int first_head) const {
    SHARED(NewestMemory<T>, memory, 1);
    NewestMemory<T>& newest = memory[0];
    const Heads heads = given.heads;
    const int warp = threadIdx.x / 32, head_dim = heads.head_dim, kv_head = call.keys.kv_head;
    for (int i = threadIdx.x; i < HEADS * MAX_DIM; i += THREADS) {
      const int head = i / MAX_DIM, d = i % MAX_DIM;
      if (head >= call.heads || d >= head_dim) shared.q[head][d] = 0.0f;
    }
    for (int head = warp; head < call.heads; head += WARPS)
      unturned.bring_query(heads.of(given.qkv, blockIdx.x, first_head + head), head_dim, given.log2_scale, shared.q[head]);

    // The last warp has the fewest queries.
    if (warp == WARPS - 1) {
      const float* const key = heads.of(given.qkv, blockIdx.x, heads.num_heads + kv_head);
      const float length = unturned.bring_key(key, head_dim, newest.turning, StoredHead<T>{newest.key, nullptr});
      if (threadIdx.x % 32 == 0) newest.length = length;
    }
    const float* const value = heads.of(given.qkv, blockIdx.x, heads.num_heads + heads.num_kv_heads + kv_head);
    for (int d = threadIdx.x; d < head_dim; d += THREADS) newest.value[d] = elements::from_float<T>(value[d]);
    call.newest = {newest.key, newest.value, &newest.length};
  }

  // Behind the barrier: puts the newest key and value into the cache.
  __device__ __forceinline__ void store(const Call<T>& call) const {
    const int position = call.keys.context - 1, place = position % BLOCK_SIZE, head_dim = call.keys.head_dim;
    const Piece<T> piece = call.keys.piece(position / BLOCK_SIZE);
    for (int d = threadIdx.x; d < head_dim; d += THREADS) {
      piece.keys[place * head_dim + d] = call.newest.key[d];
      piece.values[place * head_dim + d] = call.newest.value[d];
    }
    // A length that is not a number bounds nothing; it is left out.
    if (threadIdx.x == 0)
      piece.key_lengths[place] = softmax::larger(*call.newest.length, place == 0 ? 0.0f : piece.key_lengths[place - 1]);
  }
};

// Blocks of threads that a multiprocessor holds at least; the compiler wants more for compute capability 12, and spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int RESIDENT = 2;
#else
constexpr int RESIDENT = 1;
#endif

}  // namespace

// qkv [rows, qkv_width], not turned; angles [rows, rotary_dim]; q_weight, k_weight [head_dim], or both null; 0 <= rotary_dim <=
// head_dim, even; kind is 0 for adjacent pairs, 1 for half split. The rest as attention_plain_T has it.
#define ATTENTION_DECODE(name, T)                                                                                           \
  extern "C" __global__ void __launch_bounds__(128, RESIDENT)                                                               \
      attention_decode_##name(const float* qkv, const float* angles, const float* q_weight, const float* k_weight,          \
                              void* layer, const int* positions, const int* table_starts, const int* block_tables,          \
                              const float* ranges, float* states, unsigned* tickets, unsigned* recomputed, float* out,      \
                              int num_heads, int num_kv_heads, int head_dim, int rotary_dim, int kind, float eps,           \
                              float log2_scale, int arm) {                                                                  \
    const rope::Rotation rotation{angles + size_t(blockIdx.x) * rotary_dim, rotary_dim, kind};                              \
    const Heads heads{num_heads, num_kv_heads, head_dim};                                                                   \
    const Raw<T> source{{rotation, q_weight, k_weight, eps}};                                                               \
    source.unturned.prefetch(head_dim);                                                                                     \
    ptx::let_next_start();                                                                                                  \
    ptx::wait_for_previous();                                                                                               \
    attend<T>(Arguments{qkv, layer, positions, table_starts, block_tables, ranges, states, tickets, recomputed, out, heads, \
                        log2_scale, arm},                                                                                   \
              source);                                                                                                      \
  }                                                                                                                         \
  EXPORT_KERNEL(attention_decode_##name)
ATTENTION_DECODE(bf16, __nv_bfloat16)
ATTENTION_DECODE(f16, __half)
ATTENTION_DECODE(f32, float)
