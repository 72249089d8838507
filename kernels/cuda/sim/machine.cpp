// The machine of machine.h. Nothing here is seen by kernels but through its functions.
#include "machine.h"

#include "hopper.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#if defined(__x86_64__)
asm(R"(
.text
.globl sim_switch
.type sim_switch,@function
sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sim_switch, .-sim_switch
)");
#endif

namespace sim {

__thread Thread* current = nullptr;

namespace {

// Blocks that are on the machine at once where the order mixes blocks.
constexpr unsigned RESIDENT_BLOCKS = 4;
// Sweeps over all threads in which nobody did more than look again.
constexpr unsigned MOST_IDLE_SWEEPS = 10'000;
constexpr size_t MOST_STATIC_SHARED = 48 << 10, MOST_SHARED = 227 << 10;

struct Grid {
  const Launch* launch;
  Schedule schedule;
  const std::function<void()>* body;
  std::mt19937 random;
  std::vector<std::unique_ptr<Block>> resident;
  Context host;
  void* host_fake_stack = nullptr;
  const void* host_stack = nullptr;
  size_t host_stack_bytes = 0;
  std::string error;
  Stores stores;  // of blocks that have ended, not fenced: seen at the end of the grid
};

__thread Grid* grid = nullptr;

// From the running fiber to the host's stack; returns when the thread is run again.
void leave() {
  Thread* thread = current;
  before_switch(&thread->fake_stack, grid->host_stack, grid->host_stack_bytes);
  switch_context(*thread->context, grid->host);
  after_switch(thread->fake_stack, &grid->host_stack, &grid->host_stack_bytes);
}

void enter(Thread& thread) {
  current = &thread;
  before_switch(&grid->host_fake_stack, thread.stack, STACK_BYTES);
  switch_context(grid->host, *thread.context);
  after_switch(grid->host_fake_stack, nullptr, nullptr);
  current = nullptr;
}

void drain(Stores& stores) {
  for (const Store& store : stores) std::memcpy(store.to, store.bytes, store.count);
  stores.clear();
}

void move(Stores& from, Stores& to) {
  to.insert(to.end(), from.begin(), from.end());
  from.clear();
}

void release_barrier(Block& block) {
  races::barrier(block);
  block.last_votes = block.votes;
  block.last_arrived = block.arrived;
  block.votes = block.arrived = 0;
  for (Warp& warp : block.warps) move(warp.stores, block.stores);
  for (Thread& thread : block.threads) {
    // A barrier orders what every thread of the block wrote before what any of them fences after.
    move(thread.stores, block.stores);
    if (thread.state == State::AtBarrier) thread.state = State::Ready;
  }
}

void end_thread() {
  Thread& thread = *current;
  Block& block = *thread.block;
  if (!thread.open_copies.empty() || !thread.copy_groups.empty()) fault("a thread ends with asynchronous copies under way");
  if (const char* why = left_behind(thread)) fault(why);
  thread.state = State::Done;
  thread.warp->live &= ~(1u << thread.lane);
  block.live--;
  if (block.live && block.arrived == block.live) release_barrier(block);
}

void thread_entry() {
  after_switch(nullptr, &grid->host_stack, &grid->host_stack_bytes);
  std::string error;
  try {
    (*grid->body)();
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  if (!error.empty()) fault(error);
  end_thread();
  leave();
  std::abort();  // nobody runs a thread that ended
}

char* shared_memory(size_t bytes, size_t alignment) {
  // No slack behind the last byte, so that the address sanitizer sees the first one beyond it.
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, std::max<size_t>(bytes, 1))) throw std::bad_alloc();
  std::memset(memory, 0xff, bytes);  // NaN in every floating-point type
  return static_cast<char*>(memory);
}

std::unique_ptr<Block> start_block(unsigned number, const Stacks& stacks, unsigned place) {
  const dim3 extent = grid->launch->grid, threads = grid->launch->block;
  auto block = std::make_unique<Block>();
  block->number = number;
  block->place = place;
  block->index = dim3(number % extent.x, number / extent.x % extent.y, number / extent.x / extent.y);
  block->live = unsigned(threads.count());
  block->threads.resize(block->live);
  block->warps.resize((block->live + 31) / 32);
  block->dynamic_shared = shared_memory(grid->launch->dynamic_shared, 1024);
  block->async_view.assign(grid->launch->dynamic_shared, char(0xff));
  for (unsigned i = 0; i < block->live; i++) {
    Thread& thread = block->threads[i];
    thread.number = i;
    thread.lane = i % 32;
    thread.index = dim3(i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y);
    thread.block = block.get();
    thread.warp = &block->warps[i / 32];
    thread.warp->first_thread = i / 32 * 32;
    thread.warp->number = i / 32;
    thread.warp->live |= 1u << thread.lane;
    thread.stack = stacks.bottom(size_t(place) * block->live + i);
    forget_frames(thread.stack);
    thread.context = std::make_unique<Context>();
    prepare(*thread.context, thread.stack, i * 320 % 4096, thread_entry);
  }
  return block;
}

void end_block(Block& block) {
  for (Warp& warp : block.warps) move(warp.stores, block.stores);
  for (Thread& thread : block.threads) move(thread.stores, block.stores);
  move(block.stores, grid->stores);
  const auto release = [](const Memory& memory) {
    races::forget(memory.begin, memory.bytes);
    std::free(memory.begin);
  };
  release({block.dynamic_shared, grid->launch->dynamic_shared});
  for (const auto& [name, memory] : block.static_shared) release(memory);
}

struct Progress {
  bool moved = false, paused = false;
};

// Runs every lane of a warp that can run, each up to where it waits next.
Progress step(Block& block, Warp& warp) {
  Progress progress;
  const bool reverse = grid->schedule.order == Order::Reverse;
  const unsigned first = grid->schedule.order == Order::Random ? grid->random() % 32 : 0;
  for (unsigned i = 0; i < 32 && grid->error.empty(); i++) {
    const unsigned lane = reverse ? 31 - i : (i + first) % 32, number = warp.first_thread + lane;
    if (number >= block.threads.size()) continue;
    Thread& thread = block.threads[number];
    if (thread.state != State::Ready && thread.state != State::Paused) continue;
    thread.state = State::Ready;
    enter(thread);
    (thread.state == State::Paused ? progress.paused : progress.moved) = true;
  }
  return progress;
}

// Everybody who can run does so, in the schedule's order.
Progress sweep() {
  Progress progress;
  std::vector<std::pair<Block*, Warp*>> warps;
  for (auto& block : grid->resident)
    for (Warp& warp : block->warps) warps.emplace_back(block.get(), &warp);
  const Order order = grid->schedule.order;
  const bool greedy = order == Order::Forward || order == Order::Reverse;
  if (order == Order::Reverse) std::reverse(warps.begin(), warps.end());
  if (!greedy) std::shuffle(warps.begin(), warps.end(), grid->random);
  for (auto [block, warp] : warps) {
    for (unsigned steps = 0; grid->error.empty(); steps++) {
      const Progress one = step(*block, *warp);
      progress.moved |= one.moved;
      progress.paused |= one.paused;
      if (!one.moved || order == Order::Lockstep || (order == Order::Random && grid->random() % 4 == 0)) break;
    }
  }
  return progress;
}

std::string place(const Block& block) {
  return "block (" + std::to_string(block.index.x) + ", " + std::to_string(block.index.y) + ", " +
         std::to_string(block.index.z) + ")";
}

// Where everybody stands, lanes that stand together in one line.
std::string positions() {
  std::string text;
  for (auto& block : grid->resident)
    for (Warp& warp : block->warps) {
      std::map<std::string, uint32_t> lanes;
      for (Thread& thread : block->threads) {
        if (thread.warp != &warp) continue;
        const char* state = thread.state == State::Done ? "ended after " : thread.state == State::Ready ? "ran from " : "waits at ";
        lanes[state + thread.where.text()] |= 1u << thread.lane;
      }
      for (auto& [where, mask] : lanes) {
        char line[32];
        std::snprintf(line, sizeof line, "%08x", mask);
        text += "\n  " + place(*block) + " warp " + std::to_string(warp.number) + " lanes " + line + " " + where;
      }
      if (text.size() > 4000) return text + "\n  ...";
    }
  return text;
}

void check(const Launch& launch) {
  const size_t threads = launch.block.count();
  if (threads == 0 || threads > 1024 || launch.block.z > 64 || launch.grid.count() == 0 || launch.grid.x > 0x7fffffff ||
      launch.grid.y > 65535 || launch.grid.z > 65535 || launch.dynamic_shared > MOST_SHARED)
    throw Fault("a launch of " + std::to_string(launch.grid.count()) + " blocks of " + std::to_string(threads) +
                " threads with " + std::to_string(launch.dynamic_shared) + " bytes of shared memory is refused by CUDA");
}

void run_grid(const Launch& launch, const Schedule& schedule, const std::function<void()>& body, const std::string& signature,
              void** arguments) {
  check(launch);
  const unsigned blocks = unsigned(launch.grid.count());
  const bool mixes = schedule.order == Order::Random || schedule.order == Order::Lockstep;
  const unsigned places = launch.cooperative ? blocks : mixes ? std::min(blocks, RESIDENT_BLOCKS) : 1;
  // Kept between runs: a page that was used once is there.
  static thread_local std::unique_ptr<Stacks> kept;
  if (!kept || kept->count() < places * launch.block.count()) {
    kept.reset();
    kept = std::make_unique<Stacks>(places * launch.block.count());
  }
  const Stacks& stacks = *kept;
  races::begin(stacks.memory(), stacks.bytes(), blocks, signature, arguments);
  Grid running{&launch, schedule, &body, std::mt19937(schedule.seed), {}, {}, nullptr, nullptr, 0, {}, {}};
  grid = &running;
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), running.random);
  unsigned next = 0, idle = 0;
  while (next < places) {
    running.resident.push_back(start_block(order[next], stacks, next));
    next++;
  }
  while (!running.resident.empty() && running.error.empty()) {
    const Progress progress = sweep();
    if (!running.error.empty()) break;
    idle = progress.moved ? 0 : idle + 1;
    if (!progress.moved && !progress.paused)
      running.error = "deadlock: threads wait for others that never come" + positions();
    else if (idle > MOST_IDLE_SWEEPS)
      running.error = "no progress: threads wait for memory that nobody writes" + positions();
    for (unsigned i = 0; i < running.resident.size();) {
      if (running.resident[i]->live) {
        i++;
        continue;
      }
      end_block(*running.resident[i]);
      if (next < blocks) {
        const unsigned place = running.resident[i]->place;
        running.resident[i] = start_block(order[next++], stacks, place);
        i++;
      } else {
        running.resident.erase(running.resident.begin() + i);
      }
    }
  }
  for (auto& block : running.resident) end_block(*block);
  drain(running.stores);
  grid = nullptr;
  if (!running.error.empty()) throw Fault(running.error);
}

}  // namespace

void run(const Launch& launch, const Schedule& schedule, const std::function<void()>& body) {
  run_grid(launch, schedule, body, "", nullptr);
}

const Launch& current_launch() { return *grid->launch; }
Schedule current_schedule() { return grid->schedule; }

void fault(const std::string& what) {
  const Thread& thread = *current;
  grid->error = what + ": " + place(*thread.block) + " thread " + std::to_string(thread.number) + " (lane " +
                std::to_string(thread.lane) + " of warp " + std::to_string(thread.warp->number) + "), " + thread.where.text() +
                positions();
  current->state = State::Done;
  leave();
  std::abort();
}

void pause(bool always) {
  const Order order = grid->schedule.order;
  if (!always && order != Order::Lockstep && (order != Order::Random || grid->random() % 2)) return;
  current->state = always ? State::Paused : State::Ready;
  leave();
}

unsigned block_barrier(bool vote, Where where) {
  Thread& thread = *current;
  Block& block = *thread.block;
  thread.where = where;
  if (block.arrived && !(block.barrier == where))
    fault("threads of a block meet at different barriers, others at " + block.barrier.text());
  block.barrier = where;
  block.votes += vote;
  if (++block.arrived == block.live) {
    release_barrier(block);
  } else {
    thread.state = State::AtBarrier;
    leave();
  }
  return block.last_votes;
}

unsigned barrier_threads() { return current->block->last_arrived; }

void warp_operation(uint32_t mask, const void* in, void* out, Where where, WarpOperation operation) {
  Thread& thread = *current;
  Warp& warp = *thread.warp;
  thread.where = where;
  if (!(mask >> thread.lane & 1)) fault("a lane calls a warp operation whose mask lacks it");
  if (mask & ~warp.live) fault("the mask of a warp operation names lanes that have ended or do not exist");
  warp.lanes[thread.lane] = {mask, where, in, out};
  warp.arrived |= 1u << thread.lane;
  bool complete = (warp.arrived & mask) == mask;
  for (uint32_t others = warp.arrived & mask; others; others &= others - 1) {
    const Lane& lane = warp.lanes[__builtin_ctz(others)];
    if (lane.mask == mask && lane.where == where) continue;
    // The other lane may come here after an operation of its own, unless that one waits for this lane.
    complete = false;
    if (lane.mask >> thread.lane & 1)
      fault("lanes of a warp meet in different operations or with different masks, others at " + lane.where.text());
  }
  if (!complete) {
    thread.state = State::AtWarp;
    leave();
    return;
  }
  operation(warp.lanes, mask);
  warp.arrived &= ~mask;
  for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
    Thread& other = thread.block->threads[warp.first_thread + __builtin_ctz(lanes)];
    if (!other.stores.empty()) move(other.stores, warp.stores);
    if (other.state == State::AtWarp) other.state = State::Ready;
  }
}

void order_lanes(Lane*, uint32_t mask) { races::lanes_meet(*current->block, *current->warp, mask); }

char* dynamic_shared() { return current->block->dynamic_shared; }

char* static_shared(const char* name, size_t bytes, size_t alignment) {
  Block& block = *current->block;
  Memory& memory = block.static_shared[name];
  if (!memory.begin) {
    block.static_bytes += bytes;
    if (block.static_bytes > MOST_STATIC_SHARED || block.static_bytes + grid->launch->dynamic_shared > MOST_SHARED)
      fault("a block asks for more shared memory than there is");
    memory = {shared_memory(bytes, std::max<size_t>(alignment, 16)), bytes};
  }
  return memory.begin;
}

void store_for_grid(void* to, const void* from, unsigned count) {
  races::write(to, count);
  if (grid->schedule.landing == Landing::Early) {
    std::memcpy(to, from, count);
    return;
  }
  Store store{static_cast<char*>(to), count, {}};
  std::memcpy(store.bytes, from, count);
  current->stores.push_back(store);
}

void load_from_grid(void* to, const void* from, unsigned count) {
  races::read(from, count);
  std::memcpy(to, from, count);
  // A thread sees its own stores, and those that a barrier put before it.
  for (const Stores* stores : {&current->block->stores, &current->warp->stores, &current->stores})
    for (const Store& store : *stores)
      if (store.to == from && store.count == count) std::memcpy(to, store.bytes, count);
}

void publish_stores() {
  // What was stored is seen from here on; until then others go ahead.
  const bool pending = !current->block->stores.empty() || !current->warp->stores.empty() || !current->stores.empty();
  for (unsigned delay = pending ? grid->random() % 4 : 0; delay > 0; delay--) pause(false);
  drain(current->block->stores);
  drain(current->warp->stores);
  drain(current->stores);
}

void fence() {
  publish_stores();
  races::fence();
}

namespace {

void land(const Copy& copy) {
  std::memcpy(copy.to, copy.from, copy.valid);
  std::memset(copy.to + copy.valid, 0, copy.count - copy.valid);
}

}  // namespace

void copy_async(void* to, const void* from, unsigned count, unsigned valid) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % count)
    fault("an asynchronous copy is not aligned to its size");
  const Copy copy{static_cast<char*>(to), static_cast<const char*>(from), count, valid};
  races::copy_begins(copy);
  if (grid->schedule.landing == Landing::Early) land(copy);
  current->open_copies.push_back(copy);
}

void copy_async_commit() {
  current->copy_groups.push_back(std::move(current->open_copies));
  current->open_copies.clear();
}

void copy_async_wait(unsigned left) {
  auto& groups = current->copy_groups;
  while (groups.size() > left) {
    for (const Copy& copy : groups.front()) {
      races::copy_ends(copy);
      if (grid->schedule.landing == Landing::Late) land(copy);
    }
    groups.erase(groups.begin());
  }
}

std::string Where::text() const {
  const char* slash = std::strrchr(file, '/');
  return std::string(operation) + " (" + (slash ? slash + 1 : file) + ":" + std::to_string(line) + ")";
}

std::string Schedule::name() const {
  static const char* const ORDERS[] = {"forward", "reverse", "random", "lockstep"};
  return std::string(ORDERS[int(order)]) + (landing == Landing::Late ? ", late" : ", early");
}

std::map<std::string, Kernel>& kernels() {
  static auto& table = *new std::map<std::string, Kernel>;  // outlives all that was registered
  return table;
}

void run(const std::string& kernel, const Launch& launch, const Schedule& schedule, void** arguments) {
  const auto found = kernels().find(kernel);
  if (found == kernels().end()) throw Fault("there is no kernel " + kernel);
  const Kernel& called = found->second;
  try {
    run_grid(launch, schedule, [&] { called.call(called.function, arguments); }, called.signature, arguments);
  } catch (const Fault& fault) {
    throw Fault(kernel + ": " + fault.what());
  }
}

}  // namespace sim
