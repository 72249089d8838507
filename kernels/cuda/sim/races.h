// Races, found in any schedule: which access happens before which (vector clocks), for every access of every thread.
//
// Two accesses of the same byte by different threads, one of them a write and not both atomic, race unless a chain orders them:
//
//   __syncthreads     all threads of the block           __syncwarp      the lanes of its mask; shuffles and votes order nothing
//   __threadfence     what the thread did or knew before it goes to who reads, then fences, an atomic that it updates after it
//   add_release, load_acquire                            likewise, without the fences
//   mbarrier          what threads did before they arrived goes to who waits for the phase, and so do the bytes of its bulk copies
//   cp.async          no one, its own thread included, may touch either side's bytes in a conflicting way before it was waited for
//   bulk copies       likewise, until the phase of their barrier ends
//   wgmma             reads its matrix when it begins and when it is waited for; who wrote it must have fenced (fence_proxy_async)
//
// And a thread that waits for the kernel before (ptx::wait_for_previous) may have read before that what no kernel writes, as its test
// says (`constants`), and have written nothing: the kernels before may still run.
//
// Needs `make races`: kernels compiled with -fsanitize=thread, whose calls before every access end here (races.cpp) and not in that
// sanitizer's library, and -DSIM_RACES; else all of this is empty. About 0.1 us per access.
// Cannot see: accesses that no thread made in this run, and orders that hold only because of who came first at an atomic in this
// run; bytes of the simulator's own and of the threads' stacks; __threadfence_block, which orders nothing here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

// For functions of the simulator that kernels inline: their accesses are not the kernel's.
#ifdef __SANITIZE_THREAD__
#define SIM_UNCHECKED __attribute__((no_sanitize_thread))
#else
#define SIM_UNCHECKED
#endif

namespace sim {
struct Thread;
struct Warp;
struct Block;
struct Copy;
struct BulkCopy;
}  // namespace sim

namespace sim::races {

#ifdef SIM_RACES

// What is known of a block: all that its threads did before they passed `barriers` barriers, and of single threads (by number) what
// they did up to a stamp of their warp's clock.
struct Known {
  uint32_t barriers = 0;
  std::map<uint32_t, uint32_t> stamps;
};
// By the block's number. Shared between threads and never changed once it is.
using Knowledge = std::shared_ptr<const std::map<uint32_t, Known>>;

// What a thread knows beyond the barriers of its block.
struct Clock {
  uint32_t seen[32] = {};  // of each lane of its warp, all up to this stamp
  Knowledge acquired;      // through atomics
  Knowledge read;          // through atomics, once it fences
  Knowledge fenced;        // what it knew at its last fence: what its atomics carry
  Knowledge last;          // acquired last: a loop that waits acquires the same many times
  uint32_t proxied = 0;    // stamp of its last fence for the asynchronous proxy
  bool waited = false;     // for the kernel before
  uint32_t read_early = 0, written_early = 0;  // a bit for each argument, until it waits
};
// Ticks when a lane lets others know what it did.
struct WarpClock {
  uint32_t now = 1;
};

// A grid begins. Accesses to the threads' stacks are of no interest; the arguments name memory in messages.
void begin(const void* stacks, size_t stack_bytes, unsigned blocks, const std::string& signature, void** arguments);
// A bit for each argument of the next grid behind which is what no kernel writes.
void constants(uint32_t arguments);
// Shared memory of a block that ended.
void forget(const void* memory, size_t bytes);

// By the running thread:
void read(const void* from, size_t bytes);
void write(const void* to, size_t bytes);
void update(const void* at, size_t bytes);  // atomic, relaxed
void release(const void* at);               // before the update that releases
void acquire(const void* at, size_t bytes);
void fence();
void wait_for_previous();
void copy_begins(const Copy& copy);
void copy_ends(const Copy& copy);

// hopper.h:
void arrive(const void* barrier);
void phase_ends(const void* barrier);
void wait_ends(const void* barrier);
void forget_phases(const void* barrier);
void bulk_copy_ends(const BulkCopy& bulk, Thread& thread);
void fence_proxy();
void read_by_async_proxy(const void* from, size_t bytes);

void barrier(Block& block);
void lanes_meet(Block& block, Warp& warp, uint32_t mask);

#else

struct Clock {};
struct WarpClock {};
inline void begin(const void*, size_t, unsigned, const std::string&, void**) {}
inline void constants(uint32_t) {}
inline void forget(const void*, size_t) {}
inline void read(const void*, size_t) {}
inline void write(const void*, size_t) {}
inline void update(const void*, size_t) {}
inline void release(const void*) {}
inline void acquire(const void*, size_t) {}
inline void fence() {}
inline void wait_for_previous() {}
inline void copy_begins(const Copy&) {}
inline void copy_ends(const Copy&) {}
inline void arrive(const void*) {}
inline void phase_ends(const void*) {}
inline void wait_ends(const void*) {}
inline void forget_phases(const void*) {}
inline void bulk_copy_ends(const BulkCopy&, Thread&) {}
inline void fence_proxy() {}
inline void read_by_async_proxy(const void*, size_t) {}
inline void barrier(Block&) {}
inline void lanes_meet(Block&, Warp&, uint32_t) {}

#endif

}  // namespace sim::races
