// Hopper's asynchronous instructions: barriers in shared memory (mbarrier), bulk copies, products of a warpgroup (wgmma).
//
// Models: a barrier's arrivals, bytes and phases, in its own eight bytes; bulk copies that land at once or, under the Late schedules,
// one at a time when somebody waits for a phase that lacks nothing else; wgmma whose sums appear, and whose B is read, at once or
// only at the wait, until when the registers of D hold NaN; descriptors of B in dynamic shared memory, bit by bit, with no swizzle or
// that of 128 bytes. Under the Late schedules wgmma sees shared memory as it was when some thread last fenced for it, and what bulk
// copies brought; with races.h it is each writer's own fence that counts. Sums are taken in order of k.
// Reported: a barrier that was not initialised or has more arrivals than it expects, copies off their alignment, copies and products
// that nobody waited for, a group of products without a wgmma_fence of its own (stricter than the manual: a fence holds until its group
// is committed), warps of a warpgroup that multiply by different matrices, descriptors that are not understood here.
// Cannot see: registers that are written between the fence and the wait; a fence on the reader's side in place of the writer's, which
// the manual allows and races.h reports; generic writes that a bulk copy overtakes; which architecture a kernel is for. The layouts are
// our reading of the manual: confirm them once on a GPU.
#pragma once
#include "machine.h"

namespace sim {

void mbarrier_init(uint64_t* barrier, unsigned count);
void mbarrier_arrive(uint64_t* barrier, unsigned bytes);
bool mbarrier_try_wait(uint64_t* barrier, unsigned parity);
void copy_bulk(void* to, const void* from, unsigned bytes, uint64_t* barrier);
void fence_proxy_async();
unsigned shared_address(const void* at);

// What a lane brings to wgmma.
struct MultiplyInput {
  const uint32_t* a;
  uint64_t b;
  unsigned columns;
  bool accumulate;
};
void begin_multiply(Lane* lanes, uint32_t mask);
void commit_multiplies(Lane* lanes, uint32_t mask);
void fence_multiplies(Lane* lanes, uint32_t mask);
void wait_for_multiplies(Lane* lanes, uint32_t mask);  // in: how many groups may be left
// Nobody will wait for what this thread's warp began: why that is a fault, or null.
const char* left_behind(const Thread& thread);

}  // namespace sim

namespace ptx {

inline unsigned shared_address(const void* at) { return sim::shared_address(at); }

inline void mbarrier_init(uint64_t* barrier, unsigned count, sim::Where where = "mbarrier_init") {
  sim::current->where = where;
  sim::mbarrier_init(barrier, count);
}
inline void mbarrier_arrive(uint64_t* barrier, sim::Where where = "mbarrier_arrive") {
  sim::current->where = where;
  sim::mbarrier_arrive(barrier, 0);
}
inline void mbarrier_arrive_expect_bytes(uint64_t* barrier, unsigned bytes, sim::Where where = "mbarrier_arrive_expect_bytes") {
  sim::current->where = where;
  sim::mbarrier_arrive(barrier, bytes);
}
inline bool mbarrier_try_wait(uint64_t* barrier, unsigned parity, sim::Where where = "mbarrier_try_wait") {
  sim::current->where = where;
  return sim::mbarrier_try_wait(barrier, parity);
}
inline void copy_bulk(void* to, const void* from, unsigned bytes, uint64_t* barrier, sim::Where where = "copy_bulk") {
  sim::current->where = where;
  sim::copy_bulk(to, from, bytes, barrier);
}
inline void fence_proxy_async() { sim::fence_proxy_async(); }

inline void wgmma_fence(sim::Where where = "wgmma_fence") {
  sim::warp_operation(0xffffffff, nullptr, nullptr, where, sim::fence_multiplies);
}
inline void wgmma_commit(sim::Where where = "wgmma_commit") {
  sim::warp_operation(0xffffffff, nullptr, nullptr, where, sim::commit_multiplies);
}
template <int LEFT> void wgmma_wait(sim::Where where = "wgmma_wait") {
  const size_t left = LEFT;
  sim::warp_operation(0xffffffff, &left, nullptr, where, sim::wait_for_multiplies);
}
template <size_t COUNT>
void wgmma_m64k16_bf16(float (&d)[COUNT], const unsigned (&a)[4], uint64_t b, bool accumulate,
                       sim::Where where = "wgmma_m64k16_bf16") {
  static_assert(COUNT == 4 || COUNT == 8 || COUNT == 16 || COUNT == 32 || COUNT == 64, "of hopper.cuh");
  const sim::MultiplyInput in{a, b, 2 * COUNT, accumulate};
  sim::warp_operation(0xffffffff, &in, d, where, sim::begin_multiply);
}

template <int COUNT> void registers_decrease() {}
template <int COUNT> void registers_increase() {}

}  // namespace ptx
