// Products of 16 to 128 rows, and more by grid.y, with bf16 weights on Hopper's tensor cores:
// out[r][n] = sum_k bf16(x[r][k]) w[n][k] (+ bias[n]), x and sums float32. sm_90a alone: elsewhere the kernels are empty.
//
// Weights are the tiles of bf16 that gemm_mma.cu reads (tiles.cuh), so they are in memory once: 16 outputs x 16 k, 512 bytes; panels
// of 16 outputs one after the other (n padded with zeros), in a panel k ascending (cols padded with zeros); lane l's 16 bytes, at
// 16 l, are what it gives wgmma as A, the layout in hopper.cuh.
// So D [64 outputs, ROWS] += W [64, 16] X [16, ROWS]: outputs, of which there are many, fill the 64 that wgmma is tall, and rows
// are as wide as there are.
//
// Grid (ceil(n / (64 GROUPS)), ceil(rows / ROWS), 1 or SEGMENTS), 128 (GROUPS + 1) threads: GROUPS warpgroups that multiply, each
// 64 outputs, and four warps that fill a ring of STAGES in shared memory, 64 k each. One lane of the first has weights copied,
// 2 KB a panel (cp.async.bulk); the other three read x, round it and store it as wgmma wants B (a line of 128 bytes a row, swizzled),
// each warp every third stage, because a stage of x takes a trip to the second-level cache (700 cycles) and a stage of weights
// passes in 880 (16 KB of 4.3 TB/s / 132). A barrier says that a stage is full, another one that it was used.
//
// Weights go through shared memory, not straight to registers: 4.3 TB/s times 800 ns are 26 KB under way per multiprocessor, twice
// that to be safe. In registers that is 32 of each of 384 threads, beside 128 for sums; a ring holds 80 to 200 KB and costs none.
//
// Order of sums, by cols alone: stages of 64 k (T = ceil(cols / 64)) in SEGMENTS runs T j / SEGMENTS to T (j + 1) / SEGMENTS from
// T = 16 on, in one run below; of a run k ascends, 16 at a time, in the tensor core; runs add up in order, from 0.0f. Who computes
// a run changes nothing: with grid.z = 1 a block takes them one after the other, with grid.z = SEGMENTS each has a block, sums
// go through `partial`, and the block that comes last adds them up. It is another order than gemm_mma.cu's, so a row's bits depend on
// which of both computes it: only who allows that (Cuda::with_exact_rows) has these kernels. Outputs fill the machine alone from
// n = 16896 (132 x 128) on.
//
// Bytes: 2 n cols of weights per grid.y, and 4 ROWS cols of x per block from the second-level cache: 2 ROWS / (64 GROUPS) of the
// weights' bytes, 0.25, 0.5, 1, 2 for 16, 32, 64, 128 rows. Flops: 2 n cols ROWS. If that cache gives 5.5 TB/s, DRAM bounds 16
// rows (4.3 TB/s of weights), and the cache the others: 3.7, 2.7, 1.8 TB/s of weights. x in bf16 in memory would halve its part:
// 4.3, 3.7, 2.7. Tensor cores: 128 rows take 64 cycles of the 110 in which 4.3 TB/s bring a tile of 64 x 16. grid.z = SEGMENTS
// writes and reads 8 ROWS n SEGMENTS bytes more. Computed, not measured.
//
// Quantized types are not here. A block of 32 has a scale of its own: two wgmma into zeroed sums, a wait, then a multiply-add for
// each sum. Multiply-adds take 64 x ROWS / 128 cycles per 64 x 32 weights, wgmma ROWS: together 24 of the 117 cycles that q8_0's
// 2176 bytes take at 16 rows, 192 of 117 at 128 (q4_0: of 62), and the wait keeps them from overlapping within a warpgroup. Up to
// 32 rows it fits, but there mma.sync, which has its sums at once, fits too; from 64 rows on weights are better expanded to bf16
// before the products. Computed, not measured.
//
// Launch contract: dynamic shared memory of STAGES (128 ROWS + 8192 GROUPS + 16) bytes, no dependent launch; x and w aligned to 16.
// out points at the first output of this part in the first row, out_stride elements on at that of the next. grid.z = SEGMENTS only
// where T >= 16; then partial has grid.x grid.y SEGMENTS 64 GROUPS ROWS floats, and tickets grid.x grid.y zeros, which come back zero.
//
// | kernel              | ROWS | GROUPS | STAGES | threads | dynamic shared memory | blocks of a multiprocessor |
// |---------------------|------|--------|--------|---------|-----------------------|----------------------------|
// | gemm_wgmma_bf16_16  | 16   | 2      | 6      | 384     | 110688                | 2                          |
// | gemm_wgmma_bf16_32  | 32   | 2      | 5      | 384     | 102480                | 2                          |
// | gemm_wgmma_bf16_64  | 64   | 2      | 8      | 384     | 196736                | 1                          |
// | gemm_wgmma_bf16_128 | 128  | 2      | 6      | 384     | 196704                | 1                          |
#include "elements.cuh"
#include "hopper.cuh"

#ifdef HAS_HOPPER
namespace {

using Byte = unsigned char;
using elements::CHUNK;

constexpr int SEGMENTS = 4, LEAST_STAGES_OF_SEGMENTS = 16;
constexpr int STAGE_COLS = 64, STEP_COLS = 16, STEPS = STAGE_COLS / STEP_COLS;  // of k
constexpr int PANEL = 16, PANELS = 4;                                          // outputs; panels of a warpgroup
constexpr int TILE_BYTES = PANEL * STEP_COLS * 2;
constexpr int WARPGROUP = 128, X_WARPS = 3;

struct Product {
  const float* x;
  const Byte* w;
  const float* bias;
  float *out, *partial;
  unsigned* tickets;
  int rows, n, cols, out_stride;
};

// Stages of a run of k, or of several that follow each other.
struct Run {
  int begin, end;
};
__device__ __forceinline__ int num_segments(int cols) {
  return elements::divided_up(cols, STAGE_COLS) < LEAST_STAGES_OF_SEGMENTS ? 1 : SEGMENTS;
}
__device__ __forceinline__ Run segment(int cols, int number) {
  const int stages = elements::divided_up(cols, STAGE_COLS), segments = num_segments(cols);
  return {stages * number / segments, stages * (number + 1) / segments};
}
// What this block computes, first and last segment.
__device__ __forceinline__ int first_segment() { return gridDim.z == 1 ? 0 : blockIdx.z; }
__device__ __forceinline__ int last_segment(int cols) { return gridDim.z == 1 ? num_segments(cols) - 1 : blockIdx.z; }

// Eight bf16, sixteen bytes.
using Rounded = elements::Chunk<__nv_bfloat16>;

template <int ROWS, int GROUPS, int STAGES> struct Ring {
  static constexpr int X_BYTES = ROWS * STAGE_COLS * 2, PANEL_BYTES = STEPS * TILE_BYTES;
  static constexpr int STAGE_BYTES = X_BYTES + GROUPS * PANELS * PANEL_BYTES;
  Byte* memory;

  __device__ __forceinline__ Byte* x(int slot) const { return memory + slot * STAGE_BYTES; }
  __device__ __forceinline__ Byte* panel(int slot, int number) const { return x(slot) + X_BYTES + number * PANEL_BYTES; }
  // Weights and x have come.
  __device__ __forceinline__ uint64_t* full(int slot) const {
    return reinterpret_cast<uint64_t*>(memory + STAGES * STAGE_BYTES) + slot;
  }
  // Every warp that multiplies has done so.
  __device__ __forceinline__ uint64_t* used(int slot) const { return full(STAGES) + slot; }
  // Whoever fills a slot for the first time need not wait.
  __device__ __forceinline__ void wait_until_free(int slot, int turn) const {
    if (turn > 0) ptx::mbarrier_wait(used(slot), (turn - 1) % 2);
  }

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < STAGES; slot++) {
        ptx::mbarrier_init(full(slot), 1 + 32);
        ptx::mbarrier_init(used(slot), GROUPS * 4);
      }
      ptx::fence_proxy_async();
    }
    __syncthreads();
  }

  // One lane: the panels of this block, and of the last one that there is instead of those beyond it.
  __device__ __forceinline__ void copy_weights(const Product& of, Run stages) const {
    const int tiles = elements::divided_up(of.cols, STEP_COLS), panels = elements::divided_up(of.n, PANEL);
    for (int stage = stages.begin; stage < stages.end; stage++) {
      const int slot = (stage - stages.begin) % STAGES, turn = (stage - stages.begin) / STAGES;
      const unsigned bytes = min(STEPS, tiles - stage * STEPS) * TILE_BYTES;
      wait_until_free(slot, turn);
      ptx::mbarrier_arrive_expect_bytes(full(slot), GROUPS * PANELS * bytes);
#pragma unroll
      for (int i = 0; i < GROUPS * PANELS; i++) {
        const size_t number = min(int(blockIdx.x) * GROUPS * PANELS + i, panels - 1);
        ptx::copy_bulk(panel(slot, i), of.w + (number * tiles + stage * STEPS) * TILE_BYTES, bytes, full(slot));
      }
    }
  }

  // A warp, every X_WARPS-th stage: rows of 64 numbers, eight lanes a row. Zeros beyond the last row and column.
  __device__ __forceinline__ void stage_x(const Product& of, Run stages, int warp) const {
    // Rows that a warp reads at once, and how often it does before it waits: two blocks share registers where there are few rows.
    constexpr int AT_ONCE = 32 / (STAGE_COLS / CHUNK), BATCH = ROWS > 32 ? 8 : 4;
    const int lane = threadIdx.x % 32, first_row = blockIdx.y * ROWS, piece = lane % 8;
    for (int stage = stages.begin + warp; stage < stages.end; stage += X_WARPS) {
      const int slot = (stage - stages.begin) % STAGES, turn = (stage - stages.begin) / STAGES;
      const int chunk = stage * (STAGE_COLS / CHUNK) + piece;
      for (int begin = 0; begin < ROWS; begin += BATCH * AT_ONCE) {
        float values[BATCH][CHUNK];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          const int row = first_row + begin + i * AT_ONCE + lane / 8;
#pragma unroll
          for (int j = 0; j < CHUNK; j++) values[i][j] = 0.0f;
          if (row < of.rows && chunk * CHUNK < of.cols) elements::load_chunk(of.x + size_t(row) * of.cols, chunk, of.cols, values[i]);
        }
        if (begin == 0) wait_until_free(slot, turn);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          const int row = begin + i * AT_ONCE + lane / 8;
          Rounded rounded;
#pragma unroll
          for (int j = 0; j < CHUNK; j++) rounded.at[j] = elements::from_float<__nv_bfloat16>(values[i][j]);
          *reinterpret_cast<Rounded*>(x(slot) + row * (STAGE_COLS * 2) + (piece ^ row % 8) * sizeof(Rounded)) = rounded;
        }
      }
      ptx::fence_proxy_async();
      ptx::mbarrier_arrive(full(slot));
    }
  }

  // A warpgroup, one stage: sums [64, ROWS] += weights x.
  __device__ __forceinline__ void multiply(float (&sums)[ROWS / 2], int slot, int turn, int steps, bool accumulate) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ptx::mbarrier_wait(full(slot), turn % 2);
    unsigned a[STEPS][4];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      uint4 of_lane = make_uint4(0, 0, 0, 0);  // what the last stage lacks, times zeros of x
      if (step < steps) of_lane = reinterpret_cast<const uint4*>(panel(slot, warp) + step * TILE_BYTES)[lane];
      a[step][0] = of_lane.x, a[step][1] = of_lane.y, a[step][2] = of_lane.z, a[step][3] = of_lane.w;
    }
    const uint64_t b = ptx::matrix_descriptor(x(slot), 0, 8 * STAGE_COLS * 2, ptx::SWIZZLED_128);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; step++)
      ptx::wgmma_m64k16_bf16(sums, a[step], b + step * (STEP_COLS * 2 >> 4), accumulate || step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(used(slot));
  }
};

// Number i of a thread's sums.
struct Place {
  int row, output;

  template <int ROWS, int GROUPS> static __device__ __forceinline__ Place of(int i) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return {int(blockIdx.y) * ROWS + i / 4 * 8 + lane % 4 * 2 + i % 2,
            int(blockIdx.x) * GROUPS * PANELS * PANEL + warp * PANEL + lane / 4 + i / 2 % 2 * 8};
  }
};

template <int ROWS, int GROUPS> __device__ __forceinline__ void store(const Product& of, const float (&sums)[ROWS / 2]) {
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) {
    const Place at = Place::of<ROWS, GROUPS>(i);
    if (at.row >= of.rows || at.output >= of.n) continue;
    of.out[size_t(at.row) * of.out_stride + at.output] = of.bias ? sums[i] + of.bias[at.output] : sums[i];
  }
}

// Where number i of this thread's sums of a segment is kept.
template <int ROWS, int GROUPS> __device__ __forceinline__ float* kept(const Product& of, int segment, int i) {
  const size_t tile = size_t(blockIdx.y) * gridDim.x + blockIdx.x;
  return of.partial + ((tile * SEGMENTS + segment) * (ROWS / 2) + i) * (GROUPS * WARPGROUP) + threadIdx.x;
}

// Whether this block is the last of its tile's segments; then what the others wrote is there to read.
__device__ __forceinline__ bool comes_last(const Product& of) {
  SHARED(unsigned, ticket, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // the sums before the ticket
    *ticket = atomicInc(of.tickets + size_t(blockIdx.y) * gridDim.x + blockIdx.x, SEGMENTS - 1);
    __threadfence();  // the ticket before the sums of others
  }
  __syncthreads();
  return *ticket == SEGMENTS - 1;
}

template <int ROWS, int GROUPS, int STAGES> __device__ __forceinline__ void gemm(const Product& of) {
  DYNAMIC_SHARED(Byte, memory);
  const Ring<ROWS, GROUPS, STAGES> ring{memory};
  ring.prepare();
  const int warp = threadIdx.x / 32, first = first_segment(), last = last_segment(of.cols);
  const Run stages{segment(of.cols, first).begin, segment(of.cols, last).end};
  const bool multiplies = warp < GROUPS * 4, splits = gridDim.z > 1;
  float total[ROWS / 2];
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) total[i] = 0.0f;

  if (multiplies) {
    const int tiles = elements::divided_up(of.cols, STEP_COLS);
    for (int number = first; number <= last; number++) {
      const Run run = segment(of.cols, number);
      float sums[ROWS / 2];
      for (int stage = run.begin; stage < run.end; stage++)
        ring.multiply(sums, (stage - stages.begin) % STAGES, (stage - stages.begin) / STAGES, tiles - stage * STEPS,
                      stage > run.begin);
#pragma unroll
      for (int i = 0; i < ROWS / 2; i++) total[i] += sums[i];
    }
    if (!splits) store<ROWS, GROUPS>(of, total);
  } else if (warp > GROUPS * 4) {
    ring.stage_x(of, stages, warp - GROUPS * 4 - 1);
  } else if (threadIdx.x % 32 == 0) {
    ring.copy_weights(of, stages);
  }
  if (!splits) return;
  __syncwarp();

  if (multiplies)
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) __stcg(kept<ROWS, GROUPS>(of, first, i), total[i]);
  if (!comes_last(of) || !multiplies) return;
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) {
    total[i] = 0.0f;
    for (int number = 0; number < SEGMENTS; number++) total[i] += __ldcg(kept<ROWS, GROUPS>(of, number, i));
  }
  store<ROWS, GROUPS>(of, total);
}

}  // namespace
#endif

#ifdef HAS_HOPPER
#define BODY(ROWS, GROUPS, STAGES) \
  gemm<ROWS, GROUPS, STAGES>({x, w, bias, out, partial, tickets, rows, n, cols, out_stride})
#else
#define BODY(ROWS, GROUPS, STAGES)
#endif

// x [rows, cols]; w tiles of n rows; bias [n] or null; out, partial, tickets as above; the last two may be null with grid.z = 1.
#define GEMM(ROWS, GROUPS, STAGES, BLOCKS)                                                                              \
  extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), BLOCKS) gemm_wgmma_bf16_##ROWS(                      \
      const float* __restrict__ x, const unsigned char* __restrict__ w, const float* __restrict__ bias,                 \
      float* __restrict__ out, float* partial, unsigned* tickets, int rows, int n, int cols, int out_stride) {          \
    BODY(ROWS, GROUPS, STAGES);                                                                                         \
  }                                                                                                                     \
  EXPORT_KERNEL(gemm_wgmma_bf16_##ROWS)
GEMM(16, 2, 6, 2)
GEMM(32, 2, 5, 2)
GEMM(64, 2, 8, 1)
GEMM(128, 2, 6, 1)
