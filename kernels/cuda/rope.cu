// Rotary position embedding: pair i of a head is turned by position * inv_freq[i] radians, x' = x cos - y sin and
// y' = x sin + y cos; and the store of turned keys, and of values, into the paged cache (step.cuh has its layout).
//
// | kernel          | grid               | threads | bytes                                                     | flops of a pair |
// |-----------------|--------------------|---------|-----------------------------------------------------------|-----------------|
// | rope_angles     | rows               | 128     | 4 rotary_dim a row written                                | sincos, float64 |
// | rope_kv_store_T | rows, num_kv_heads | 128     | of a row: 8 (heads + kv_heads) head_dim turned in place,  | 6               |
// |                 |                    |         | (4 + sizeof T) 2 kv_heads head_dim stored                 |                 |
//
// Block (row, kv_head) of rope_kv_store turns the row's query heads of that KV head. The first row of those that a block of the
// cache gets in this step does the keys and values for all of them, a warp per row: then one block of threads knows the lengths
// of them all, and the largest up to each place needs no atomic operation.
// Some KB a row, in the second-level cache: the launch bounds them (2 us). rope_angles once a step: its float64
// arithmetic is 1/64 of that of float32 on consumer cards, and there still below a microsecond a row. sincos keeps 40 bytes of
// stack for angles beyond 2^31.
//
// Launch contract of all: no dynamic shared memory, no dependent launch.
#include "rope.cuh"

using namespace rope;

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;

// Whether no earlier row of this step goes to the same block of the cache.
__device__ __forceinline__ bool is_first_of_block(const int* slots, int row) {
  return slots[row] % BLOCK_SIZE == 0 || row == 0 || slots[row - 1] + 1 != slots[row];
}

// Rows from `row` on that go to the block of the first of them.
__device__ __forceinline__ int rows_of_block(const int* slots, int row, int rows) {
  const int first = slots[row], most = min(rows - row, BLOCK_SIZE - first % BLOCK_SIZE);
  int count = 1;
  while (count < most && slots[row + count] == first + count) count++;
  return count;
}

template <class T>
__device__ __forceinline__ void rope_kv_store(float* qkv, const float* angles, const int* slots, void* layer, int rows,
                                              Heads heads, int rotary_dim, int kind) {
  SHARED(float, lengths, BLOCK_SIZE);
  const int row = blockIdx.x, kv_head = blockIdx.y, head_dim = heads.head_dim;
  if (slots[row] < 0) return;  // nobody's row

  const Rotation rotation{angles + size_t(row) * rotary_dim, rotary_dim, kind};
  const int pairs = rotary_dim / 2;
  for (int i = threadIdx.x; i < heads.group() * pairs; i += THREADS) {
    float* const query = heads.of(qkv, row, kv_head * heads.group() + i / pairs);
    const float2 turned = rotation.turned(query, i % pairs);
    query[rotation.first(i % pairs)] = turned.x;
    query[rotation.second(i % pairs)] = turned.y;
  }

  if (!is_first_of_block(slots, row)) return;  // the whole block of threads
  const int count = rows_of_block(slots, row, rows), place = slots[row] % BLOCK_SIZE;
  const Piece<T> piece(layer, slots[row] / BLOCK_SIZE, kv_head, heads.num_kv_heads, head_dim);
  for (int i = threadIdx.x / 32; i < count; i += WARPS) {
    float* const key = heads.of(qkv, row + i, heads.num_heads + kv_head);
    const float* const value = heads.of(qkv, row + i, heads.num_heads + heads.num_kv_heads + kv_head);
    const Rotation its_rotation{angles + size_t(row + i) * rotary_dim, rotary_dim, kind};
    const float length = store_key(its_rotation, key, piece.key(place + i, head_dim), head_dim);
    store_head(value, piece.value(place + i, head_dim), head_dim);
    if (threadIdx.x % 32 == 0) lengths[i] = length;
  }
  __syncthreads();

  // A length that is not a number bounds nothing; it is left out, and its row finds out by itself.
  const int i = threadIdx.x;
  if (i >= count) return;
  float longest = place == 0 ? 0.0f : piece.key_lengths[place - 1];
  for (int before = 0; before <= i; before++) longest = softmax::larger(lengths[before], longest);
  piece.key_lengths[place + i] = longest;
}

}  // namespace

// out [rows, rotary_dim] = [cos | sin] * magnitude, rounded once. inv_freq is float64 [rotary_dim / 2].
extern "C" __global__ void __launch_bounds__(128)
    rope_angles(const int* positions, const double* inv_freq, float* out, int rotary_dim, float magnitude) {
  const int row = blockIdx.x, pairs = rotary_dim / 2;
  for (int pair = threadIdx.x; pair < pairs; pair += THREADS) {
    const double angle = double(positions[row]) * inv_freq[pair];
    out[size_t(row) * rotary_dim + pair] = float(cos(angle) * double(magnitude));
    out[size_t(row) * rotary_dim + pairs + pair] = float(sin(angle) * double(magnitude));
  }
}
EXPORT_KERNEL(rope_angles)

// Turns q and k of qkv [rows, qkv_width] in place by angles [rows, rotary_dim], and stores k and v at slots. 0 <= rotary_dim <=
// head_dim, even; kind is 0 for adjacent pairs, 1 for half split.
#define ROPE_KV_STORE(name, T)                                                                                        \
  extern "C" __global__ void __launch_bounds__(128, 4)                                                                \
      name(float* qkv, const float* angles, const int* slots, void* layer, int rows, int num_heads, int num_kv_heads, \
           int head_dim, int rotary_dim, int kind) {                                                                  \
    rope_kv_store<T>(qkv, angles, slots, layer, rows, Heads{num_heads, num_kv_heads, head_dim}, rotary_dim, kind);    \
  }                                                                                                                   \
  EXPORT_KERNEL(name)
ROPE_KV_STORE(rope_kv_store_bf16, __nv_bfloat16)
ROPE_KV_STORE(rope_kv_store_f16, __half)
ROPE_KV_STORE(rope_kv_store_f32, float)
ROPE_KV_STORE(rope_kv_store_f8, __nv_fp8_e4m3)
