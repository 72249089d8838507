// Kernels for Hopper with a bug that can be chosen, for hopper_test.cpp and seeded_races.cu. They leave the sum of `in` in out[0].
#pragma once
#include "../../hopper.cuh"

namespace hopper {

constexpr int VALUES = 512;

// One block of 160: a thread of the last warp fills a ring of two stages by bulk copies, the other four warps add up.
enum RingBug {
  NO_RING_BUG,
  WRONG_PARITY,
  NO_EXPECTED_BYTES,
  NO_WAIT_FOR_BYTES,
  NO_WAIT_FOR_READERS,
  NO_ARRIVAL_OF_READERS,
  ARRIVAL_BEFORE_READ  // the check for races alone finds it
};
constexpr unsigned RING_SHARED = 2 * 512 + 4 * 8;

template <int BUG> __device__ void ring(const float* in, float* out) {
  constexpr int STAGE = 128, READERS = 128;
  DYNAMIC_SHARED(float, stages);
  uint64_t* const full = reinterpret_cast<uint64_t*>(stages + 2 * STAGE);
  uint64_t* const empty = full + 2;
  const int thread = threadIdx.x;
  if (thread == 0) {
    for (int slot = 0; slot < 2; slot++) {
      ptx::mbarrier_init(full + slot, 1);
      ptx::mbarrier_init(empty + slot, READERS);
    }
    ptx::fence_proxy_async();
  }
  __syncthreads();
  if (thread >= READERS) {
    if (thread > READERS) return;
    for (int stage = 0; stage < VALUES / STAGE; stage++) {
      const int slot = stage % 2, turn = stage / 2;
      if (turn > 0 && BUG != NO_WAIT_FOR_READERS) ptx::mbarrier_wait(empty + slot, (turn - 1) % 2);
      if (BUG == NO_EXPECTED_BYTES)
        ptx::mbarrier_arrive(full + slot);
      else
        ptx::mbarrier_arrive_expect_bytes(full + slot, STAGE * sizeof(float));
      ptx::copy_bulk(stages + slot * STAGE, in + stage * STAGE, STAGE * sizeof(float), full + slot);
    }
    return;
  }
  float sum = 0;
  for (int stage = 0; stage < VALUES / STAGE; stage++) {
    const int slot = stage % 2, turn = stage / 2;
    if (BUG != NO_WAIT_FOR_BYTES) ptx::mbarrier_wait(full + slot, (turn + (BUG == WRONG_PARITY)) % 2);
    if (BUG == ARRIVAL_BEFORE_READ) ptx::mbarrier_arrive(empty + slot);
    sum += stages[slot * STAGE + (thread + 64) % STAGE];
    if (BUG != NO_ARRIVAL_OF_READERS && BUG != ARRIVAL_BEFORE_READ) ptx::mbarrier_arrive(empty + slot);
  }
  atomicAdd(out, sum);
}

// One block of 128: 64 values at a time become eight columns of B, their last eight bits as k 0 to 7 and the rest as k 8 to 15, which
// rows of (1, ..., 1, 256, ..., 256) add up.
enum ProductBug {
  NO_PRODUCT_BUG,
  NO_WGMMA_FENCE,
  NO_COMMIT,
  NO_WGMMA_WAIT,
  WAIT_FOR_TOO_FEW,
  NO_PROXY_FENCE,
  PROXY_FENCE_FIRST,
  NO_BARRIER_BEFORE_REUSE
};
constexpr unsigned PRODUCT_SHARED = 256;

template <int BUG> __device__ void product(const float* in, float* out) {
  DYNAMIC_SHARED(__nv_bfloat16, matrix);
  const int thread = threadIdx.x;
  const unsigned a[4] = {0x3f803f80, 0x3f803f80, 0x43804380, 0x43804380};
  const uint64_t b = ptx::matrix_descriptor(matrix, 128, 256, ptx::NOT_SWIZZLED);
  float d[4] = {0, 0, 0, 0};
  for (int from = 0; from < VALUES; from += 64) {
    if (BUG == PROXY_FENCE_FIRST) ptx::fence_proxy_async();
    if (thread < 64) {
      const int value = int(in[from + thread]);
      matrix[thread] = __float2bfloat16(float(value % 256));
      matrix[64 + thread] = __float2bfloat16(float(value / 256));
    }
    if (BUG != NO_PROXY_FENCE && BUG != PROXY_FENCE_FIRST) ptx::fence_proxy_async();
    __syncthreads();
    if (BUG != NO_WGMMA_FENCE) ptx::wgmma_fence();
    ptx::wgmma_m64k16_bf16(d, a, b, from > 0);
    if (BUG != NO_COMMIT) ptx::wgmma_commit();
    if (BUG == WAIT_FOR_TOO_FEW) ptx::wgmma_wait<1>();
    else if (BUG != NO_WGMMA_WAIT) ptx::wgmma_wait<0>();
    if (BUG != NO_BARRIER_BEFORE_REUSE) __syncthreads();
  }
  if (thread < 4) atomicAdd(out, d[0] + d[1]);
  if (BUG == WAIT_FOR_TOO_FEW || BUG == NO_WGMMA_WAIT) ptx::wgmma_wait<0>();
}

}  // namespace hopper
