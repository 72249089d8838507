// Causal attention over the paged cache on tensor cores, one kernel for decoding and for prompts: out = softmax(scale q k^T) v per
// query head, for heads of 64, 96, 128 and 256 elements and caches of bf16, f16 and e4m3. Rows come with their heads turned and their
// keys and values stored (rope_kv_store); or, where each is the only one of its sequence, as the product left them, and are
// normed, turned and stored here, to the same bits.
//
// Grid (rows, num_kv_heads * parts, any), blocks of 32 to 128 threads in whole warps. A tile is up to tile_rows consecutive rows of
// one sequence, those of block x from row x on; where a tile does not begin, block x has nothing to do. Its query vectors, numbered row by row and in a row by query head of the KV head, are the rows of A, 16 for each warp
// (for each two warps with heads of 256 elements: each has half of the columns of o). A block has V = 16 blockDim.x / 32 vectors
// (half as many), so tile_rows is at most V / min(group, V), and a group of more than V heads has parts = ceil(group / V). Block z
// has the splits z, z + gridDim.z, ... of the tile's keys; the block that takes the last ticket merges them in index order.
//
// Operands of mma.m16n8k16: S = Q K^T with q rounded to the cache's type and keys as columns. Scores are scaled after the sum, in
// float32. The weights 2^(x - m) are rounded to the cache's type where they lie, in S's accumulators, which then are the A operand
// of P V; l is one more column of that product, of ones, so it is the sum of the rounded weights.
// f16: a query is scaled by a power of two for its largest element to lie in [1, 2), and undone with the scale; weights are at
// most 2, so references are running ones whatever the arm: under a fixed one a weight may be 2^100. They are never raised late, either:
// subnormal weights would have other bits then; in bf16 all have the bits of ONLINE.
// e4m3: an element times the scale of its head is a bf16 number. Pieces arrive as bytes, a warp widens the rows that it had copied
// itself, and what follows is that of bf16: the bits are those of a bf16 cache that holds the same numbers.
//
// Order of the sums of a row and head, whatever the tile, the grid and the other rows: it has one place among the 16 rows of each
// mma, and sums of mma of its row alone. Scores: 16 elements at a time, ascending. l and o: keys 16 at a time within a split,
// ascending, from zero, in the order that the instruction has within 16. The length of a split is split_len of the row's own
// context; splits are merged in index order. What is masked adds a zero. So a row has the bits it has alone, and decoding
// those of a prompt.
//
// Keys and values go through a ring of pieces of [64][DIM], K and V of a tile of 64 keys in turn, by cp.async; rows are 16 bytes
// longer than they need be, so that the eight rows of an ldmatrix lie in different banks. Values behind a row's position may be
// anything, and zero times what is not a number is not zero: where an answer is not finite and rows of a tile see different keys,
// the block computes it again `carefully`, with the values of each row masked for that row.
//
// Bytes of a tile and KV head: 4 DIM for each key that its last row sees. Flops: 4 DIM per key and vector, those of idle vectors
// included, and about 25 for each weight. A tile of 64 keys of 128 elements has a warp issue some 128 mma, 70 ldmatrix and 900
// others: that bounds prompts, at about a third of what the tensor cores do. In decoding one warp of 16 vectors takes some 1.2 us for
// 32 KB, three of them on an SM ask for 10 TB/s: DRAM bounds long contexts, latency short ones. Computed, not measured.
// e4m3: 2 DIM + 8 bytes for each key. Widening is some 65 instructions for 16 elements, 2100 of a tile of 128 elements, which the warps of
// a block share. In decoding the one warp has all of them and takes twice as long for half of the bytes, 3 TB/s with three on an SM: that
// bounds long contexts where DRAM is faster. Computed, not measured.
//
// Rows as the product left them: every block turns its queries and the row's key. The one that has the last split writes key and
// value into the cache before it reads them there; the others ask for no key of that block of the cache, and for its lengths no
// further than the place before. Before it waits for the kernel before it a block reads weights alone.
//
// Launch contract: dynamic shared memory of shared_bytes(DIM, V), with or without programmatic stream serialization; tables and cache
// as in step.cuh. tickets are zero before and after. With angles no two rows are of one sequence, and parts is 1.
#include "attention.cuh"
#include "unturned.cuh"

using namespace attention;

namespace {

// Rows, and columns of one mma; keys of two mma of P V.
constexpr int ROWS = 16, COLUMNS = 8, KEYS = 16;
constexpr int KEY_COLUMNS = BLOCK_SIZE / COLUMNS, KEY_STEPS = BLOCK_SIZE / KEYS;

template <int DIM> struct Shape {
  // Columns of o that a warp has, and warps that share its vectors.
  static constexpr int WIDTH = DIM <= 128 ? DIM : DIM / 2, SHARES = DIM / WIDTH;
  // Elements from one row of shared memory to the next: 16 bytes more than a multiple of 32, an odd number of times 16.
  static constexpr int STRIDE = DIM + 8;
  static constexpr int STAGES = DIM <= 128 ? 4 : 2;
  // Widened pieces of bytes: of one, all warps have to be done with it before the next is written.
  static constexpr int WIDENED = DIM <= 128 ? 2 : 1;
  static_assert(DIM % 32 == 0 && WIDTH % 16 == 0, "whole pairs of columns, and a lane has whole elements of a query");
};

// What of a type goes into the tensor cores.
template <class T> struct Operand;
template <> struct Operand<__nv_bfloat16> {
  static constexpr bool WIDE = true;  // the exponents of float32
  static constexpr unsigned ONES = 0x3f803f80;
  static __device__ __forceinline__ unsigned pack(float low, float high) { return ptx::pack_bf16(low, high); }
  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_m16n8k16_bf16(d, a, b);
  }
  using Element = __nv_bfloat16;
};
template <> struct Operand<__half> {
  static constexpr bool WIDE = false;
  static constexpr unsigned ONES = 0x3c003c00;
  static __device__ __forceinline__ unsigned pack(float low, float high) { return ptx::pack_f16(low, high); }
  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_m16n8k16_f16(d, a, b);
  }
  using Element = __half;
};
template <> struct Operand<__nv_fp8_e4m3> : Operand<__nv_bfloat16> {};
template <class T> using Element = typename Operand<T>::Element;

// A query vector, as far as threads ask for it in every tile.
struct alignas(16) Vector {
  int context, split_len;  // 0 keys of vectors that there are not
  float scale;             // of its scores
  float reference;         // if fixed; before that, its length in log2 units
};

// What a block of threads attends to. It lies in shared memory, as its vectors do: their sums take most of the registers.
template <class T> struct alignas(16) Call {
  Keys<T> keys;  // that the tile's last row sees
  const int* positions;
  float* states;
  int num_heads, first_row, first_head;
  int vectors, heads_of_row;  // those that there are
  float below, above;         // how far from a fixed reference scores may lie
  float threshold;            // how far above a running one the floor of the largest
  float newest_length;        // of the key that this launch stores
  unsigned ticket;

  __device__ __forceinline__ int row(int vector) const { return first_row + vector / heads_of_row; }
  // Of the vectors of the step.
  __device__ __forceinline__ size_t number(int vector) const {
    return size_t(row(vector)) * num_heads + first_head + vector % heads_of_row;
  }
  __device__ __forceinline__ int context(int vector) const { return vector < vectors ? positions[row(vector)] + 1 : 0; }
};

// How far a walk over the keys has come: state and sums of values of a lane's two vectors over some keys. Of o[n], 0 and 1 are of
// the first vector, 2 and 3 of the second, for columns 8 n + 2 (lane % 4) and the next; l[0] and l[2] are the sums of weights.
template <int DIM> struct Sums {
  float m[2], l[4], o[Shape<DIM>::WIDTH / COLUMNS][4];

  __device__ __forceinline__ void clear(int i, float reference) {
    m[i] = reference;
    l[2 * i] = l[2 * i + 1] = 0.0f;
#pragma unroll
    for (int n = 0; n < Shape<DIM>::WIDTH / COLUMNS; n++) o[n][2 * i] = o[n][2 * i + 1] = 0.0f;
  }
  __device__ __forceinline__ void scale(const float (&by)[2]) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      l[e] *= by[e / 2];
#pragma unroll
      for (int n = 0; n < Shape<DIM>::WIDTH / COLUMNS; n++) o[n][e] *= by[e / 2];
    }
  }
  __device__ __forceinline__ softmax::State state(int i) const { return {m[i], l[2 * i]}; }
};

// Sums of the splits before, of a block that has a tile for itself. They lie in shared memory, where only their own thread comes:
// in registers, larger heads have no room for them beside those of the split under way. Of thread t: states of its two vectors
// at [t], then two columns and the next two of the first vector, of the second, of the first, ...
template <int DIM> struct SumsBefore {
  static constexpr int PLACES = 1 + Shape<DIM>::WIDTH / COLUMNS;
  float4* at;

  __device__ __forceinline__ float4& place(int i, int n) const { return at[(1 + n + i) * blockDim.x]; }

  __device__ __forceinline__ void clear() const {
    *at = make_float4(softmax::LOWEST, 0.0f, softmax::LOWEST, 0.0f);
#pragma unroll
    for (int place = 1; place < PLACES; place++) at[place * blockDim.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  // Takes in the keys of a split.
  __device__ __forceinline__ void merge(int i, const Sums<DIM>& split) const {
    float2& state = reinterpret_cast<float2*>(at)[i];
    const Merging merging({state.x, state.y}, split.state(i));
    state = make_float2(merging.state.m, merging.state.l);
#pragma unroll
    for (int n = 0; n < Shape<DIM>::WIDTH / COLUMNS; n += 2) {
      const float4 o = place(i, n);
      place(i, n) = make_float4(merging.sum(o.x, split.o[n][2 * i]), merging.sum(o.y, split.o[n][2 * i + 1]),
                                merging.sum(o.z, split.o[n + 1][2 * i]), merging.sum(o.w, split.o[n + 1][2 * i + 1]));
    }
  }
  __device__ __forceinline__ void read(Sums<DIM>& sums) const {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float2 state = reinterpret_cast<const float2*>(at)[i];
      sums.m[i] = state.x;
      sums.l[2 * i] = state.y;
#pragma unroll
      for (int n = 0; n < Shape<DIM>::WIDTH / COLUMNS; n += 2) {
        const float4 o = place(i, n);
        sums.o[n][2 * i] = o.x, sums.o[n][2 * i + 1] = o.y, sums.o[n + 1][2 * i] = o.z, sums.o[n + 1][2 * i + 1] = o.w;
      }
    }
  }
};

// Shared memory: the call, STAGES pieces of 64 rows, the block's V queries, of each a Vector and two numbers, and sums of each
// thread: shared_bytes(DIM, V) = 128 + 2 (DIM + 8) (64 STAGES + V) + 24 V + 16 (1 + WIDTH / 8) threads. With e4m3 there are WIDENED
// pieces in place of STAGES, and STAGES ones of 64 (DIM + 4) bytes: rows, and the two scales of each.
template <class T, int DIM> struct Shared {
  static constexpr int PIECES = elements::SCALED<T> ? Shape<DIM>::WIDENED : Shape<DIM>::STAGES;
  static constexpr int ARRIVING = elements::SCALED<T> ? BLOCK_SIZE * (DIM * sizeof(T) + sizeof(Scales)) : 0;
  static constexpr int CALL_BYTES = 128;
  static_assert(sizeof(Call<T>) <= CALL_BYTES, "the call has its place");
  Call<T>* call;
  Element<T> *ring, *q;
  unsigned char* arriving_ring;
  Vector* vectors;
  unsigned *pending, *odd;  // whether an answer is to come; what is wrong with sums
  float4* before;           // of splits

  __device__ __forceinline__ Shared(unsigned char* memory, int num_vectors) {
    call = reinterpret_cast<Call<T>*>(memory);
    ring = reinterpret_cast<Element<T>*>(memory + CALL_BYTES);
    arriving_ring = reinterpret_cast<unsigned char*>(ring + PIECES * BLOCK_SIZE * Shape<DIM>::STRIDE);
    q = reinterpret_cast<Element<T>*>(arriving_ring + Shape<DIM>::STAGES * ARRIVING);
    vectors = reinterpret_cast<Vector*>(q + num_vectors * Shape<DIM>::STRIDE);
    pending = reinterpret_cast<unsigned*>(vectors + num_vectors);
    odd = pending + num_vectors;
    before = reinterpret_cast<float4*>(odd + num_vectors);
  }
  __device__ __forceinline__ Element<T>* piece(int number) const {
    return ring + number % PIECES * BLOCK_SIZE * Shape<DIM>::STRIDE;
  }
  // Where a piece arrives as the cache has it, and the scales of its rows.
  __device__ __forceinline__ T* arriving(int number) const {
    if constexpr (elements::SCALED<T>) return reinterpret_cast<T*>(arriving_ring + number % Shape<DIM>::STAGES * ARRIVING);
    else return piece(number);
  }
  static __device__ __forceinline__ Scales* scales(T* arriving) { return reinterpret_cast<Scales*>(arriving + BLOCK_SIZE * DIM); }
  // Room for a head, while no piece is loaded; and for one of the cache's type.
  __device__ __forceinline__ float* room_of_warp() const { return reinterpret_cast<float*>(ring) + threadIdx.x / 32 * DIM; }
  __device__ __forceinline__ StoredHead<T> room_for_key() const { return {arriving(1), &scales(arriving(1))->key}; }
  __device__ __forceinline__ SumsBefore<DIM> sums_before() const { return {before + threadIdx.x}; }
  // The first of the two vectors whose sums a lane has columns of, rows lane / 4 and lane / 4 + 8 of its warp's 16.
  __device__ __forceinline__ int vector() const {
    return threadIdx.x / 32 / Shape<DIM>::SHARES * ROWS + threadIdx.x % 32 / 4;
  }
};

// What is wrong with the sums of a vector: l does not hold its softmax under a fixed reference; or, above all, they are not finite.
constexpr unsigned UNFIT = 1, NOT_FINITE = 2;

// The first column of o that this lane has.
template <int DIM> __device__ __forceinline__ int first_column() {
  return threadIdx.x / 32 % Shape<DIM>::SHARES * Shape<DIM>::WIDTH + 2 * (threadIdx.x % 4);
}

// Queries of the block's vectors in the cache's type; zeros for those that there are not.
template <class T, int DIM>
__device__ __forceinline__ void load_queries(const Call<T>& call, const Shared<T, DIM>& shared, const float* qkv, const Heads& heads,
                                             const rope::Unturned& unturned, int vectors, float log2_scale) {
  const int lane = threadIdx.x % 32;
  for (int vector = threadIdx.x / 32; vector < vectors; vector += blockDim.x / 32) {
    const bool there = vector < call.vectors;
    const float* from = heads.of(qkv, there ? call.row(vector) : 0, there ? call.first_head + vector % call.heads_of_row : 0);
    if (there && unturned.rotation.angles) {
      float* const turned = shared.room_of_warp();
      __syncwarp();
      unturned.bring_query(from, DIM, 1.0f, turned);
      from = turned;
    }
    float q[DIM / 32], largest = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
      q[i] = there ? from[lane + 32 * i] : 0.0f;
      largest = softmax::larger(fabsf(q[i]), largest);
    }
    float exponent = 0.0f;
    if (!Operand<T>::WIDE) {
      const int bits = __float_as_int(softmax::warp_largest(largest));
      if (bits != 0) exponent = fminf(float((bits >> 23) - 127), 126.0f);
    }
    const float down = softmax::power_of_two(-exponent), up = softmax::power_of_two(exponent) * log2_scale;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
      const Element<T> rounded = elements::from_float<Element<T>>(q[i] * down);
      shared.q[vector * Shape<DIM>::STRIDE + lane + 32 * i] = rounded;
      const float in_log2 = elements::to_float(rounded) * up;
      squares = fmaf(in_log2, in_log2, squares);
    }
    squares = softmax::warp_sum(squares);
    if (lane == 0) {
      const int context = call.context(vector);
      shared.vectors[vector] = {context, split_len(context), up, sqrtf(squares)};
      shared.pending[vector] = there ? 1u : 0u;
    }
  }
}

// Turns and rounds the row's key; if this block is to, it puts key and value into the cache. All threads of the block call it.
template <class T, int DIM>
__device__ __forceinline__ void bring_newest(Call<T>& call, const Shared<T, DIM>& shared, const float* qkv, const Heads& heads,
                                             const rope::Unturned& unturned, bool is_to_store) {
  const int position = call.keys.context - 1, place = position % BLOCK_SIZE, head = heads.num_heads + call.keys.kv_head;
  const Piece<T> piece = call.keys.piece(position / BLOCK_SIZE);
  if (threadIdx.x / 32 == blockDim.x / 32 - 1) {
    const StoredHead<T> to = is_to_store ? piece.key(place, DIM) : shared.room_for_key();
    __syncwarp();
    const float length = unturned.bring_key(heads.of(qkv, call.first_row, head), DIM, shared.room_of_warp(), to);
    if (threadIdx.x % 32 == 0) {
      // A length that is not a number bounds nothing; it is left out.
      call.newest_length = softmax::larger(length, place == 0 ? 0.0f : piece.key_lengths[place - 1]);
      if (is_to_store) piece.key_lengths[place] = call.newest_length;
    }
  }
  if (!is_to_store) return;
  const float* const value = heads.of(qkv, call.first_row, head + heads.num_kv_heads);
  if constexpr (elements::SCALED<T>) {
    if (threadIdx.x < 32) rope::store_head(value, piece.value(place, DIM), DIM);
  } else {
    for (int d = threadIdx.x; d < DIM; d += blockDim.x) piece.values[place * DIM + d] = elements::from_float<T>(value[d]);
  }
  __threadfence();  // asynchronous copies read past the first-level cache
}

// The references of all vectors under a fixed arm; every warp calls it. The same numbers as Keys::longest would give for each row.
template <class T, int DIM>
__device__ __forceinline__ void fix_references(const Call<T>& call, const Shared<T, DIM>& shared, bool is_stored, int arm,
                                               float phi) {
  const int first = call.positions[call.first_row] / BLOCK_SIZE;  // blocks before it are seen as a whole by all rows
  Keys<T> before = call.keys;
  before.context = first * BLOCK_SIZE;
  const float longest_before = arm == BOUNDED && first > 0 ? before.longest() : 0.0f;
  for (int number = threadIdx.x; number < call.vectors; number += blockDim.x) {
    Vector& vector = shared.vectors[number];
    float longest = longest_before;
    for (int from = first * BLOCK_SIZE; arm == BOUNDED && from < vector.context; from += BLOCK_SIZE)
      longest = softmax::larger(is_stored ? call.keys.piece(from / BLOCK_SIZE).key_lengths[min(vector.context - from, BLOCK_SIZE) - 1]
                                          : call.newest_length, longest);
    vector.reference = arm == BOUNDED ? bounded_reference(vector.reference, longest, DIM) : phi;
  }
}

// How a warp copies rows of a piece: chunks of 16 bytes of a row, and rows at once, with some lanes idle where 32 is no multiple.
template <class T, int DIM> struct Copies {
  static constexpr int CHUNK = 16 / sizeof(T), CHUNKS = DIM / CHUNK, KEYS_AT_ONCE = 32 / CHUNKS;
};

// Has keys or values of a tile copied into shared memory; zeros for keys that nobody sees.
template <class T, int DIM>
__device__ __forceinline__ void load_piece(const Keys<T>& keys, int tile, bool values, T* to) {
  constexpr int CHUNKS = Copies<T, DIM>::CHUNKS, KEYS_AT_ONCE = Copies<T, DIM>::KEYS_AT_ONCE;
  constexpr int STRIDE = elements::SCALED<T> ? DIM : Shape<DIM>::STRIDE;
  // With bytes, what follows from it would take registers that the larger heads' sums need.
  const unsigned thread = elements::SCALED<T> ? ptx::thread_index() : threadIdx.x;
  const int lane = thread % 32, at = lane % CHUNKS * Copies<T, DIM>::CHUNK;
  const Piece<T> piece = keys.piece(tile);
  const T* const from = (values ? piece.values : piece.keys) + at;
  const int visible = keys.context - tile * BLOCK_SIZE;
  if (lane >= KEYS_AT_ONCE * CHUNKS) return;
#pragma unroll 4
  for (int key = thread / 32 * KEYS_AT_ONCE + lane / CHUNKS; key < BLOCK_SIZE; key += blockDim.x / 32 * KEYS_AT_ONCE) {
    ptx::copy_async_16(to + key * STRIDE + at, from + key * DIM, key < visible);
    if constexpr (elements::SCALED<T>)
      if (at == 0) ptx::copy_async_4(Shared<T, DIM>::scales(to) + key, piece.scales + key, key < visible);
  }
}

// Four elements of e4m3 as pairs of bf16, times 2^-120: sign, exponent and significand in their places, subnormal numbers too. What
// is not a number is like 480 there, unless it is looked for: then all bits of its exponent are set.
template <bool LOOK> __device__ __forceinline__ uint2 in_place(unsigned four) {
  const auto pair = [&](unsigned bytes) {
    const unsigned x = __byte_perm(four, 0, bytes);
    unsigned both = (x & 0x80008000) | (x >> 4 & 0x07f007f0);
    if (LOOK) {
      const unsigned odd = ((four & 0x7f7f7f7f) + 0x01010101) & 0x80808080;
      both |= (__byte_perm(odd, 0, bytes) >> 4) * 15;
    }
    return both;
  };
  return make_uint2(pair(0x1404), pair(0x3424));
}

// Sixteen elements times the scale of their head, exactly. Where all are numbers and the scale is at most 2^7 its product with 2^120
// is a number, and one multiplication enough.
__device__ __forceinline__ void widen(uint4 bytes, unsigned scale, uint4 (&to)[2]) {
  constexpr unsigned UP = 0x3c00, AT_MOST = 0x4300;  // 120 more in the exponent; 2^7
  unsigned* const pairs = reinterpret_cast<unsigned*>(to);
  const unsigned four[] = {bytes.x, bytes.y, bytes.z, bytes.w};
  if (scale <= AT_MOST) {
    const unsigned factor = __byte_perm(scale + UP, 0, 0x1010);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint2 x = in_place<false>(four[i]);
      pairs[2 * i] = ptx::multiply_bf16x2(x.x, factor);
      pairs[2 * i + 1] = ptx::multiply_bf16x2(x.y, factor);
    }
    return;
  }
  const unsigned factor = __byte_perm(scale & 0x7fff, 0, 0x1010);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint2 x = in_place<true>(four[i]);
    pairs[2 * i] = ptx::multiply_bf16x2(ptx::multiply_bf16x2(x.x, 0x7b807b80), factor);
    pairs[2 * i + 1] = ptx::multiply_bf16x2(ptx::multiply_bf16x2(x.y, 0x7b807b80), factor);
  }
}

// Widens the rows that this warp had copied.
template <class T, int DIM> __device__ __forceinline__ void widen_piece(const T* from, const Scales* scales, bool values, Element<T>* to) {
  constexpr int CHUNKS = Copies<T, DIM>::CHUNKS, KEYS_AT_ONCE = Copies<T, DIM>::KEYS_AT_ONCE;
  const unsigned thread = ptx::thread_index();
  const int lane = thread % 32, at = lane % CHUNKS * Copies<T, DIM>::CHUNK;
  if (lane >= KEYS_AT_ONCE * CHUNKS) return;
  // More, and the larger heads' sums have no registers left.
#pragma unroll 1
  for (int key = thread / 32 * KEYS_AT_ONCE + lane / CHUNKS; key < BLOCK_SIZE; key += blockDim.x / 32 * KEYS_AT_ONCE) {
    const uint4 bytes = *reinterpret_cast<const uint4*>(from + key * DIM + at);
    uint4 x[2];
    widen(bytes, __bfloat16_as_ushort(values ? scales[key].value : scales[key].key), x);
    uint4* const row = reinterpret_cast<uint4*>(to + key * Shape<DIM>::STRIDE + at);
    row[0] = x[0];
    row[1] = x[1];
  }
}

// Scores of the warp's vectors and a tile's keys, not scaled yet: x[n] are those of keys 8 n + 2 (lane % 4) and the next, as in Sums.
template <class T, int DIM>
__device__ __forceinline__ void scores(const Element<T>* q, const Element<T>* keys, float (&x)[KEY_COLUMNS][4]) {
  const int lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
  const Element<T>* const q_row = q + (matrix % 2 * 8 + row) * Shape<DIM>::STRIDE + matrix / 2 * 8;
  const Element<T>* const key_row = keys + (matrix / 2 * 8 + row) * Shape<DIM>::STRIDE + matrix % 2 * 8;
#pragma unroll
  for (int n = 0; n < KEY_COLUMNS; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) x[n][e] = 0.0f;
  // More, and the operands of steps to come take the registers of the larger heads' sums.
#pragma unroll 2
  for (int d = 0; d < DIM; d += 16) {
    unsigned a[4];
    ptx::ldmatrix_x4(a, q_row + d);
#pragma unroll
    for (int n = 0; n < KEY_COLUMNS; n += 2) {
      unsigned b[4];
      ptx::ldmatrix_x4(b, key_row + n * COLUMNS * Shape<DIM>::STRIDE + d);
      Operand<T>::multiply(x[n], a, {b[0], b[1]});
      Operand<T>::multiply(x[n + 1], a, {b[2], b[3]});
    }
  }
}

// Turns scores into weights under the references m, which are raised first where they are not fixed and too far behind (LOWEST, of no
// keys, is that of any score), and packs them as the A operand of P V. A score that a fixed reference does not allow makes its row not a number. `scales`: the factors on earlier sums.
template <class T>
__device__ __forceinline__ void weigh(float (&x)[KEY_COLUMNS][4], const Call<T>& call, const Vector* vectors, int tile, bool fixed,
                                      float (&m)[2], float (&scales)[2], unsigned (&weights)[KEY_STEPS][4]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Vector vector = vectors[8 * i];
    const int visible = vector.context - tile * BLOCK_SIZE - 2 * int(threadIdx.x % 4);
    float largest = m[i];
#pragma unroll
    for (int n = 0; n < KEY_COLUMNS; n++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float& score = x[n][2 * i + h];
        score = n * COLUMNS + h < visible ? softmax::score(score * vector.scale) : softmax::MASKED;
        largest = softmax::larger(score, largest);
      }
    scales[i] = 1.0f;
    if (!fixed) {
#pragma unroll
      for (int bits = 1; bits < 4; bits *= 2)
        largest = softmax::larger(__shfl_xor_sync(softmax::ALL_LANES, largest, bits), largest);
      const float floor = floorf(largest), raised = floor - m[i] > call.threshold ? floor : m[i];
      scales[i] = softmax::power_of_two(m[i] - raised);
      m[i] = raised;
    }
#pragma unroll
    for (int n = 0; n < KEY_COLUMNS; n++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float& score = x[n][2 * i + h];
        const bool outside = fixed && score != softmax::MASKED && (score - m[i] >= call.above || score - m[i] <= call.below);
        score = outside ? NAN : softmax::exp2_from(score, m[i]);
      }
  }
#pragma unroll
  for (int step = 0; step < KEY_STEPS; step++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float(&from)[4] = x[2 * step + e / 2];
      weights[step][e] = Operand<T>::pack(from[e % 2 * 2], from[e % 2 * 2 + 1]);
    }
}

// Zeros for the values of keys that a row does not see; `from` is the first of the two keys of the pair.
__device__ __forceinline__ unsigned masked(unsigned values, int from, int visible) {
  return from + 1 < visible ? values : from < visible ? values & 0xffffu : 0u;
}

// sums = sums + weights * values of a tile. Carefully: row by row, with the values that the row does not see zero.
template <class T, int DIM>
__device__ __forceinline__ void add_values(const unsigned (&weights)[KEY_STEPS][4], const Element<T>* values,
                                           const Vector* vectors, int tile, bool careful, Sums<DIM>& sums) {
  const int lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
  const Element<T>* const value_row = values + (matrix % 2 * 8 + row) * Shape<DIM>::STRIDE + matrix / 2 * 8 + first_column<DIM>() / 8 * 8;
#pragma unroll
  for (int step = 0; step < KEY_STEPS; step++)
    Operand<T>::multiply(sums.l, weights[step], {Operand<T>::ONES, Operand<T>::ONES});
#pragma unroll
  for (int n = 0; n < Shape<DIM>::WIDTH / COLUMNS; n += 2) {
    unsigned b[KEY_STEPS][4];
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++)
      ptx::ldmatrix_x4_transposed(b[step], value_row + step * KEYS * Shape<DIM>::STRIDE + n * COLUMNS);
    if (!careful) {
#pragma unroll
      for (int step = 0; step < KEY_STEPS; step++) {
        Operand<T>::multiply(sums.o[n], weights[step], {b[step][0], b[step][1]});
        Operand<T>::multiply(sums.o[n + 1], weights[step], {b[step][2], b[step][3]});
      }
      continue;
    }
    float of_row[2][4], before[2][4];
#pragma unroll
    for (int e = 0; e < 4; e++) before[0][e] = sums.o[n][e], before[1][e] = sums.o[n + 1][e];
#pragma unroll 1
    for (int careful_row = 0; careful_row < ROWS; careful_row++) {
      const int visible = vectors[careful_row - lane / 4].context - tile * BLOCK_SIZE;
#pragma unroll
      for (int e = 0; e < 4; e++) of_row[0][e] = before[0][e], of_row[1][e] = before[1][e];
#pragma unroll
      for (int step = 0; step < KEY_STEPS; step++) {
        const int key = step * KEYS + lane % 4 * 2;
        Operand<T>::multiply(of_row[0], weights[step], {masked(b[step][0], key, visible), masked(b[step][1], key + 8, visible)});
        Operand<T>::multiply(of_row[1], weights[step], {masked(b[step][2], key, visible), masked(b[step][3], key + 8, visible)});
      }
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (lane / 4 + e / 2 * 8 == careful_row) sums.o[n][e] = of_row[0][e], sums.o[n + 1][e] = of_row[1][e];
    }
  }
}

// Where states of splits lie while blocks of threads share a tile: of each vector [32] states, then [32][DIM] sums.
template <int DIM> struct States {
  float* at;

  __device__ __forceinline__ States(float* states, size_t vector) : at(states + vector * MAX_SPLITS * (DIM + 2)) {}
  __device__ __forceinline__ float2* state(int split) const { return reinterpret_cast<float2*>(at) + split; }
  __device__ __forceinline__ float* sums(int split) const { return at + 2 * MAX_SPLITS + split * DIM; }
};

template <class T, int DIM>
__device__ __forceinline__ void publish(const Call<T>& call, int vector, int i, int split, const Sums<DIM>& sums) {
  const States<DIM> to(call.states, call.number(vector));
  const int column = first_column<DIM>();
  if (column == 0) __stcg(to.state(split), make_float2(sums.m[i], sums.l[2 * i]));
#pragma unroll
  for (int n = 0; n < Shape<DIM>::WIDTH / COLUMNS; n++)
    __stcg(reinterpret_cast<float2*>(to.sums(split) + column + n * COLUMNS), make_float2(sums.o[n][2 * i], sums.o[n][2 * i + 1]));
}

// Walks over tiles `begin` to `end - 1` of the keys, from the beginning of a split of each row to the end of one or of its context.
// A split that ends joins those before it, or is published. All threads of the block call it.
template <class T, int DIM>
__device__ __forceinline__ void walk(const Shared<T, DIM>& shared, int begin, int end, bool fixed, bool careful, bool alone) {
  constexpr int STAGES = Shape<DIM>::STAGES;
  const Call<T>& call = *shared.call;
  const Vector* const vectors = shared.vectors + shared.vector();
  const Element<T>* const q = shared.q + threadIdx.x / 32 / Shape<DIM>::SHARES * ROWS * Shape<DIM>::STRIDE;
  const int pieces = 2 * (end - begin);
  int loaded = 0;
  const auto load_next = [&] {
    if (loaded < pieces) load_piece<T, DIM>(call.keys, begin + loaded / 2, loaded % 2 != 0, shared.arriving(loaded));
    loaded++;
    ptx::copy_async_commit();
  };
  // Waits for the piece that is read next; what was read before it may then be overwritten.
  const auto next_piece = [&](int piece) {
    ptx::copy_async_wait<STAGES - 2>();
    if constexpr (elements::SCALED<T>) {
      if (Shape<DIM>::WIDENED == 1) __syncthreads();
      else __syncwarp();
      T* const arrived = shared.arriving(piece);
      widen_piece<T, DIM>(arrived, Shared<T, DIM>::scales(arrived), piece % 2 != 0, shared.piece(piece));
    }
    __syncthreads();
    load_next();
  };
  Sums<DIM> sums;
#pragma unroll
  for (int i = 0; i < 2; i++) sums.clear(i, fixed ? vectors[8 * i].reference : softmax::LOWEST);
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) load_next();
#pragma unroll 1
  for (int tile = begin; tile < end; tile++) {
    const int piece = 2 * (tile - begin);
    unsigned weights[KEY_STEPS][4];
    {
      float x[KEY_COLUMNS][4], scales[2];
      next_piece(piece);
      scores<T, DIM>(q, shared.piece(piece), x);
      weigh(x, call, vectors, tile, fixed, sums.m, scales, weights);
      if (__any_sync(softmax::ALL_LANES, scales[0] != 1.0f || scales[1] != 1.0f)) sums.scale(scales);
    }
    next_piece(piece + 1);
    add_values<T, DIM>(weights, shared.piece(piece + 1), vectors, tile, careful, sums);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int from = tile * BLOCK_SIZE, to = from + BLOCK_SIZE;
      const Vector vector = vectors[8 * i];
      const bool ends = from < vector.context && (to % vector.split_len == 0 || to >= vector.context);
      if (!ends) continue;
      if (alone) shared.sums_before().merge(i, sums);
      else publish(call, shared.vector() + 8 * i, i, from / vector.split_len, sums);
      sums.clear(i, fixed ? vectors[8 * i].reference : softmax::LOWEST);
    }
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
}

__device__ __forceinline__ bool is_finite(float x) { return x - x == 0.0f; }

// What is known of a pass over the keys when its answers are judged.
struct Pass {
  bool fixed, careful, mixed;  // mixed: rows see different keys

  // Whether what is not finite may come from values that the row does not see.
  __device__ __forceinline__ bool is_ambiguous(unsigned odd) const { return mixed && !careful && odd == NOT_FINITE; }
  __device__ __forceinline__ bool settles(unsigned odd) const { return !is_ambiguous(odd) && (!fixed || odd == 0); }
};

// Writes the pending answers that are settled; whether one of this thread's is ambiguous.
template <class T, int DIM>
__device__ __forceinline__ bool answer(const Shared<T, DIM>& shared, const Pass& pass, float* out) {
  const Call<T>& call = *shared.call;
  const int first = shared.vector();
  Sums<DIM> sums;
  shared.sums_before().read(sums);
  bool pending[2], ambiguous = false;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    pending[i] = shared.pending[first + 8 * i] != 0;
    unsigned odd = fits(sums.l[2 * i], shared.vectors[first + 8 * i].context) ? 0u : UNFIT;
#pragma unroll
    for (int n = 0; n < Shape<DIM>::WIDTH / COLUMNS; n++)
      if (!is_finite(sums.o[n][2 * i]) || !is_finite(sums.o[n][2 * i + 1])) odd = NOT_FINITE;
    if (pending[i] && odd != 0) atomicMax(&shared.odd[first + 8 * i], odd);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (!pending[i]) continue;
    const unsigned odd = shared.odd[first + 8 * i];
    ambiguous = ambiguous || pass.is_ambiguous(odd);
    if (!pass.settles(odd)) continue;
    const int column = first_column<DIM>();
    const float divisor = softmax::divisor(sums.state(i));
    float* const to = out + call.number(first + 8 * i) * DIM + column;
#pragma unroll
    for (int n = 0; n < Shape<DIM>::WIDTH / COLUMNS; n++)
      *reinterpret_cast<float2*>(to + n * COLUMNS) = make_float2(sums.o[n][2 * i] / divisor, sums.o[n][2 * i + 1] / divisor);
    if (column == 0) shared.pending[first + 8 * i] = 0;
  }
  return ambiguous;
}

// The same of what blocks of threads have published: a vector for each warp, a lane has columns lane, lane + 32, ...
template <class T, int DIM>
__device__ __forceinline__ bool answer_published(const Shared<T, DIM>& shared, const Pass& pass, float* out) {
  const Call<T>& call = *shared.call;
  constexpr int AT_ONCE = 4;
  const int lane = threadIdx.x % 32;
  bool ambiguous = false;
  for (int vector = threadIdx.x / 32; vector < call.vectors; vector += blockDim.x / 32) {
    const States<DIM> from(call.states, call.number(vector));
    const int context = shared.vectors[vector].context, splits = elements::divided_up(context, shared.vectors[vector].split_len);
    const float2 mine = lane < splits ? __ldcg(from.state(lane)) : make_float2(softmax::LOWEST, 0.0f);
    softmax::State state = softmax::empty_state();
    float o[DIM / 32] = {};
    for (int first = 0; first < splits; first += AT_ONCE) {
      float of_split[AT_ONCE][DIM / 32];
#pragma unroll
      for (int s = 0; s < AT_ONCE; s++)
#pragma unroll
        for (int i = 0; i < DIM / 32; i++)
          of_split[s][i] = first + s < splits ? __ldcg(from.sums(first + s) + lane + 32 * i) : 0.0f;
#pragma unroll
      for (int s = 0; s < AT_ONCE; s++) {
        if (first + s >= splits) break;
        const Merging merging(state, {__shfl_sync(softmax::ALL_LANES, mine.x, first + s),
                                      __shfl_sync(softmax::ALL_LANES, mine.y, first + s)});
        state = merging.state;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) o[i] = merging.sum(o[i], of_split[s][i]);
      }
    }
    bool finite = true;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) finite = finite && is_finite(o[i]);
    const bool all_finite = __all_sync(softmax::ALL_LANES, finite);
    const unsigned odd = !all_finite ? NOT_FINITE : fits(state.l, context) ? 0u : UNFIT;
    ambiguous = ambiguous || pass.is_ambiguous(odd);
    if (!pass.settles(odd)) continue;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) out[call.number(vector) * DIM + lane + 32 * i] = o[i] / softmax::divisor(state);
    if (lane == 0) shared.pending[vector] = 0;
  }
  return ambiguous;
}

template <class T, int DIM>
__device__ __forceinline__ void attend(const float* qkv, const rope::Unturned& unturned, void* layer, const int* spans,
                                       const int* positions, const int* table_starts, const int* block_tables, const float* ranges,
                                       float* states, unsigned* tickets, unsigned* recomputed, float* out, Heads heads, int tile_rows,
                                       float log2_scale, int arm) {
  const int max_vectors = blockDim.x / 32 / Shape<DIM>::SHARES * ROWS;
  DYNAMIC_SHARED(unsigned char, memory);
  const Shared<T, DIM> shared(memory, max_vectors);
  const int first_row = blockIdx.x, before = first_row - spans[2 * first_row], rows = min(tile_rows, spans[2 * first_row + 1] - before);
  if (before % tile_rows != 0) return;  // within a tile
  const int context = rows > 0 ? positions[first_row + rows - 1] + 1 : 0;
  // The last row's splits, which are whole numbers of those of the others.
  const int len = split_len(context), units = elements::divided_up(context, len), blocks = min(int(gridDim.z), units);
  if (int(blockIdx.z) >= blocks) return;  // of nobody's row, all

  const int heads_of_part = min(heads.group(), max_vectors), parts = elements::divided_up(heads.group(), heads_of_part);
  const int kv_head = blockIdx.y / parts, first_head = kv_head * heads.group() + blockIdx.y % parts * heads_of_part;
  const int heads_of_row = min(heads_of_part, (kv_head + 1) * heads.group() - first_head);
  if (threadIdx.x == 0) {
    const Keys<T> keys{layer, block_tables + table_starts[first_row], kv_head, heads.num_kv_heads, DIM, context};
    const bool calibrated = arm == CALIBRATED;
    *shared.call = {keys, positions, states, heads.num_heads, first_row, first_head, rows * heads_of_row, heads_of_row,
                    calibrated ? ranges[3 * kv_head + 1] : -INFINITY, calibrated ? ranges[3 * kv_head + 2] : INFINITY,
                    Operand<T>::WIDE && arm == ONLINE_THRESHOLD ? THRESHOLD : 0.0f, 0.0f, 0};
  }
  __syncthreads();
  Pass pass{Operand<T>::WIDE && is_fixed(arm), false, rows > 1};
  load_queries(*shared.call, shared, qkv, heads, unturned, max_vectors, log2_scale);
  const bool is_stored = unturned.rotation.angles == nullptr;
  if (!is_stored) bring_newest(*shared.call, shared, qkv, heads, unturned, int(blockIdx.z) == (units - 1) % blocks);
  __syncthreads();
  if (pass.fixed) fix_references(*shared.call, shared, is_stored, arm, arm == CALIBRATED ? ranges[3 * kv_head] : 0.0f);
  __syncthreads();

  // Once, or again what is pending after that: by the last block alone.
  for (bool alone = blocks == 1;; alone = true) {
    for (int vector = threadIdx.x; vector < max_vectors; vector += blockDim.x) shared.odd[vector] = 0;
    shared.sums_before().clear();
#pragma unroll 1
    for (int unit = alone ? 0 : blockIdx.z; unit < units; unit += alone ? units : blocks) {
      const int end = alone ? context : min(context, (unit + 1) * len);
      walk(shared, unit * len / BLOCK_SIZE, elements::divided_up(end, BLOCK_SIZE), pass.fixed, pass.careful, alone);
    }
    if (!alone && !is_last(tickets + size_t(blockIdx.x) * gridDim.y + blockIdx.y, blocks, &shared.call->ticket)) return;
    const bool ambiguous = alone ? answer(shared, pass, out) : answer_published(shared, pass, out);
    if (__syncthreads_or(ambiguous)) {
      pass.careful = true;
      continue;
    }
    if (!pass.fixed) return;
    unsigned num_pending = 0;
    for (int vector = 0; vector < shared.call->vectors; vector++) num_pending += shared.pending[vector];
    if (num_pending == 0) return;
    if (threadIdx.x == 0) atomicAdd(recomputed, num_pending);
    pass.fixed = false;
  }
}

// Blocks of threads that a multiprocessor holds at least: with another number the compiler aims at more of them, or fewer, and spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int RESIDENT = 0;  // as the compiler likes
#else
constexpr int RESIDENT = 2;
#endif

}  // namespace

// qkv [rows, qkv_width]; angles [rows, rotary_dim] of rows as the product left them, or null; q_weight, k_weight [head_dim], or
// both null; 0 <= rotary_dim <= head_dim, even; kind is 0 for adjacent pairs, 1 for half split; layer, spans, positions, table_starts
// and block_tables as in step.cuh. ranges [num_kv_heads][3] = phi, below, above, read under arm 2 only (below may be minus infinity;
// above is at most 127). states [rows][num_heads][32][head_dim + 2], aligned to 8 bytes, and tickets [gridDim.x][gridDim.y] may be null
// if gridDim.z is 1. *recomputed is added the (row, head) pairs that were computed again under running references. out [rows,
// num_heads * head_dim]; nobody's rows are left alone. log2_scale is the factor on q.k times log2 e.
#define ATTENTION(name, T, DIM)                                                                                              \
  extern "C" __global__ void __launch_bounds__(128, RESIDENT)                                                                \
      attention_mma_##name##_##DIM(const float* qkv, const float* angles, const float* q_weight, const float* k_weight,      \
                                   void* layer, const int* spans, const int* positions, const int* table_starts,             \
                                   const int* block_tables, const float* ranges, float* states, unsigned* tickets,           \
                                   unsigned* recomputed, float* out, int num_heads, int num_kv_heads, int tile_rows,         \
                                   int rotary_dim, int kind, float eps, float log2_scale, int arm) {                         \
    const float* const of_row = angles ? angles + size_t(blockIdx.x) * rotary_dim : nullptr;                                 \
    const rope::Unturned unturned{{of_row, rotary_dim, kind}, q_weight, k_weight, eps};                                      \
    unturned.prefetch(DIM);                                                                                                  \
    ptx::let_next_start();                                                                                                   \
    ptx::wait_for_previous();                                                                                                \
    attend<T, DIM>(qkv, unturned, layer, spans, positions, table_starts, block_tables, ranges, states, tickets, recomputed,  \
                   out, Heads{num_heads, num_kv_heads, DIM}, tile_rows, log2_scale, arm);                                    \
  }                                                                                                                          \
  EXPORT_KERNEL(attention_mma_##name##_##DIM)
ATTENTION(bf16, __nv_bfloat16, 64)
ATTENTION(bf16, __nv_bfloat16, 96)
ATTENTION(bf16, __nv_bfloat16, 128)
ATTENTION(bf16, __nv_bfloat16, 256)
ATTENTION(f16, __half, 64)
ATTENTION(f16, __half, 96)
ATTENTION(f16, __half, 128)
ATTENTION(f16, __half, 256)
ATTENTION(f8, __nv_fp8_e4m3, 64)
ATTENTION(f8, __nv_fp8_e4m3, 96)
ATTENTION(f8, __nv_fp8_e4m3, 128)
ATTENTION(f8, __nv_fp8_e4m3, 256)
