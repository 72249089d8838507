// Barriers, shared memory, atomics, fences, and stores that other blocks read.
//
// Models: what one block writes with __stcg and another reads with __ldcg is there only after a fence of the writer (or of a
// thread that a barrier put behind the writer), under the Late schedules; atomic operations act at once. So a missing fence
// before a ticket lets the last block read what was there before.
// Cannot see: a missing fence on the reader's side, and plain stores that other blocks read; races.h does.
#pragma once
#include <type_traits>

#include "machine.h"

inline void __syncthreads(sim::Where where = "__syncthreads") { sim::block_barrier(false, where); }
inline int __syncthreads_or(int vote, sim::Where where = "__syncthreads_or") {
  return sim::block_barrier(vote, where) != 0;
}
inline int __syncthreads_count(int vote, sim::Where where = "__syncthreads_count") {
  return int(sim::block_barrier(vote, where));
}
inline int __syncthreads_and(int vote, sim::Where where = "__syncthreads_and") {
  return sim::block_barrier(vote, where) == sim::barrier_threads();
}

// `SHARED(float, name, 32);` is `__shared__ float name[32];`, and in the simulator a pointer to as much of the block's memory.
#define SHARED(T, name, count)                \
  static const char sim_name_##name[] = #name; \
  T* const name = reinterpret_cast<T*>(::sim::static_shared(sim_name_##name, sizeof(T) * (count), alignof(T)))
// `DYNAMIC_SHARED(float, name);`: the memory whose size the launch gives, aligned to 1024 bytes.
#define DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(::sim::dynamic_shared())

inline void __threadfence() { sim::fence(); }
inline void __threadfence_block() {}

namespace sim {

// Reads, replaces by `f` of it, returns what was read.
template <class T, class F> SIM_UNCHECKED T atomic(T* at, F f, Where where) {
  current->where = where;
  pause(false);
  races::update(at, sizeof(T));
  const T old = *at;
  *at = f(old);
  pause(false);
  return old;
}

}  // namespace sim

template <class T> T atomicAdd(T* at, std::common_type_t<T> value, sim::Where where = "atomicAdd") {
  return sim::atomic(at, [&](T old) { return T(old + value); }, where);
}
template <class T> T atomicMax(T* at, std::common_type_t<T> value, sim::Where where = "atomicMax") {
  return sim::atomic(at, [&](T old) { return old < value ? value : old; }, where);
}
template <class T> T atomicExch(T* at, std::common_type_t<T> value, sim::Where where = "atomicExch") {
  return sim::atomic(at, [&](T) { return value; }, where);
}
template <class T>
T atomicCAS(T* at, std::common_type_t<T> expected, std::common_type_t<T> value,
            sim::Where where = "atomicCAS") {
  return sim::atomic(at, [&](T old) { return old == expected ? value : old; }, where);
}
// Adds one, and goes from `last` back to zero: a ticket that is ready for the next launch.
inline unsigned atomicInc(unsigned* at, unsigned last, sim::Where where = "atomicInc") {
  return sim::atomic(at, [&](unsigned old) { return old >= last ? 0 : old + 1; }, where);
}

// Past the first-level caches, which are not coherent: what other blocks read and write.
template <class T> void __stcg(T* to, std::common_type_t<T> value) {
  static_assert(sizeof(T) <= 16, "one access");
  sim::store_for_grid(to, &value, sizeof value);
}
template <class T> T __ldcg(const T* from) {
  T value;
  sim::load_from_grid(&value, from, sizeof value);
  return value;
}
template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> void __stcs(T* to, std::common_type_t<T> value) { *to = value; }

namespace ptx {

// ld.acquire.gpu: for waiting until another block has written.
SIM_UNCHECKED inline unsigned load_acquire(const unsigned* from, sim::Where where = "load_acquire") {
  sim::current->where = where;
  sim::pause(true);
  sim::races::acquire(from, sizeof *from);
  return *from;
}
// red.release.gpu.add: what this thread wrote or saw before is visible to who acquires the sum.
inline void add_release(unsigned* at, unsigned value, sim::Where where = "add_release") {
  sim::publish_stores();
  sim::races::release(at);
  sim::atomic(at, [&](unsigned old) { return old + value; }, where);
}

// One kernel runs after the other here, so nothing waits; races.h sees what is read before.
inline void wait_for_previous() { sim::races::wait_for_previous(); }
inline void let_next_start() {}
inline void prefetch(const void*) {}

// What is read once.
template <class T> T load_once(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T)) sim::fault("load_once reads at an address that is not aligned");
  return *from;
}

// cp.async of 16 bytes; without `valid` zeros arrive.
inline void copy_async_16(void* to, const void* from, bool valid = true) { sim::copy_async(to, from, 16, valid ? 16 : 0); }
// Of 4 bytes.
inline void copy_async_4(void* to, const void* from, bool valid = true) { sim::copy_async(to, from, 4, valid ? 4 : 0); }
inline void copy_async_commit() { sim::copy_async_commit(); }
// Until at most LEFT of this thread's groups are under way.
template <int LEFT> void copy_async_wait() { sim::copy_async_wait(LEFT); }

}  // namespace ptx
