// Instructions of Hopper (sm_90a) that CUDA C++ has no name for: barriers in shared memory that count bytes, bulk copies, and
// products of a warpgroup. The simulator's bodies are in sim/hopper.h. Kernels that use them have a body where HAS_HOPPER is defined
// and none on other architectures, whose images hold them empty: the launch code does not choose them there.
//
// A warpgroup is four warps, the first one's number a multiple of four. D [64, N] += A [64, 16] B [16, N]: warp w of it has rows 16 w
// to 16 w + 15 of A and D. Lane l has of A (two bf16 a register, the lower k in the lower half)
//
//     a[0] row l / 4, k 2 (l % 4)      a[1] row l / 4 + 8, the same k      a[2], a[3] the same rows, k + 8
//
// and d[i] is row l / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (l % 4) + i % 2.
//
// B lies in shared memory with k running fastest, as a descriptor of 64 bits says:
//
// | bits  | what                                                                                             |
// |-------|--------------------------------------------------------------------------------------------------|
// | 0-13  | address / 16                                                                                     |
// | 16-29 | leading offset / 16: from k 0-7 to k 8-15, where nothing is swizzled                             |
// | 32-45 | stride offset / 16: from columns 0-7 to columns 8-15                                             |
// | 49-51 | base offset: zero where the pattern begins at a multiple of 1024                                 |
// | 62-63 | 0 no swizzle: eight columns of eight k are 128 bytes in a row; 1: a column has a line of 128 bytes |
//
// With the swizzle of 128 bytes, bits 4-6 of every address are XORed with bits 7-9: column c keeps its sixteen bytes j of a line at
// place j ^ c % 8. The next sixteen k of a line begin 32 bytes on: the address in the descriptor grows by that much.
#pragma once
#include "cuda.cuh"
#ifndef __CUDACC__
#include "sim/hopper.h"
#endif

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_HOPPER
#endif

namespace ptx {

#ifdef __CUDACC__

// `count` arrivals end a phase, when the bytes that were announced have come, too. The first phase has parity 0. Who initialises
// fences (fence_proxy_async) before a barrier of the block lets others use it.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// What this thread did or saw before is seen by who waits for the phase.
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_bytes(uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Whether the last phase of this parity is over; it may wait a while before it says no.
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t* barrier, unsigned parity) {
  unsigned over;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(over) : "r"(shared_address(barrier)), "r"(parity) : "memory");
  return over;
}

// From global to shared memory, multiples of 16 bytes from and to multiples of 16; the barrier counts them when they are there.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

// What this thread stored to shared memory is what bulk copies and wgmma see, once they know that it fenced.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before the first wgmma of a group: registers that were written before are what it reads.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most LEFT groups are under way. Until then nobody touches their registers, nor writes to what they read.
template <int LEFT> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// D [64, N] = A B, and + D if `accumulate`, which is the same in all threads; d has N / 2 numbers. For N of 8, 16, 32, 64, 128.
__device__ __forceinline__ void wgmma_m64k16_bf16(float (&d)[4], const unsigned (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %9, 0;"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(unsigned(accumulate)));
}
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D64(i) D16(i), D16(i + 16), D16(i + 32), D16(i + 48)
__device__ __forceinline__ void wgmma_m64k16_bf16(float (&d)[8], const unsigned (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %13, 0;"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, 0;}"
      : D4(0), D4(4)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(unsigned(accumulate)));
}
__device__ __forceinline__ void wgmma_m64k16_bf16(float (&d)[16], const unsigned (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %21, 0;"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;}"
      : D16(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(unsigned(accumulate)));
}
__device__ __forceinline__ void wgmma_m64k16_bf16(float (&d)[32], const unsigned (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %37, 0;"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
      : D16(0), D16(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(unsigned(accumulate)));
}
__device__ __forceinline__ void wgmma_m64k16_bf16(float (&d)[64], const unsigned (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %69, 0;"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,"
      "%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;}"
      : D64(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(unsigned(accumulate)));
}
#undef D4
#undef D16
#undef D64

// A warpgroup's registers from here on; what it gives up others may take.
template <int COUNT> __device__ __forceinline__ void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#endif

// Until the last phase of this parity is over.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, unsigned parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

enum Swizzle : unsigned { NOT_SWIZZLED = 0, SWIZZLED_128 = 1 };

// The descriptor of B as above, offsets in bytes.
__device__ __forceinline__ uint64_t matrix_descriptor(const void* start, unsigned leading, unsigned stride, Swizzle swizzle) {
  return uint64_t(shared_address(start) >> 4 & 0x3fff) | uint64_t(leading >> 4 & 0x3fff) << 16 |
         uint64_t(stride >> 4 & 0x3fff) << 32 | uint64_t(swizzle) << 62;
}

}  // namespace ptx
