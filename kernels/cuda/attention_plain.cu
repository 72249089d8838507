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
#include "attention.cuh"

using namespace attention;
using elements::CHUNK;
using softmax::State;

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32, MAX_DIM = 256;
// Query heads of a block of threads, those of a warp, and keys of a lane.
constexpr int HEADS = 8, WARP_HEADS = HEADS / WARPS, LANE_KEYS = BLOCK_SIZE / 32;
// Elements of o that a thread has of each head.
constexpr int COLUMNS = MAX_DIM / THREADS;

// What a block of threads attends to.
template <class T> struct Call {
  Keys<T> keys;
  int heads;  // of HEADS, those that there are
  // How far above a fixed reference scores may lie.
  float below, above;
};

// Weights of a key for all heads.
struct alignas(16) Weights {
  float of[HEADS];
};

// Shared memory of a block of threads.
struct Shared {
  float q[HEADS][MAX_DIM];  // in log2 units; zeros beyond head_dim and beyond the heads
  Weights weights[2][BLOCK_SIZE];
  float scales[2][HEADS];  // of what was summed up before the tile
  State states[HEADS];     // of the split, once it is through
  unsigned unfit[HEADS];
  unsigned ticket;
};

// State and sums of values of all heads over some keys: a thread has its own columns, and every thread all states.
struct Sums {
  State states[HEADS];
  float o[HEADS][COLUMNS];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
      states[head] = softmax::empty_state();
#pragma unroll
      for (int column = 0; column < COLUMNS; column++) o[head][column] = 0.0f;
    }
  }

  // Takes in the keys of another.
  __device__ __forceinline__ void merge(const Sums& other) {
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
      const Merging merging(states[head], other.states[head]);
      states[head] = merging.state;
#pragma unroll
      for (int column = 0; column < COLUMNS; column++) o[head][column] = merging.sum(o[head][column], other.o[head][column]);
    }
  }
};

// Scores of this lane's keys for this warp's heads, in log2 units; masked ones for keys from `visible` on, which may be anything.
template <class T>
__device__ __forceinline__ void scores(const Shared& shared, const T* keys, int head_dim, int visible,
                                       float (&x)[WARP_HEADS][LANE_KEYS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T* key[LANE_KEYS];
#pragma unroll
  for (int i = 0; i < LANE_KEYS; i++) {
    key[i] = keys + min(lane + 32 * i, visible - 1) * head_dim;
#pragma unroll
    for (int head = 0; head < WARP_HEADS; head++) x[head][i] = 0.0f;
  }
#pragma unroll 2
  for (int chunk = 0; chunk * CHUNK < head_dim; chunk++) {
    float k[LANE_KEYS][CHUNK];
#pragma unroll
    for (int i = 0; i < LANE_KEYS; i++) elements::load_chunk(key[i], chunk, head_dim, k[i]);
#pragma unroll
    for (int head = 0; head < WARP_HEADS; head++) {
      const float* const q = shared.q[warp + WARPS * head] + chunk * CHUNK;
#pragma unroll
      for (int d = 0; d < CHUNK; d++)
#pragma unroll
        for (int i = 0; i < LANE_KEYS; i++) x[head][i] = fmaf(q[d], k[i][d], x[head][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < LANE_KEYS; i++)
#pragma unroll
    for (int head = 0; head < WARP_HEADS; head++)
      x[head][i] = lane + 32 * i < visible ? softmax::score(x[head][i]) : softmax::MASKED;
}

// Turns a lane's scores of one head into weights under the reference `m`, which is raised first unless it is fixed; l is the
// sum of the lane's weights. A score that a fixed reference does not allow makes l not a number. The factor on earlier sums.
__device__ __forceinline__ float weigh(float (&x)[LANE_KEYS], bool fixed, float below, float above, float& m, float& l) {
  float scale = 1.0f;
  if (!fixed) {
    float largest = m;
#pragma unroll
    for (int i = 0; i < LANE_KEYS; i++) largest = softmax::larger(x[i], largest);
    const float raised = floorf(softmax::warp_largest(largest));
    scale = softmax::power_of_two(m - raised);
    m = raised;
    l *= scale;
  }
#pragma unroll
  for (int i = 0; i < LANE_KEYS; i++) {
    const bool masked = x[i] == softmax::MASKED, outside = x[i] - m >= above || x[i] - m <= below;
    x[i] = softmax::exp2_from(x[i], m);
    l += fixed && outside && !masked ? NAN : x[i];
  }
  return scale;
}

// o = o * scale + weights * values of a tile, for this thread's columns.
template <class T>
__device__ __forceinline__ void add_values(const float (&scales)[HEADS], const Weights (&weights)[BLOCK_SIZE], const T* values,
                                           int head_dim, int visible, float (&o)[HEADS][COLUMNS]) {
#pragma unroll
  for (int column = 0; column < COLUMNS; column++) {
    const int d = threadIdx.x + THREADS * column;
    if (d >= head_dim) continue;
#pragma unroll
    for (int head = 0; head < HEADS; head++) o[head][column] *= scales[head];
#pragma unroll 4
    for (int key = 0; key < visible; key++) {
      const float value = elements::to_float(values[key * head_dim + d]);
      const Weights weight = weights[key];
#pragma unroll
      for (int head = 0; head < HEADS; head++) o[head][column] = fmaf(weight.of[head], value, o[head][column]);
    }
  }
}

// State and sums of keys `begin` to `end - 1`, a split; `begin` is a multiple of 64. `references` of this warp's heads are used if
// `fixed`. Ends with all threads past a barrier behind which shared.states is read.
template <class T>
__device__ __forceinline__ Sums of_split(const Call<T>& call, Shared& shared, int begin, int end, bool fixed,
                                         const float (&references)[WARP_HEADS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Sums sums;
  sums.clear();
  float m[WARP_HEADS], l[WARP_HEADS];
#pragma unroll
  for (int i = 0; i < WARP_HEADS; i++) {
    m[i] = fixed ? references[i] : softmax::LOWEST;
    l[i] = 0.0f;
  }
  for (int tile = begin / BLOCK_SIZE; tile * BLOCK_SIZE < end; tile++) {
    const Piece<T> piece = call.keys.piece(tile);
    const int buffer = tile % 2, visible = min(BLOCK_SIZE, end - tile * BLOCK_SIZE);
    if (warp < call.heads) {
      float x[WARP_HEADS][LANE_KEYS];
      scores(shared, piece.keys, call.keys.head_dim, visible, x);
#pragma unroll
      for (int i = 0; i < WARP_HEADS; i++) {
        const int head = warp + WARPS * i;
        if (head >= call.heads) continue;
        const float scale = weigh(x[i], fixed, call.below, call.above, m[i], l[i]);
        if (lane == 0) shared.scales[buffer][head] = scale;
#pragma unroll
        for (int j = 0; j < LANE_KEYS; j++) shared.weights[buffer][lane + 32 * j].of[head] = x[i][j];
      }
    }
    // Who writes this buffer again has passed the barrier of the next tile, and all have read it by then.
    __syncthreads();
    add_values(shared.scales[buffer], shared.weights[buffer], piece.values, call.keys.head_dim, visible, sums.o);
  }
#pragma unroll
  for (int i = 0; i < WARP_HEADS; i++) {
    const int head = warp + WARPS * i;
    if (head >= call.heads) continue;
    const float total = softmax::warp_sum(l[i]);
    if (lane == 0) shared.states[head] = {m[i], total};
  }
  __syncthreads();
#pragma unroll
  for (int head = 0; head < HEADS; head++)
    if (head < call.heads) sums.states[head] = shared.states[head];
  return sums;
}

// Of splits `first` to `last - 1`, merged in index order.
template <class T>
__device__ __forceinline__ Sums of_splits(const Call<T>& call, Shared& shared, int first, int last, bool fixed,
                                          const float (&references)[WARP_HEADS]) {
  const int len = split_len(call.keys.context);
  Sums all;
  all.clear();
  for (int split = first; split < last; split++)
    all.merge(of_split(call, shared, split * len, min(call.keys.context, (split + 1) * len), fixed, references));
  return all;
}

// The length of a query; a whole warp calls it.
__device__ __forceinline__ float length(const float* q, int head_dim) {
  float squares = 0.0f;
  for (int d = threadIdx.x % 32; d < head_dim; d += 32) squares = fmaf(q[d], q[d], squares);
  return sqrtf(softmax::warp_sum(squares));
}

// References of this warp's heads under a fixed arm.
template <class T>
__device__ __forceinline__ void fix_references(const Call<T>& call, const Shared& shared, int arm, float phi,
                                               float (&references)[WARP_HEADS]) {
  const int warp = threadIdx.x / 32, head_dim = call.keys.head_dim;
  if (arm == BOUNDED && warp < call.heads) {
    const float longest = call.keys.longest();
#pragma unroll
    for (int i = 0; i < WARP_HEADS; i++)
      references[i] = bounded_reference(length(shared.q[warp + WARPS * i], head_dim), longest, head_dim);
  } else {
#pragma unroll
    for (int i = 0; i < WARP_HEADS; i++) references[i] = phi;
  }
}

// Where the states of a row's splits lie while blocks of threads share it: per split [HEADS] states, then [HEADS][head_dim] sums.
struct States {
  float* at;
  int heads, head_dim;

  __device__ __forceinline__ States(float* states, int heads, int head_dim) : heads(heads), head_dim(head_dim) {
    at = states + (size_t(blockIdx.x) * gridDim.y + blockIdx.y) * MAX_SPLITS * HEADS * (head_dim + 2);
  }
  __device__ __forceinline__ float* of(int split) const { return at + size_t(split) * HEADS * (head_dim + 2); }

  __device__ __forceinline__ void publish(int split, const Sums& sums) const {
    float* const to = of(split);
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
      if (head >= heads) break;
      const State state = sums.states[head];
      if (threadIdx.x == 0) __stcg(reinterpret_cast<float2*>(to) + head, make_float2(state.m, state.l));
#pragma unroll
      for (int column = 0; column < COLUMNS; column++) {
        const int d = threadIdx.x + THREADS * column;
        if (d < head_dim) __stcg(to + 2 * HEADS + head * head_dim + d, sums.o[head][column]);
      }
    }
  }

  __device__ __forceinline__ Sums read(int split) const {
    const float* const from = of(split);
    Sums sums;
    sums.clear();
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
      if (head >= heads) break;
      const float2 state = __ldcg(reinterpret_cast<const float2*>(from) + head);
      sums.states[head] = {state.x, state.y};
#pragma unroll
      for (int column = 0; column < COLUMNS; column++) {
        const int d = threadIdx.x + THREADS * column;
        if (d < head_dim) sums.o[head][column] = __ldcg(from + 2 * HEADS + head * head_dim + d);
      }
    }
    return sums;
  }
};

// Marks the heads whose fixed reference did not fit, in shared.unfit; returns how many, the same in all threads.
__device__ __forceinline__ int find_unfit(Shared& shared, const Sums& sums, int heads, int keys) {
#pragma unroll
  for (int head = 0; head < HEADS; head++) {
    bool fit = fits(sums.states[head].l, keys);
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) fit = fit && sums.o[head][column] - sums.o[head][column] == 0.0f;
    if (head < heads && !fit) atomicExch(&shared.unfit[head], 1u);
  }
  __syncthreads();
  int count = 0;
#pragma unroll
  for (int head = 0; head < HEADS; head++) count += int(shared.unfit[head]);
  return count;
}

// Writes the answers of the heads that were fit, or of those that were not.
__device__ __forceinline__ void answer(const Sums& sums, const unsigned* unfit, unsigned which, int heads, int head_dim, float* out) {
#pragma unroll
  for (int head = 0; head < HEADS; head++) {
    if (head >= heads || unfit[head] != which) continue;
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) {
      const int d = threadIdx.x + THREADS * column;
      if (d < head_dim) out[head * head_dim + d] = sums.o[head][column] / softmax::divisor(sums.states[head]);
    }
  }
}

template <class T>
__device__ __forceinline__ void attend(const float* qkv, void* layer, const int* positions, const int* table_starts,
                                       const int* block_tables, const float* ranges, float* states, unsigned* tickets,
                                       unsigned* recomputed, float* out, Heads heads, float log2_scale, int arm) {
  SHARED(Shared, memory, 1);
  Shared& shared = memory[0];
  const int row = blockIdx.x, context = positions[row] + 1;
  const int len = split_len(context), splits = elements::divided_up(context, len), blocks = min(int(gridDim.z), splits);
  if (int(blockIdx.z) >= blocks) return;  // of nobody's row, all

  const int parts = elements::divided_up(heads.group(), HEADS), kv_head = blockIdx.y / parts;
  const int first_head = kv_head * heads.group() + blockIdx.y % parts * HEADS, head_dim = heads.head_dim;
  const bool fixed = arm != ONLINE;
  const Keys<T> keys{layer, block_tables + table_starts[row], kv_head, heads.num_kv_heads, head_dim, context};
  Call<T> call{keys, min(HEADS, (kv_head + 1) * heads.group() - first_head), -INFINITY, INFINITY};
  float phi = 0.0f;
  if (arm == CALIBRATED) {
    const float* const range = ranges + 3 * kv_head;
    phi = range[0];
    call.below = range[1];
    call.above = range[2];
  }

  for (int i = threadIdx.x; i < HEADS * MAX_DIM; i += THREADS) {
    const int head = i / MAX_DIM, d = i % MAX_DIM;
    const bool there = head < call.heads && d < head_dim;
    shared.q[head][d] = there ? heads.of(qkv, row, first_head + head)[d] * log2_scale : 0.0f;
  }
  if (threadIdx.x < HEADS) shared.unfit[threadIdx.x] = 0;
  __syncthreads();

  float references[WARP_HEADS] = {};
  if (fixed) fix_references(call, shared, arm, phi, references);

  // All splits at once, or one after the other for the last block to merge.
  Sums sums;
  const bool alone = blocks == 1;
  for (int split = blockIdx.z; split < splits; split += alone ? splits : blocks) {
    sums = of_splits(call, shared, split, alone ? splits : split + 1, fixed, references);
    if (!alone) States(states, call.heads, head_dim).publish(split, sums);
  }
  if (!alone) {
    if (!is_last(tickets + size_t(row) * gridDim.y + blockIdx.y, blocks, &shared.ticket)) return;
    const States published(states, call.heads, head_dim);
    sums.clear();
    for (int split = 0; split < splits; split++) sums.merge(published.read(split));
  }

  float* const to = out + (size_t(row) * heads.num_heads + first_head) * head_dim;
  const int num_unfit = fixed ? find_unfit(shared, sums, call.heads, context) : 0;
  answer(sums, shared.unfit, 0, call.heads, head_dim, to);
  if (num_unfit == 0) return;
  if (threadIdx.x == 0) atomicAdd(recomputed, unsigned(num_unfit));
  answer(of_splits(call, shared, 0, splits, false, references), shared.unfit, 1, call.heads, head_dim, to);
}

}  // namespace

// qkv [rows, qkv_width], turned; layer, positions, table_starts and block_tables as in step.cuh. ranges [num_kv_heads][3] = phi,
// below, above, read under arm 2 only (below may be minus infinity; above is at most 127). states [rows][gridDim.y][32][8 (head_dim + 2)]
// and tickets [rows][gridDim.y] may be null if gridDim.z is 1. *recomputed is added the (row, head) pairs that were computed again.
// out [rows, num_heads * head_dim]; rows of nobody are left alone. head_dim <= 256; log2_scale is the factor on q.k times log2 e.
#define ATTENTION(name, T)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(128)                                                                         \
      attention_plain_##name(const float* qkv, void* layer, const int* positions, const int* table_starts,                  \
                             const int* block_tables, const float* ranges, float* states, unsigned* tickets,                \
                             unsigned* recomputed, float* out, int num_heads, int num_kv_heads, int head_dim,               \
                             float log2_scale, int arm) {                                                                   \
    attend<T>(qkv, layer, positions, table_starts, block_tables, ranges, states, tickets, recomputed, out,                  \
              Heads{num_heads, num_kv_heads, head_dim}, log2_scale, arm);                                                   \
  }                                                                                                                         \
  EXPORT_KERNEL(attention_plain_##name)
ATTENTION(bf16, __nv_bfloat16)
ATTENTION(f16, __half)
ATTENTION(f32, float)
