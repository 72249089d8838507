// Softmax of rows of float32: y_i = 2^(x_i - m) / l with m = floor max x and l = sum 2^(x_i - m); scores in log2 units, masks and
// NaN as in kernels/src/softmax. x and out are [rows, cols] and may be the same memory. Bits depend on cols and on the kernel alone.
//
// | kernel               | grid            | threads | reads and writes of an element | bytes  | exponentials |
// |----------------------|-----------------|---------|--------------------------------|--------|--------------|
// | softmax_three_pass   | rows            | 1024    | x, x, out written, read, written | 20   | 1            |
// | softmax_online       | ceil(rows / 4)  | 128     | x, x, out                      | 12     | 2            |
// | softmax_block        | rows            | 128     | x, x, out                      | 12     | 2            |
// | softmax_reduce, then softmax_normalise | chunks, rows | 256 | x, x, out       | 12     | 2            |
// | softmax_cooperative  | chunks, rows    | 256     | x, out                         | 8      | 2            |
//
// Bytes beyond the first read and last write come from the second-level cache while the row fits into it (2^23 elements in
// 50 MB). About 22 flops per exponential: at 12 bytes an element that is under 4 flops a byte, a tenth of what the multiply-add
// pipes of an H200 do per byte of its memory (67 TFLOP/s, 4.8 TB/s): memory bounds all of them once enough blocks run. One
// block of 128 threads keeps 128 x 8 loads under way, 4 KB of the 3 MB that 4.3 TB/s times 700 ns ask for; hence three passes of
// 1024 threads overtake it from some thousand elements on, and several blocks per row overtake both.
//
// Launch contract of all: 1 <= cols <= 2^30, no dynamic shared memory, no dependent launch.
#include "softmax_common.cuh"

using namespace softmax;

// Loads of a thread that are under way at once.
constexpr int LOADS = 8;

namespace {

// LOADS scores of this thread, `stride` apart; masked ones beyond the end.
__device__ __forceinline__ void load_scores(float (&scores)[LOADS], const float* x, int from, int end, int stride) {
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const int at = from + i * stride;
    scores[i] = at < end ? score(x[at]) : MASKED;
  }
}

// The state of what one of `threads` threads sees of x[begin..end]: elements begin + thread, begin + thread + threads, ...
__device__ __forceinline__ State thread_state(const float* x, int begin, int end, int thread, int threads) {
  State state = empty_state();
  for (int from = begin + thread; from < end; from += LOADS * threads) {
    float scores[LOADS];
    load_scores(scores, x, from, end, threads);
    state = take_in(state, scores);
  }
  return state;
}

// out = 2^(x - m) / l, elements as in thread_state.
__device__ __forceinline__ void normalise(const float* x, float* out, int begin, int end, int thread, int threads, State state) {
  const float l = divisor(state);
#pragma unroll 4
  for (int at = begin + thread; at < end; at += threads) out[at] = exp2_from(score(x[at]), state.m) / l;
}

}  // namespace

// Three passes, the baseline: the largest, the weights and their sum, the division. One block of 1024 threads per row.
extern "C" __global__ void __launch_bounds__(1024) softmax_three_pass(const float* x, float* out, int cols) {
  constexpr int THREADS = 1024, WARPS = THREADS / 32;
  SHARED(float, largest_of_warps, WARPS);
  SHARED(float, sum_of_warps, WARPS);
  x += size_t(blockIdx.x) * cols;
  out += size_t(blockIdx.x) * cols;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;

  float largest = LOWEST;
#pragma unroll 4
  for (int at = thread; at < cols; at += THREADS) largest = larger(x[at], largest);
  largest = warp_largest(largest);
  if (lane == 0) largest_of_warps[warp] = largest;
  __syncthreads();
  const float m = floorf(warp_largest(largest_of_warps[lane]));

  float sum = 0.0f;
#pragma unroll 4
  for (int at = thread; at < cols; at += THREADS) {
    const float p = exp2_from(score(x[at]), m);
    out[at] = p;
    sum += p;
  }
  sum = warp_sum(sum);
  if (lane == 0) sum_of_warps[warp] = sum;
  __syncthreads();
  const float l = divisor({m, warp_sum(sum_of_warps[lane])});

  // Each thread reads what it wrote itself.
#pragma unroll 4
  for (int at = thread; at < cols; at += THREADS) out[at] /= l;
}
EXPORT_KERNEL(softmax_three_pass)

// Online, a warp per row and four rows per block: a running (m, l) in each lane, merged by shuffles; no shared memory and no
// barrier. For many rows of up to some thousand elements.
extern "C" __global__ void __launch_bounds__(128) softmax_online(const float* x, float* out, int rows, int cols) {
  const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // whole warps
  x += size_t(row) * cols;
  out += size_t(row) * cols;
  normalise(x, out, 0, cols, lane, 32, warp_state(thread_state(x, 0, cols, lane, 32)));
}
EXPORT_KERNEL(softmax_online)

// Online, one block of 128 threads per row: (m, l) reduced by shuffles in each warp, then over the four warps.
extern "C" __global__ void __launch_bounds__(128) softmax_block(const float* x, float* out, int cols) {
  constexpr int THREADS = 128, WARPS = THREADS / 32;
  SHARED(State, of_warps, WARPS);
  x += size_t(blockIdx.x) * cols;
  out += size_t(blockIdx.x) * cols;
  const State state = block_state(thread_state(x, 0, cols, threadIdx.x, THREADS), of_warps, WARPS);
  normalise(x, out, 0, cols, threadIdx.x, THREADS, state);
}
EXPORT_KERNEL(softmax_block)

namespace {

constexpr int CHUNK_THREADS = 256, CHUNK_WARPS = CHUNK_THREADS / 32;

// Merges states of one row that other blocks wrote, in an order that depends on their number alone: lane i takes i, i + 32, ...,
// then the lanes merge as a tree. The whole warp calls it.
__device__ __forceinline__ State merge_in_order(const State* states, int count) {
  State state = empty_state();
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    const float2 other = __ldcg(reinterpret_cast<const float2*>(states + i));
    state = merge(state, {other.x, other.y});
  }
  return warp_state(state);
}

// Where other blocks read it; visible to them after a fence.
__device__ __forceinline__ void publish(State* to, State state) {
  __stcg(reinterpret_cast<float2*>(to), make_float2(state.m, state.l));
}

}  // namespace

// Several blocks per row, first launch: block c reduces elements [c, c + 1) * chunk_len and publishes its state; the block that
// takes the last ticket of the row merges all of them in order, whoever it is, and writes the row's state.
// gridDim.x = ceil(cols / chunk_len); states is [rows, gridDim.x]; tickets, one per row, are zero before and after.
extern "C" __global__ void __launch_bounds__(256)
    softmax_reduce(const float* x, int cols, int chunk_len, State* states, unsigned* tickets, State* row_states) {
  SHARED(State, of_warps, CHUNK_WARPS);
  const int chunks = gridDim.x, row = blockIdx.y, begin = blockIdx.x * chunk_len, end = min(cols, begin + chunk_len);
  const State mine = thread_state(x + size_t(row) * cols, begin, end, threadIdx.x, CHUNK_THREADS);
  const State state = block_state(mine, of_warps, CHUNK_WARPS);
  if (threadIdx.x >= 32) return;

  unsigned ticket = 0;
  states += size_t(row) * chunks;
  if (threadIdx.x == 0) {
    publish(states + blockIdx.x, state);
    __threadfence();  // the state before the ticket
    ticket = atomicInc(tickets + row, chunks - 1);
    __threadfence();  // the tickets before the states of others
  }
  __syncwarp();
  if (__shfl_sync(ALL_LANES, ticket, 0) != unsigned(chunks - 1)) return;
  const State all = merge_in_order(states, chunks);
  if (threadIdx.x == 0) row_states[row] = all;
}
EXPORT_KERNEL(softmax_reduce)

// Several blocks per row, second launch: divides, given the rows' states. Same grid.
extern "C" __global__ void __launch_bounds__(256)
    softmax_normalise(const float* x, float* out, int cols, int chunk_len, const State* row_states) {
  const int row = blockIdx.y, begin = blockIdx.x * chunk_len, end = min(cols, begin + chunk_len);
  normalise(x + size_t(row) * cols, out + size_t(row) * cols, begin, end, threadIdx.x, CHUNK_THREADS, row_states[row]);
}
EXPORT_KERNEL(softmax_normalise)

// Several blocks per row, one launch: a block keeps its chunk in registers, publishes its state, waits for those of the row's
// other blocks and merges them in order. Every element is read once.
// All blocks must be on the machine at once (a cooperative launch); chunk_len <= 256 * 32; counters, two per row, are zero before
// and after.
extern "C" __global__ void __launch_bounds__(256)
    softmax_cooperative(const float* x, float* out, int cols, int chunk_len, State* states, unsigned* counters) {
  constexpr int GROUPS = 4;
  SHARED(State, of_warps, CHUNK_WARPS);
  const int chunks = gridDim.x, row = blockIdx.y, begin = blockIdx.x * chunk_len, end = min(cols, begin + chunk_len);
  x += size_t(row) * cols;
  out += size_t(row) * cols;
  states += size_t(row) * chunks;
  unsigned *const arrived = counters + 2 * row, *const left = arrived + 1;

  float scores[GROUPS][LOADS];
  State state = empty_state();
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    load_scores(scores[group], x, begin + group * LOADS * CHUNK_THREADS + threadIdx.x, end, CHUNK_THREADS);
    state = take_in(state, scores[group]);
  }
  state = block_state(state, of_warps, CHUNK_WARPS);

  if (threadIdx.x == 0) {
    publish(states + blockIdx.x, state);
    ptx::add_release(arrived, 1);
    while (ptx::load_acquire(arrived) < unsigned(chunks)) {
    }
    // Who leaves last has seen everybody pass the wait.
    if (atomicInc(left, chunks - 1) == unsigned(chunks - 1)) atomicExch(arrived, 0u);
  }
  __syncthreads();
  const State all = merge_in_order(states, chunks);
  const float l = divisor(all);
#pragma unroll
  for (int group = 0; group < GROUPS; group++)
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int at = begin + (group * LOADS + i) * CHUNK_THREADS + threadIdx.x;
      if (at < end) out[at] = exp2_from(scores[group][i], all.m) / l;
    }
}
EXPORT_KERNEL(softmax_cooperative)
