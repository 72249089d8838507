// What kernels are told of a step, and where keys and values lie: the tables of kernels/src/backend.rs on the device.
//
// Tables, all int32, filled before the first kernel of a step; kernels read lengths from nowhere else, so a captured graph
// serves every step of the same number of rows.
//
// | array        | shape     | unit                                                                                   |
// |--------------|-----------|----------------------------------------------------------------------------------------|
// | tokens       | [rows]    | token id: which row of the embedding table. -1: nobody's row                           |
// | positions    | [rows]    | position in its sequence; the row sees keys 0 to position. -1: nobody's row            |
// | slots        | [rows]    | block id * 64 + position % 64: where its key and value go. -1: nowhere                 |
// | table_starts | [rows]    | index into block_tables of the first block of its sequence                             |
// | spans        | [rows][2] | first row, and number of rows, of the row's sequence in this step. Number 0: nobody's row |
// | block_tables | [entries] | block ids, all sequences one after the other; entry j of one holds positions 64 j ...  |
// | picked       | [n]       | rows that are gathered: those that need logits. -1: none                               |
//
// Rows of one sequence are consecutive and so are their positions (SequenceSpan), so rows that are stored in one block are a
// run of slots s, s + 1, ... that ends where a multiple of 64 or another sequence begins. Nobody's rows fill a step up to
// the number of rows a graph was captured for; they are computed as far as that is harmless, and nothing reads them.
//
// The KV cache is [layer][block][kv_head] of pieces:
//
//     K [64][head_dim] | V [64][head_dim] | key_lengths f32 [64]
//
// and, behind that, where elements are e4m3, scales bf16 [64][2]: of each key its own and that of its value, powers of two. An element
// is what is stored times the scale; the sign says that one of the head is not a number, so that readers need not look for any. Heads
// have 64, 96, 128 or 256 elements there.
//
// key_lengths[p] is the largest length |k| of the keys stored at places 0 to p of the block, as they were rounded. It reaches no
// further than the row at p sees: neither later tokens nor what the block held before change the bound of its scores. At
// place 63 it is that of the whole block. A piece is a multiple of 256 bytes, and a block of a layer is contiguous.
// Kernels get the address of their layer, a multiple of 256.
#pragma once
#include "elements.cuh"

constexpr int BLOCK_SIZE = 64;

// Of a key and of its value.
struct alignas(4) Scales {
  __nv_bfloat16 key, value;
};

// A key or a value of one KV head. Types without scales have nothing there.
template <class T> struct StoredHead {
  T* elements;
  __nv_bfloat16* scale;
};

// One (block, kv head) of a layer.
template <class T> struct Piece {
  T *keys, *values;
  float* key_lengths;
  Scales* scales;

  __device__ __forceinline__ Piece(void* layer, int block, int kv_head, int num_kv_heads, int head_dim) {
    const size_t count = size_t(BLOCK_SIZE) * head_dim;
    const size_t of_key = sizeof(float) + (elements::SCALED<T> ? sizeof(Scales) : 0);
    const size_t bytes = 2 * count * sizeof(T) + BLOCK_SIZE * of_key;
    keys = reinterpret_cast<T*>(static_cast<char*>(layer) + (size_t(block) * num_kv_heads + kv_head) * bytes);
    values = keys + count;
    key_lengths = reinterpret_cast<float*>(values + count);
    scales = reinterpret_cast<Scales*>(key_lengths + BLOCK_SIZE);
  }
  __device__ __forceinline__ StoredHead<T> key(int place, int head_dim) const {
    return {keys + place * head_dim, &scales[place].key};
  }
  __device__ __forceinline__ StoredHead<T> value(int place, int head_dim) const {
    return {values + place * head_dim, &scales[place].value};
  }
};

// A fused row [query heads | key heads | value heads] of float32.
struct Heads {
  int num_heads, num_kv_heads, head_dim;

  __device__ __forceinline__ int group() const { return num_heads / num_kv_heads; }
  __device__ __forceinline__ int qkv_heads() const { return num_heads + 2 * num_kv_heads; }
  // Head `head` of a row, counted through queries, keys and values.
  template <class F> __device__ __forceinline__ F* of(F* qkv, int row, int head) const {
    return qkv + (size_t(row) * qkv_heads() + head) * head_dim;
  }
};
