// Kernels in two versions, NAME_right and NAME_wrong, of which the second races. All leave the sum of `in` in out[0].
// In no schedule has a race to show in the result: who wins may be the right one every time.
#include "../../cuda.cuh"
#include "seeded_hopper.cuh"

namespace {

constexpr int N = 512;
constexpr unsigned ALL = 0xffffffffu;

__device__ float warp_sum(float x) {
  for (int bits = 16; bits; bits /= 2) x += __shfl_xor_sync(ALL, x, bits);
  return x;
}

#define PARAMETERS const float *in, float *out, float *work, unsigned *counter
#define PAIR(NAME)                                                                                         \
  extern "C" __global__ void NAME##_right(PARAMETERS) { NAME<false>(in, out, work, counter); }             \
  EXPORT_KERNEL(NAME##_right)                                                                              \
  extern "C" __global__ void NAME##_wrong(PARAMETERS) { NAME<true>(in, out, work, counter); }              \
  EXPORT_KERNEL(NAME##_wrong)

// One block of 128. The bug: no barrier between a write and its reads.
template <bool BUG> __device__ void sum_of_warps(PARAMETERS) {
  (void)work, (void)counter;
  SHARED(float, of_warps, 4);
  float sum = 0;
  for (int i = threadIdx.x; i < N; i += 128) sum += in[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  if (!BUG) __syncthreads();
  if (threadIdx.x == 127) out[0] = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
}

// One block of 128, where `in` is what no kernel writes. The bug: `counter` is read before the wait for the kernel before.
template <bool BUG> __device__ void early(PARAMETERS) {
  (void)work;
  const float first = in[threadIdx.x];
  unsigned before = BUG ? counter[0] : 0;
  ptx::wait_for_previous();
  if (!BUG) before = counter[0];
  float sum = first + float(before);
  for (int i = threadIdx.x + 128; i < N; i += 128) sum += in[i];
  atomicAdd(out, sum);
}

// One block of 128. The bug: a tile is written while another warp reads the one before it.
template <bool BUG> __device__ void tiles(PARAMETERS) {
  (void)work, (void)counter;
  SHARED(float, tile, 128);
  float sum = 0;
  for (int from = 0; from < N; from += 128) {
    tile[threadIdx.x] = in[from + threadIdx.x];
    __syncthreads();
    sum += tile[127 - threadIdx.x];
    if (!BUG) __syncthreads();
  }
  atomicAdd(out, sum);
}

// One block of 32: lanes exchange through memory. The bug: a shuffle instead of __syncwarp, which orders no memory.
template <bool BUG> __device__ void lanes(PARAMETERS) {
  (void)work, (void)counter;
  SHARED(float, exchange, 32);
  float sum = 0;
  for (int i = threadIdx.x; i < N; i += 32) sum += in[i];
  for (int bits = 16; bits; bits /= 2) {
    exchange[threadIdx.x] = sum;
    if (BUG) sum = __shfl_sync(ALL, sum, threadIdx.x);
    if (!BUG) __syncwarp();
    sum += exchange[threadIdx.x ^ bits];
    if (!BUG) __syncwarp();
  }
  if (threadIdx.x == 0) out[0] = sum;
}

// Blocks of 64, a ticket by thread 0 for all its block wrote. MISSING: 1 no fence before the ticket, 2 a fence before the barrier
// instead of after it, 3 no fence after the ticket.
template <int MISSING> __device__ void ticket(PARAMETERS) {
  SHARED(unsigned, last, 1);
  const int per_block = N / gridDim.x, from = blockIdx.x * per_block;
  float sum = 0;
  for (int i = threadIdx.x; i < per_block; i += 64) sum += in[from + i];
  work[blockIdx.x * 64 + threadIdx.x] = sum;
  if (MISSING == 2 && threadIdx.x == 0) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (MISSING != 1 && MISSING != 2) __threadfence();
    *last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    if (MISSING != 3) __threadfence();
  }
  __syncthreads();
  if (!*last) return;
  float all = 0;
  for (unsigned i = threadIdx.x; i < 64 * gridDim.x; i += 64) all += work[i];
  atomicAdd(out, all);
}
template <bool BUG> __device__ void fence_before_ticket(PARAMETERS) { ticket<BUG ? 1 : 0>(in, out, work, counter); }
template <bool BUG> __device__ void fence_before_barrier(PARAMETERS) { ticket<BUG ? 2 : 0>(in, out, work, counter); }
template <bool BUG> __device__ void fence_after_ticket(PARAMETERS) { ticket<BUG ? 3 : 0>(in, out, work, counter); }

// Two blocks of 32, both on the machine. The bug: a flag that releases nothing.
template <bool BUG> __device__ void flag(PARAMETERS) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < N; i++) sum += in[i];
    work[0] = sum;
    if (BUG) atomicAdd(counter, 1u);
    if (!BUG) ptx::add_release(counter, 1);
  } else {
    while (ptx::load_acquire(counter) == 0) {
    }
    out[0] = work[0];
  }
}

// One block of 128, asynchronous copies into two buffers. BUG: 1 waits for one group too few, 2 waits after the barrier, 3 refills a
// buffer that others still read.
template <int BUG> __device__ void copies(PARAMETERS) {
  (void)work, (void)counter;
  constexpr int STAGE = 128, STAGES = N / STAGE;
  DYNAMIC_SHARED(float, stages);
  const int thread = threadIdx.x;
  const auto load = [&](int stage) {
    if (thread < STAGE / 4) ptx::copy_async_16(stages + stage % 2 * STAGE + 4 * thread, in + stage * STAGE + 4 * thread);
    ptx::copy_async_commit();
  };
  float sum = 0;
  load(0);
  for (int stage = 0; stage < STAGES; stage++) {
    if (stage + 1 < STAGES) load(stage + 1);
    if (BUG == 1) ptx::copy_async_wait<2>();
    if (BUG == 0 || BUG == 3) {
      if (stage + 1 < STAGES) ptx::copy_async_wait<1>();
      if (stage + 1 == STAGES) ptx::copy_async_wait<0>();
    }
    __syncthreads();
    if (BUG == 2) ptx::copy_async_wait<0>();
    sum += stages[stage % 2 * STAGE + (thread + 64) % STAGE];
    if (BUG != 3) __syncthreads();
  }
  ptx::copy_async_wait<0>();
  atomicAdd(out, sum);
}
template <bool BUG> __device__ void copy_wait_count(PARAMETERS) { copies<BUG ? 1 : 0>(in, out, work, counter); }
template <bool BUG> __device__ void copy_wait_order(PARAMETERS) { copies<BUG ? 2 : 0>(in, out, work, counter); }
template <bool BUG> __device__ void copy_refill(PARAMETERS) { copies<BUG ? 3 : 0>(in, out, work, counter); }

// One block of 128: neighbours write halves of the same four bytes, which is right. The bug: all of them.
template <bool BUG> __device__ void halves(PARAMETERS) {
  (void)work, (void)counter;
  SHARED(uint16_t, small, 256);
  float sum = 0;
  for (int i = threadIdx.x; i < N; i += 128) sum += in[i];
  small[threadIdx.x] = uint16_t(sum);
  if (BUG) small[threadIdx.x + 1] = uint16_t(sum);
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (int i = 0; i < 128; i++) sum += float(small[i]);
  out[0] = sum;
}

// Of seeded_hopper.cuh, a block of 160 or 128.
template <bool BUG> __device__ void bulk_wait(PARAMETERS) {
  (void)work, (void)counter;
  hopper::ring<BUG ? hopper::NO_WAIT_FOR_BYTES : hopper::NO_RING_BUG>(in, out);
}
template <bool BUG> __device__ void bulk_refill(PARAMETERS) {
  (void)work, (void)counter;
  hopper::ring<BUG ? hopper::ARRIVAL_BEFORE_READ : hopper::NO_RING_BUG>(in, out);
}
template <bool BUG> __device__ void matrix_fence(PARAMETERS) {
  (void)work, (void)counter;
  hopper::product<BUG ? hopper::NO_PROXY_FENCE : hopper::NO_PRODUCT_BUG>(in, out);
}
template <bool BUG> __device__ void matrix_reuse(PARAMETERS) {
  (void)work, (void)counter;
  hopper::product<BUG ? hopper::NO_BARRIER_BEFORE_REUSE : hopper::NO_PRODUCT_BUG>(in, out);
}

}  // namespace

PAIR(early)
PAIR(sum_of_warps)
PAIR(tiles)
PAIR(lanes)
PAIR(fence_before_ticket)
PAIR(fence_before_barrier)
PAIR(fence_after_ticket)
PAIR(flag)
PAIR(copy_wait_count)
PAIR(copy_wait_order)
PAIR(copy_refill)
PAIR(halves)
PAIR(bulk_wait)
PAIR(bulk_refill)
PAIR(matrix_fence)
PAIR(matrix_reuse)
