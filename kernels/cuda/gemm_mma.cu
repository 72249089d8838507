// Products of up to 64 rows with a weight matrix on tensor cores: out[r][n] = sum_k x[r][k] w[n][k], float32 in memory and in sums,
// weights as tiles (tiles.cuh), the weights as the 16-row operand A of mma.m16n8k16 and rows of x as its eight columns.
//
// x is rounded to bfloat16 when a block stages it. float16 weights have float16 products: a row is scaled by a power of two, so
// that its largest magnitude is in [2^13, 2^14), and its sums scaled back, which rounds nothing. Before that x may be normalised,
// to the bits of rms_norm. What becomes of a sum: out = sum (+ bias), out += sum, or out = silu(gate) * up with gate and up two
// matrices of the same shape.
//
// | kernel          | rows of a block | panels of 16 outputs it computes together | steps under way in each warp |
// |-----------------|-----------------|--------------------------------------------|------------------------------|
// | gemm_mma_T_r8   | 8               | 1                                          | 8; float and K types 4       |
// | gemm_mma_T_r16  | 16              | 1                                          | 4                            |
// | gemm_mma_T_r32  | 32; none of f8  | 2                                          | 2                            |
// | gemm_mma_T_r64  | 64              | 2; q6_k 1                                  | 2                            |
//
// Grid (any, ceil(rows / rows of a block)), 256 threads. Block b computes panels (pairs of panels) b, b + gridDim.x, ... with x
// staged once, if it is staged whole; for silu a panel of gate and the same one of up count as one panel (pair). No bit depends
// on gridDim.x. Good numbers: as many blocks as panels (pairs), but at most 4 for each multiprocessor with one or two rows, 2 with
// three or four, else 1, and then as few as leave no block with more panels: every block reads all of x.
//
// Order of a sum: warp w takes steps of 32 columns w, w + 8, ... ascending. Float types: each step two products of 16 columns,
// added up by the tensor core. Quantized types: a step's (q6_k: each half's) products from zero, then sum = fmaf(scale, products,
// sum), then where there is a minimum sum = fmaf(minimum, sum of the step's x, sum). Then the eight warps' sums in order. It depends
// on cols alone: columns of a product do not meet, so a row has the bits it has alone, in all four kernels.
// A step's sum of x is that of the rounded values: lane q of four adds up columns 2 q, 2 q + 1, then those 8, 16, 24 on, in order,
// then lanes as a tree: q and q ^ 1, then q and q ^ 2.
//
// Bytes: the matrix once for each `rows of a block`; 4 cols rows of x for each block of threads, and for each of its panels (pairs)
// where x is staged in pieces. Flops: 2 n cols rows. Up to 8 rows DRAM bounds it: while an H200 brings 288 bytes of q4_0 to each
// multiprocessor at 4.3 TB/s there are 62 slots for instructions, and a step of r8 takes about 50; bf16 has 220 slots for 35, f8
// (544 bytes a step) 117. With more rows reading x from the second-level cache does: 16 rows of 4096 columns are 256 KB for each block, 64 rows 1 MB for each
// pair of panels of 256 KB (bf16). Computed, not measured.
//
// Before it waits for the kernel before it (ptx.cuh) it reads weights alone, which nothing writes once a model is loaded: each warp's
// first steps, DEPTH of each panel, come into registers, 7 to 35 KB for a block, and norm into the second-level cache; the compiler
// may load of matrix, up, norm and bias what it likes.
//
// Launch contract: may be launched with the attribute of programmatic stream serialization, and without; the kernels that made the
// tiles have ended. Dynamic shared memory is min(piece, ceil(cols / 32)) * rows of a block * 64 bytes, and for types with minimums
// (q4_1, q5_1, q4_k, q5_k) * 68; beside it up to 24 KB of static shared memory. `piece` is how many steps of x are staged together:
// at least ceil(cols / 32), or a multiple of 64 (r8), 32 (r16), 16 (r32, r64). x, norm, tiles aligned to 16 bytes. cols even, and
// a whole number of blocks. out is neither x nor a matrix.
// out points at the first output of this part in the first row, and out_stride elements on at that of the next.
#include "softmax_common.cuh"
#include "tiles.cuh"

namespace {

using tiles::Byte;
using tiles::PANEL;
using tiles::STEP;

constexpr int WARPS = 8, THREADS = 32 * WARPS;

// What a kernel is given.
struct Call {
  const float* x;
  const Byte *matrix, *up;      // tiles; up is null, or with matrix as gate the product is silu(gate) * up
  const float *bias, *norm;     // of outputs, of columns; null where there is none
  float* out;
  int rows, n, cols, out_stride;
  int add;                      // to what is in out
  int piece;
  float eps;

  __device__ __forceinline__ int steps() const { return tiles::steps(cols); }
  __device__ __forceinline__ int panels() const { return (n + PANEL - 1) / PANEL; }
};

// What a row of x is multiplied by, and what a sum of its products is.
struct RowScales {
  float of_norm, of_x, of_sum;
};

// One of the four kernels for a type.
template <class T, int GROUPS> struct Shape {
  // With two scales a step and 64 rows, sm_120 has no registers for a second panel.
  static constexpr int ROWS = 8 * GROUPS, PANELS = GROUPS <= 2 || (GROUPS == 8 && T::RUN == 16) ? 1 : 2;
  static constexpr int DEPTH = GROUPS == 1 ? (sizeof(typename T::Raw) <= 20 ? 8 : 4) : GROUPS == 2 ? 4 : 2;
};

// Whether rows of x are scaled.
template <class T> constexpr bool IS_SCALED = false;
template <> constexpr bool IS_SCALED<tiles::F16> = true;

// x of a piece, as the lanes of a warp want it: of step s and group g of eight rows, lane l's operands B of both halves, 16 bytes.
// Rows that are not there have no bytes: their columns of the products are not used.
struct Staged {
  uint4* operands;
  float* sums;  // of the 32 columns of a step, for each row
};

template <class T, int GROUPS> __device__ __forceinline__ Staged staged(const Call& call) {
  DYNAMIC_SHARED(uint4, memory);
  return {memory, reinterpret_cast<float*>(memory + size_t(min(call.piece, call.steps())) * GROUPS * 32)};
}

// Columns k and k + 1 of a row of even length, zeros beyond its end; k is even.
__device__ __forceinline__ float2 pair_of(const float* row, int k, int cols) {
  return k < cols ? *reinterpret_cast<const float2*>(row + k) : make_float2(0.0f, 0.0f);
}

// The same columns after the norm.
__device__ __forceinline__ float2 normalised(const Call& call, float2 x, float scale, int k) {
  if (!call.norm) return x;
  const float2 weight = pair_of(call.norm, k, call.cols);
  return make_float2(x.x * scale * weight.x, x.y * scale * weight.y);
}

// Rounds a pair, scaled for its type, and leaves in it what it was rounded to.
__device__ __forceinline__ unsigned round_pair(float2& x, float, __nv_bfloat16) {
  const __nv_bfloat16 first = __float2bfloat16(x.x), second = __float2bfloat16(x.y);
  x = make_float2(__bfloat162float(first), __bfloat162float(second));
  return unsigned(__bfloat16_as_ushort(first)) | unsigned(__bfloat16_as_ushort(second)) << 16;
}
__device__ __forceinline__ unsigned round_pair(float2& x, float scale, __half) {
  return unsigned(__half_as_ushort(__float2half(x.x * scale))) | unsigned(__half_as_ushort(__float2half(x.y * scale))) << 16;
}

// Stages `count` steps from `first` on. Four lanes have a step of a row, a warp eight steps: whole sectors of rows.
template <class T, int GROUPS>
__device__ __forceinline__ void stage(const Call& call, const RowScales* scales, int first_row, int first, int count) {
  constexpr int BATCH = 4;  // loads under way, in four pairs
  const Staged to = staged<T, GROUPS>(call);
  const int q = tiles::lane() % 4, rows = min(call.rows - first_row, 8 * GROUPS);
  const int octets = (count + 7) / 8, all = rows * octets;
  for (int begin = threadIdx.x / 32; begin < all; begin += BATCH * WARPS) {
    float2 pairs[BATCH][4];
    int rows_of[BATCH], steps_of[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      const int at = min(begin + b * WARPS, all - 1);
      rows_of[b] = at / octets;
      steps_of[b] = at % octets * 8 + tiles::lane() / 4;
      const float* const x = call.x + size_t(first_row + rows_of[b]) * call.cols;
#pragma unroll
      for (int i = 0; i < 4; i++) pairs[b][i] = pair_of(x, (first + steps_of[b]) * STEP + 8 * i + 2 * q, call.cols);
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      if (begin + b * WARPS >= all) break;
      const int row = rows_of[b], step = steps_of[b], place = step * GROUPS + row / 8;
      const RowScales scale = scales[row];
      unsigned words[4];
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float2 pair = normalised(call, pairs[b][i], scale.of_norm, (first + step) * STEP + 8 * i + 2 * q);
        words[i] = round_pair(pair, scale.of_x, typename T::Element());
        sum = sum + pair.x + pair.y;
      }
      if (T::MINIMUM) {
        sum += __shfl_xor_sync(softmax::ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(softmax::ALL_LANES, sum, 2);
      }
      if (step >= count) continue;
      to.operands[place * 32 + row % 8 * 4 + q] = make_uint4(words[0], words[1], words[2], words[3]);
      if (T::MINIMUM && q == 0) to.sums[place * 8 + row % 8] = sum;
    }
  }
}

// `f` of thread t's part of each row, warps' results to `of_warps` by way of `over_lanes`; then `g(row, result)`, where the result
// of all is the same in all lanes of the warp that has the row. A barrier before and none after.
template <class F, class Tree, class G>
__device__ __forceinline__ void for_rows(int rows, float* of_warps, F f, Tree over_lanes, G g) {
  const int warp = threadIdx.x / 32, lane = tiles::lane();
  for (int row = 0; row < rows; row++) {
    const float of_warp = over_lanes(f(row));
    if (lane == 0) of_warps[row * WARPS + warp] = of_warp;
  }
  __syncthreads();
  for (int row = warp; row < rows; row += WARPS) g(row, over_lanes(lane < WARPS ? of_warps[row * WARPS + lane] : 0.0f));
}

// The scales of a block's rows; barriers before anything reads them.
template <class T, int GROUPS>
__device__ __forceinline__ void find_scales(const Call& call, int first_row, RowScales* scales, float* of_warps) {
  const int rows = min(call.rows - first_row, 8 * GROUPS);
  const float* const x = call.x + size_t(first_row) * call.cols;
  if (threadIdx.x < 8 * GROUPS) scales[threadIdx.x] = {1.0f, 1.0f, 1.0f};
  __syncthreads();
  if (call.norm) {
    // As rms_norm: the order of its sum, and its formula.
    const auto squares = [&](int row) {
      float sum = 0.0f;
#pragma unroll 4
      for (int k = threadIdx.x; k < call.cols; k += THREADS) {
        const float value = x[size_t(row) * call.cols + k];
        sum = fmaf(value, value, sum);
      }
      return sum;
    };
    const auto tree = [](float sum) { return softmax::warp_sum(sum); };
    for_rows(rows, of_warps, squares, tree, [&](int row, float sum) {
      if (tiles::lane() == 0) scales[row].of_norm = 1.0f / sqrtf(sum / float(call.cols) + call.eps);
    });
    __syncthreads();
  }
  if constexpr (IS_SCALED<T>) {
    const auto largest = [&](int row) {
      float most = 0.0f;
      for (int k = 2 * int(threadIdx.x); k < call.cols; k += 2 * THREADS) {
        const float2 pair = normalised(call, pair_of(x + size_t(row) * call.cols, k, call.cols), scales[row].of_norm, k);
        most = softmax::larger(fabsf(pair.y), softmax::larger(fabsf(pair.x), most));
      }
      return most;
    };
    const auto tree = [](float most) { return softmax::warp_largest(most); };
    for_rows(rows, of_warps, largest, tree, [&](int row, float most) {
      // Exponents as bits: 13 + 127 - (e - 127), not above what has a reciprocal.
      const int exponent = min(267 - (__float_as_int(most) >> 23), 253);
      if (tiles::lane() > 0) return;
      scales[row].of_x = __int_as_float(exponent << 23);
      scales[row].of_sum = __int_as_float((254 - exponent) << 23);
    });
    __syncthreads();
  }
}

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], __nv_bfloat16) {
  ptx::mma_m16n8k16_bf16(d, a, b);
}
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], __half) {
  ptx::mma_m16n8k16_f16(d, a, b);
}

// Sums of a warp: of each panel and group of rows the four of mma's operand D, (output lane / 4, rows 2 (lane % 4), + 1), and the
// same rows of output lane / 4 + 8.
template <class T, int GROUPS> struct Sums {
  static constexpr int PANELS = Shape<T, GROUPS>::PANELS;
  float of[PANELS][GROUPS][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
      for (int group = 0; group < GROUPS; group++)
#pragma unroll
        for (int i = 0; i < 4; i++) of[panel][group][i] = 0.0f;
  }

  // Takes in step `step` of what is staged.
  __device__ __forceinline__ void take_in(const typename T::Raw (&raw)[PANELS], const Staged& x, int step) {
    unsigned a[PANELS][2][4];
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
      for (int half = 0; half < 2; half++) T::fragment(raw[panel], half, a[panel][half]);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
      const int place = step * GROUPS + group;
      const uint4 pairs = x.operands[place * 32 + tiles::lane()];
      const unsigned b[2][2] = {{pairs.x, pairs.y}, {pairs.z, pairs.w}};
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) add_products(of[panel][group], raw[panel], a[panel], b);
      if constexpr (T::MINIMUM) {
        const float2 sums = reinterpret_cast<const float2*>(x.sums)[place * 4 + tiles::lane() % 4];
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++)
          add_scaled(of[panel][group], T::minimum(raw[panel]), sums.x, sums.y, sums.x, sums.y);
      }
    }
  }

 private:
  static __device__ __forceinline__ void add_scaled(float (&to)[4], float2 scale, float x0, float x1, float x2, float x3) {
    to[0] = fmaf(scale.x, x0, to[0]);
    to[1] = fmaf(scale.x, x1, to[1]);
    to[2] = fmaf(scale.y, x2, to[2]);
    to[3] = fmaf(scale.y, x3, to[3]);
  }
  static __device__ __forceinline__ void add_products(float (&to)[4], const typename T::Raw& raw, const unsigned (&a)[2][4],
                                                      const unsigned (&b)[2][2]) {
    const typename T::Element element{};
    if constexpr (T::RUN == 0) {
      multiply(to, a[0], b[0], element);
      multiply(to, a[1], b[1], element);
    } else if constexpr (T::RUN == 32) {
      float run[4] = {};
      multiply(run, a[0], b[0], element);
      multiply(run, a[1], b[1], element);
      add_scaled(to, T::scale(raw, 0), run[0], run[1], run[2], run[3]);
    } else {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float run[4] = {};
        multiply(run, a[half], b[half], element);
        add_scaled(to, T::scale(raw, half), run[0], run[1], run[2], run[3]);
      }
    }
  }
};

// The work of a block: turns, each with the panels of one or two matrices that are computed together.
template <class T, int GROUPS> struct Turns {
  static constexpr int PANELS = Shape<T, GROUPS>::PANELS;
  const Call& call;
  size_t panel_bytes;

  explicit __device__ __forceinline__ Turns(const Call& call) : call(call), panel_bytes(T::panel_bytes(call.cols)) {}

  // Gate and up, one after the other.
  __device__ __forceinline__ bool alternate() const { return PANELS == 1 && call.up; }
  // Panels of each matrix that a turn has.
  __device__ __forceinline__ int width() const { return call.up ? 1 : PANELS; }
  __device__ __forceinline__ int first_panel(int turn) const {
    return (int(blockIdx.x) + turn / (alternate() ? 2 : 1) * int(gridDim.x)) * width();
  }
  __device__ __forceinline__ bool is_there(int turn) const { return first_panel(turn) < call.panels(); }
  // A panel that there is not is the last one, and not written.
  __device__ __forceinline__ const Byte* panel(int turn, int i) const {
    const bool of_up = alternate() ? turn % 2 : call.up && i;
    const int number = min(first_panel(turn) + (call.up ? 0 : i), call.panels() - 1);
    return (of_up ? call.up : call.matrix) + number * panel_bytes;
  }
};

// The weights that a warp has under way: its steps warp, warp + 8, ... of a turn's panels, then those of the next turn.
template <class T, int GROUPS> struct Stream {
  static constexpr int PANELS = Shape<T, GROUPS>::PANELS, DEPTH = Shape<T, GROUPS>::DEPTH;
  typename T::Raw raw[DEPTH][PANELS];
  const Byte *now[PANELS], *next[PANELS];
  bool has_next;
  int cols, mine;  // how many steps this warp has of a panel

  // The first steps of the first turn.
  __device__ __forceinline__ void begin(const Turns<T, GROUPS>& turns) {
    cols = turns.call.cols;
    mine = (turns.call.steps() - int(threadIdx.x / 32) + WARPS - 1) / WARPS;
    has_next = turns.is_there(0);
#pragma unroll
    for (int i = 0; i < PANELS; i++) next[i] = has_next ? turns.panel(0, i) : nullptr;
#pragma unroll
    for (int slot = 0; slot < DEPTH; slot++)
      if (has_next && slot < mine) load(slot, next, slot);
  }
  __device__ __forceinline__ void begin_turn(const Turns<T, GROUPS>& turns, int turn) {
    has_next = turns.is_there(turn + 1);
#pragma unroll
    for (int i = 0; i < PANELS; i++) {
      now[i] = next[i];
      if (has_next) next[i] = turns.panel(turn + 1, i);
    }
  }
  // Fills the slot that number `number` of this turn was in, with what comes DEPTH later. Every turn has as many steps, so
  // number `slot` of the next is looked for in `slot`.
  __device__ __forceinline__ void refill(int slot, int number) {
    const bool of_now = number + DEPTH < mine;
    const Byte* panels[PANELS];
#pragma unroll
    for (int i = 0; i < PANELS; i++) panels[i] = of_now ? now[i] : next[i];
    if (of_now || has_next) load(slot, panels, of_now ? number + DEPTH : slot);
  }

 private:
  __device__ __forceinline__ void load(int slot, const Byte* const (&panels)[PANELS], int number) {
#pragma unroll
    for (int i = 0; i < PANELS; i++) T::load(panels[i], number, threadIdx.x / 32, cols, raw[slot][i]);
  }
};

// Sums of a group of rows in shared memory: a place for each (row, output) of each panel and warp, twice, so that a group has one
// barrier. Rows are 20 elements apart: then no two lanes that store at once meet in a bank.
constexpr int ROW_PLACES = 20, PANEL_PLACES = 8 * ROW_PLACES;

template <int PANELS> struct Partials {
  float* places;

  __device__ __forceinline__ float* of(int warp, int panel) const { return places + (warp * PANELS + panel) * PANEL_PLACES; }
  __device__ __forceinline__ void store(int panel, const float (&sums)[4]) const {
    const int row = tiles::lane() % 4 * 2, output = tiles::lane() / 4;
    float* const to = of(threadIdx.x / 32, panel) + row * ROW_PLACES + output;
    to[0] = sums[0];
    to[ROW_PLACES] = sums[1];
    to[8] = sums[2];
    to[ROW_PLACES + 8] = sums[3];
  }
  // Over the warps in order.
  __device__ __forceinline__ float sum(int panel, int row, int output) const {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += of(warp, panel)[row * ROW_PLACES + output];
    return sum;
  }
};

// As the kernel silu_mul.
__device__ __forceinline__ float silu_mul(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

// Merges the warps' sums and writes what this turn gives. Thread t has row t % 128 / 16 of each group and output t % 16 of panel
// t / 128; of gate and up, the first 128 threads do, and keep gates until up is there.
template <class T, int GROUPS>
__device__ __forceinline__ void write(const Call& call, const Turns<T, GROUPS>& turns, int turn, const Sums<T, GROUPS>& sums,
                                      float* places, const RowScales* scales, int first_row, float (&gates)[GROUPS]) {
  constexpr int PANELS = Shape<T, GROUPS>::PANELS;
  const int owned = threadIdx.x / 128, row_of_group = threadIdx.x % 128 / PANEL, output_of_panel = threadIdx.x % PANEL;
  const int output = (turns.first_panel(turn) + owned) * PANEL + output_of_panel;
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    const Partials<PANELS> partials = {places + (turn * GROUPS + group) % 2 * (WARPS * PANELS * PANEL_PLACES)};
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) partials.store(panel, sums.of[panel][group]);
    __syncthreads();
    const int row_of_block = group * 8 + row_of_group, row = first_row + row_of_block;
    if (owned >= turns.width() || row >= call.rows || output >= call.n) continue;

    const auto sum_of = [&](int panel) {
      const float sum = partials.sum(panel, row_of_group, output_of_panel);
      return IS_SCALED<T> ? sum * scales[row_of_block].of_sum : sum;
    };
    float result = sum_of(owned);
    if (turns.alternate()) {
      if (turn % 2 == 0) {
        gates[group] = result;
        continue;
      }
      result = silu_mul(gates[group], result);
    } else if (call.up) {
      result = silu_mul(result, sum_of(PANELS - 1));
    }
    if (call.bias) result += call.bias[output];
    float* const to = call.out + size_t(row) * call.out_stride + output;
    *to = call.add ? *to + result : result;
  }
}

// Asks for what the block will stage with x and no kernel writes.
__device__ __forceinline__ void prefetch_norm(const Call& call) {
  constexpr int FLOATS = 32;  // of a line of the cache
  if (!call.norm) return;
#pragma unroll 1
  for (int k = threadIdx.x * FLOATS; k < call.cols; k += THREADS * FLOATS) ptx::prefetch(call.norm + k);
}

template <class T, int GROUPS> __device__ __forceinline__ void gemm(const Call& call) {
  constexpr int PANELS = Shape<T, GROUPS>::PANELS, ROWS = Shape<T, GROUPS>::ROWS;
  SHARED(float, partials, 2 * WARPS * PANELS * PANEL_PLACES);
  SHARED(RowScales, scales, ROWS);
  SHARED(float, of_warps, ROWS * WARPS);
  const int first_row = blockIdx.y * ROWS, steps = call.steps();
  const bool in_pieces = call.piece < steps;
  const Staged x = staged<T, GROUPS>(call);
  const Turns<T, GROUPS> turns(call);

  Stream<T, GROUPS> stream;
  stream.begin(turns);
  prefetch_norm(call);
  ptx::let_next_start();
  ptx::wait_for_previous();
  find_scales<T, GROUPS>(call, first_row, scales, of_warps);
  float gates[GROUPS] = {};  // of the turn before, this thread's
  for (int turn = 0; turns.is_there(turn); turn++) {
    Sums<T, GROUPS> sums;
    sums.clear();
    stream.begin_turn(turns, turn);
    for (int first = 0; first < steps; first += call.piece) {
      if (in_pieces || turn == 0) {
        __syncthreads();  // who reads the piece before
        stage<T, GROUPS>(call, scales, first_row, first, min(call.piece, steps - first));
        __syncthreads();
      }
      const int end = in_pieces ? min((first + call.piece) / WARPS, stream.mine) : stream.mine;
      for (int number = first / WARPS; number < end; number += stream.DEPTH)
#pragma unroll
        for (int slot = 0; slot < stream.DEPTH; slot++)
          if (number + slot < end) {
            sums.take_in(stream.raw[slot], x, (number + slot) * WARPS + int(threadIdx.x / 32) - first);
            stream.refill(slot, number + slot);
          }
    }
    write<T, GROUPS>(call, turns, turn, sums, partials, scales, first_row, gates);
  }
}

}  // namespace

// x [rows, cols]; matrix tiles of n outputs; up null, or tiles of as many; bias [n] or null; norm [cols] or null; out as above;
// add 0 or 1; eps of the norm.
#define GEMM_MMA(T, GROUPS, BLOCKS, kernel)                                                                           \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                           \
      kernel(const float* x, const unsigned char* __restrict__ matrix, const unsigned char* __restrict__ up,          \
             const float* __restrict__ bias, const float* __restrict__ norm, float* out, int rows, int n, int cols,   \
             int out_stride, int add, int piece, float eps) {                                                         \
    gemm<tiles::T, GROUPS>({x, matrix, up, bias, norm, out, rows, n, cols, out_stride, add, piece, eps});             \
  }                                                                                                                   \
  EXPORT_KERNEL(kernel)
#define FOR_ALL_ROWS(name, T)                      \
  GEMM_MMA(T, 1, 2, gemm_mma_##name##_r8)    \
  GEMM_MMA(T, 2, 2, gemm_mma_##name##_r16)   \
  GEMM_MMA(T, 4, 1, gemm_mma_##name##_r32)   \
  GEMM_MMA(T, 8, 1, gemm_mma_##name##_r64)
FOR_EACH_TILED_TYPE_OF_FILES(FOR_ALL_ROWS)
// What 17 to 32 rows of f8 would gain is not worth the bytes of a fourth kernel for each architecture.
GEMM_MMA(F8E4M3, 1, 2, gemm_mma_f8_r8)
GEMM_MMA(F8E4M3, 2, 2, gemm_mma_f8_r16)
GEMM_MMA(F8E4M3, 8, 1, gemm_mma_f8_r64)
