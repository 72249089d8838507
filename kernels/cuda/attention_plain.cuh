// Attention by fused multiply-adds: what attention_plain.cu and attention_decode.cu share, and so its bits. The head of the former
// says how blocks, warps and lanes divide the work, and in which order sums are made.
#pragma once
#include "attention.cuh"

namespace attention {

using elements::CHUNK;
using softmax::State;

constexpr int THREADS = 128, WARPS = THREADS / 32, MAX_DIM = 256;
// Query heads of a block of threads, those of a warp, and keys of a lane.
constexpr int HEADS = 8, WARP_HEADS = HEADS / WARPS, LANE_KEYS = BLOCK_SIZE / 32;
// Elements of o that a thread has of each head.
constexpr int COLUMNS = MAX_DIM / THREADS;

// The key and value of the row itself, in shared memory, where the cache does not have them yet; the length of the key, as it was
// rounded.
template <class T> struct Newest {
  const T *key, *value;
  const float* length;
};

// What a block of threads attends to.
template <class T> struct Call {
  Keys<T> keys;
  Newest<T> newest;
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
// The last visible key is `newest` if there is one.
template <class T>
__device__ __forceinline__ void scores(const Shared& shared, const T* keys, const T* newest, int head_dim, int visible,
                                       float (&x)[WARP_HEADS][LANE_KEYS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T* key[LANE_KEYS];
#pragma unroll
  for (int i = 0; i < LANE_KEYS; i++) {
    const int at = min(lane + 32 * i, visible - 1);
    key[i] = newest && at == visible - 1 ? newest : keys + at * head_dim;
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

// o += weights * value of a key.
__device__ __forceinline__ void add_value(const Weights& weight, float value, float (&o)[HEADS][COLUMNS], int column) {
#pragma unroll
  for (int head = 0; head < HEADS; head++) o[head][column] = fmaf(weight.of[head], value, o[head][column]);
}

// o = o * scale + weights * values of a tile, for this thread's columns. The last visible value is `newest` if there is one.
template <class T>
__device__ __forceinline__ void add_values(const float (&scales)[HEADS], const Weights (&weights)[BLOCK_SIZE], const T* values,
                                           const T* newest, int head_dim, int visible, float (&o)[HEADS][COLUMNS]) {
  const int in_cache = newest ? visible - 1 : visible;
#pragma unroll
  for (int column = 0; column < COLUMNS; column++) {
    const int d = threadIdx.x + THREADS * column;
    if (d >= head_dim) continue;
#pragma unroll
    for (int head = 0; head < HEADS; head++) o[head][column] *= scales[head];
#pragma unroll 4
    for (int key = 0; key < in_cache; key++) {
      const float value = elements::to_float(values[key * head_dim + d]);
      const Weights weight = weights[key];
      add_value(weight, value, o, column);
    }
    if (newest) {
      const Weights weight = weights[in_cache];
      add_value(weight, elements::to_float(newest[d]), o, column);
    }
  }
}

// Takes a tile into m and l of this warp's heads and o of this thread's columns. One barrier.
template <class T, bool WITH_NEWEST>
__device__ __forceinline__ void add_tile(const Call<T>& call, Shared& shared, int tile, int end, bool fixed, float (&m)[WARP_HEADS],
                                         float (&l)[WARP_HEADS], float (&o)[HEADS][COLUMNS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Piece<T> piece = call.keys.piece(tile);
  const bool is_last = WITH_NEWEST && (call.keys.context - 1) / BLOCK_SIZE == tile;
  const int buffer = tile % 2, visible = min(BLOCK_SIZE, end - tile * BLOCK_SIZE);
  if (warp < call.heads) {
    float x[WARP_HEADS][LANE_KEYS];
    scores(shared, piece.keys, is_last ? call.newest.key : nullptr, call.keys.head_dim, visible, x);
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
  add_values(shared.scales[buffer], shared.weights[buffer], piece.values, is_last ? call.newest.value : nullptr, call.keys.head_dim,
             visible, o);
}

// State and sums of keys `begin` to `end - 1`, a split; `begin` is a multiple of 64. `references` of this warp's heads are used if
// `fixed`. The row's last key is call.newest if WITH_NEWEST. Ends with all threads past a barrier behind which shared.states is read.
template <class T, bool WITH_NEWEST>
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
  for (int tile = begin / BLOCK_SIZE; tile * BLOCK_SIZE < end; tile++)
    add_tile<T, WITH_NEWEST>(call, shared, tile, end, fixed, m, l, sums.o);
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
template <class T, bool WITH_NEWEST>
__device__ __forceinline__ Sums of_splits(const Call<T>& call, Shared& shared, int first, int last, bool fixed,
                                          const float (&references)[WARP_HEADS]) {
  const int len = split_len(call.keys.context);
  Sums all;
  all.clear();
  for (int split = first; split < last; split++)
    all.merge(of_split<T, WITH_NEWEST>(call, shared, split * len, min(call.keys.context, (split + 1) * len), fixed, references));
  return all;
}

// The largest length of a key that the row sees; a whole warp calls it.
template <class T, bool WITH_NEWEST> __device__ __forceinline__ float longest_key(const Call<T>& call) {
  if (!WITH_NEWEST) return call.keys.longest();
  Keys<T> in_cache = call.keys;
  in_cache.context--;
  return softmax::larger(*call.newest.length, in_cache.context > 0 ? in_cache.longest() : 0.0f);
}

// The length of a query; a whole warp calls it.
__device__ __forceinline__ float length(const float* q, int head_dim) {
  float squares = 0.0f;
  for (int d = threadIdx.x % 32; d < head_dim; d += 32) squares = fmaf(q[d], q[d], squares);
  return sqrtf(softmax::warp_sum(squares));
}

// References of this warp's heads under a fixed arm.
template <class T, bool WITH_NEWEST>
__device__ __forceinline__ void fix_references(const Call<T>& call, const Shared& shared, int arm, float phi,
                                               float (&references)[WARP_HEADS]) {
  const int warp = threadIdx.x / 32, head_dim = call.keys.head_dim;
  if (arm == BOUNDED && warp < call.heads) {
    const float longest = longest_key<T, WITH_NEWEST>(call);
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

// What a row is given and leaves, as the kernels declare it.
struct Arguments {
  const float* qkv;
  void* layer;
  const int *positions, *table_starts, *block_tables;
  const float* ranges;
  float* states;
  unsigned *tickets, *recomputed;
  float* out;
  Heads heads;
  float log2_scale;
  int arm;
};

// `source` has queries put into shared.q; the row's own key and value are those of the cache, or, if WITH_NEWEST, what the source
// makes of them.
template <class T, class Source> __device__ __forceinline__ void attend(const Arguments& given, const Source& source) {
  constexpr bool WITH_NEWEST = Source::WITH_NEWEST;
  SHARED(Shared, memory, 1);
  Shared& shared = memory[0];
  const Heads heads = given.heads;
  const int row = blockIdx.x, context = given.positions[row] + 1;
  const int len = split_len(context), splits = elements::divided_up(context, len), blocks = min(int(gridDim.z), splits);
  if (int(blockIdx.z) >= blocks) return;  // of nobody's row, all

  const int parts = elements::divided_up(heads.group(), HEADS), kv_head = blockIdx.y / parts;
  const int first_head = kv_head * heads.group() + blockIdx.y % parts * HEADS, head_dim = heads.head_dim;
  const bool fixed = is_fixed(given.arm);
  const Keys<T> keys{given.layer, given.block_tables + given.table_starts[row], kv_head, heads.num_kv_heads, head_dim, context};
  Call<T> call{keys, {}, min(HEADS, (kv_head + 1) * heads.group() - first_head), -INFINITY, INFINITY};
  float phi = 0.0f;
  if (given.arm == CALIBRATED) {
    const float* const range = given.ranges + 3 * kv_head;
    phi = range[0];
    call.below = range[1];
    call.above = range[2];
  }

  source.bring(given, call, shared, first_head);
  if (threadIdx.x < HEADS) shared.unfit[threadIdx.x] = 0;
  __syncthreads();
  // Of the blocks of a row and KV head, the first that has the last split.
  if constexpr (WITH_NEWEST)
    if (blockIdx.y % parts == 0 && int(blockIdx.z) == (splits - 1) % blocks) source.store(call);

  float references[WARP_HEADS] = {};
  if (fixed) fix_references<T, WITH_NEWEST>(call, shared, given.arm, phi, references);

  // All splits at once, or one after the other for the last block to merge.
  Sums sums;
  const bool alone = blocks == 1;
  for (int split = blockIdx.z; split < splits; split += alone ? splits : blocks) {
    sums = of_splits<T, WITH_NEWEST>(call, shared, split, alone ? splits : split + 1, fixed, references);
    if (!alone) States(given.states, call.heads, head_dim).publish(split, sums);
  }
  if (!alone) {
    if (!is_last(given.tickets + size_t(row) * gridDim.y + blockIdx.y, blocks, &shared.ticket)) return;
    const States published(given.states, call.heads, head_dim);
    sums.clear();
    for (int split = 0; split < splits; split++) sums.merge(published.read(split));
  }

  float* const to = given.out + (size_t(row) * heads.num_heads + first_head) * head_dim;
  const int num_unfit = fixed ? find_unfit(shared, sums, call.heads, context) : 0;
  answer(sums, shared.unfit, 0, call.heads, head_dim, to);
  if (num_unfit == 0) return;
  if (threadIdx.x == 0) atomicAdd(given.recomputed, unsigned(num_unfit));
  answer(of_splits<T, WITH_NEWEST>(call, shared, 0, splits, false, references), shared.unfit, 1, call.heads, head_dim, to);
}

}  // namespace attention
