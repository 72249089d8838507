// The machine that kernels run on: threads as fibers, warps, blocks, and the schedule that interleaves them.
//
// One host thread runs one grid. Every CUDA thread is a fiber with a stack of its own; it runs until it meets a barrier, a
// warp operation or (in some schedules) an atomic operation, and then the schedule says who is next. A kernel that is
// right is right under every schedule, so tests run it under all eight:
//
//   order     Forward   a warp runs as far as it can, lowest first; one block after the other
//             Reverse   likewise, highest warp and lane first
//             Random    random warps of several resident blocks, also between atomic operations
//             Lockstep  all warps of several resident blocks nearly in step
//   landing   Late      an asynchronous copy lands, and the sums of wgmma appear, when they are waited for; a store that other
//                       blocks read (__stcg) when a fence makes it visible. Finds missing waits and fences
//             Early     all at once. Finds copies issued into memory that is still being read
//
// Blocks start in shuffled order. Shared memory is filled with NaN when a block starts.
//
// Cannot see: races that none of the eight brings out; weak memory beyond __stcg, so neither a missing fence on the reader's side
// nor plain stores that other blocks read. `make races` sees all three (races.h). Nothing here sees bank conflicts, occupancy,
// speed. hopper.h has Hopper's mbarrier, bulk copies and wgmma. Not there: clusters, tensor maps, programmatic dependent launch.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fiber.h"
#include "races.h"
#include "types.h"

namespace sim {

enum class Order { Forward, Reverse, Random, Lockstep };
enum class Landing { Late, Early };

struct Schedule {
  Order order = Order::Forward;
  Landing landing = Landing::Late;
  unsigned seed = 1;

  static constexpr int COUNT = 8;
  // Schedule 0 to 7.
  static Schedule numbered(int number, unsigned seed = 1) {
    return {Order(number & 3), number & 4 ? Landing::Early : Landing::Late, seed};
  }
  std::string name() const;
};

// What a kernel did that CUDA forbids, or a grid that can make no progress, with the place in the source.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call in a kernel. A default argument `sim::Where where = "name"` is the place of the caller.
struct Where {
  const char* operation;
  const char* file;
  int line;
  Where(const char* operation = "its start", const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : operation(operation), file(file), line(line) {}
  bool operator==(const Where& other) const {
    const auto same = [](const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; };
    return line == other.line && same(operation, other.operation) && same(file, other.file);
  }
  std::string text() const;
};

// A store that other blocks do not see yet; the last one of an address counts.
struct Store {
  char* to;
  unsigned count;
  char bytes[16];
};
using Stores = std::vector<Store>;

// An asynchronous copy under way: `valid` bytes, then zeros up to `count`.
struct Copy {
  char* to;
  const char* from;
  unsigned count, valid;
};

struct Thread;
struct Block;
struct Warp;

// hopper.h: a bulk copy that its barrier has not counted, or not ended a phase with.
struct BulkCopy {
  Copy copy;
  uint64_t* barrier;
  Thread* thread;
  bool landed;
};
// A wgmma of a warp, and what it adds to: the values of 32 lanes, which the kernel does not see yet.
struct Multiply {
  uint64_t b;
  unsigned columns;
  bool accumulate;
  uint32_t a[32][4];
  float* d[32];
};
struct Sums {
  unsigned pending = 0;
  std::vector<float> values;
};
struct MultiplyQueue {
  bool fenced = false;
  size_t begun = 0;
  std::vector<Multiply> open;                 // since the last commit
  std::vector<std::vector<Multiply>> groups;  // committed, not waited for
  std::map<const float*, Sums> sums;          // by the first lane's registers
};

enum class State : uint8_t { Ready, AtBarrier, AtWarp, Paused, Done };

// A CUDA thread.
struct Thread {
  std::unique_ptr<Context> context;
  char* stack = nullptr;
  void* fake_stack = nullptr;  // of the address sanitizer
  dim3 index;
  unsigned number = 0, lane = 0;
  Warp* warp = nullptr;
  Block* block = nullptr;
  State state = State::Ready;
  Where where;
  Stores stores;
  std::vector<Copy> open_copies;               // since the last commit
  std::vector<std::vector<Copy>> copy_groups;  // committed, not waited for
  races::Clock clock;
};

// What a lane brings to a warp operation, and where its result goes.
struct Lane {
  uint32_t mask;
  Where where;
  const void* in;
  void* out;
};

struct Warp {
  uint32_t live = 0, arrived = 0;
  Lane lanes[32];
  Stores stores;
  unsigned first_thread = 0, number = 0;
  MultiplyQueue multiply;
  races::WarpClock clock;
};

// An array of shared memory.
struct Memory {
  char* begin;
  size_t bytes;
};

struct Block {
  dim3 index;
  unsigned number = 0, place = 0;  // in its grid; among the stacks
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  unsigned live = 0, arrived = 0, votes = 0, last_votes = 0, last_arrived = 0;
  Where barrier;  // where those who arrived stand
  Stores stores;
  char* dynamic_shared = nullptr;
  std::vector<char> async_view;  // dynamic shared memory as wgmma sees it
  std::vector<BulkCopy> bulk_copies;
  std::vector<std::vector<uint64_t>> multiplied;  // the matrices of each warpgroup's products so far
  std::map<const char*, Memory> static_shared;
  size_t static_bytes = 0;
};

struct Launch {
  dim3 grid, block;
  size_t dynamic_shared = 0;
  // Blocks wait for each other, so all of them are resident (a cooperative launch).
  bool cooperative = false;
};

// Runs `body` once per thread; throws Fault.
void run(const Launch& launch, const Schedule& schedule, const std::function<void()>& body);

// Of the host thread's running grid.
extern __thread Thread* current;
const Launch& current_launch();
Schedule current_schedule();

[[noreturn]] void fault(const std::string& what);
// Lets others run, where the schedule is one that interleaves at memory operations, or always.
void pause(bool always);

// All live threads of the block meet here; returns how many brought `vote`.
unsigned block_barrier(bool vote, Where where);
// Threads that took part in the last barrier of this thread.
unsigned barrier_threads();

// The lanes of `mask` meet here; the last one to arrive evaluates the operation for all.
using WarpOperation = void (*)(Lane* lanes, uint32_t mask);
void warp_operation(uint32_t mask, const void* in, void* out, Where where, WarpOperation operation);
// What __syncwarp evaluates: it alone orders memory.
void order_lanes(Lane* lanes, uint32_t mask);

char* dynamic_shared();
// The block's memory of a SHARED declaration; the address of the name is that declaration's own.
char* static_shared(const char* name, size_t bytes, size_t alignment);

void store_for_grid(void* to, const void* from, unsigned count);
void load_from_grid(void* to, const void* from, unsigned count);
// What this thread stored for the grid, or a barrier put before it, is seen by all.
void publish_stores();
void fence();

void copy_async(void* to, const void* from, unsigned count, unsigned valid);
void copy_async_commit();
void copy_async_wait(unsigned left);

// Kernels by name, with cuLaunchKernel's arguments: addresses of the values.
struct Kernel {
  void (*function)();  // of the type that `call` knows
  void (*call)(void (*function)(), void** arguments);
  std::string signature;  // a letter per argument: p pointer, u/i 32 bits, U/I 64 bits, f float, s struct
};
std::map<std::string, Kernel>& kernels();
void run(const std::string& kernel, const Launch& launch, const Schedule& schedule, void** arguments);

}  // namespace sim
