// The checker of races.h. Every granule of four bytes keeps the accesses that a later one may race with: the last write, the reads
// since, and atomics; those of a warp's lanes that are ordered alike are one entry.
#include "races.h"

#ifdef SIM_RACES
#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "machine.h"

namespace sim::races {

namespace {

enum class Kind : uint8_t { Read, AtomicRead, Write, AtomicUpdate, Copy, Bulk };

bool writes(Kind kind) { return kind >= Kind::Write; }
bool atomic(Kind kind) { return kind == Kind::AtomicRead || kind == Kind::AtomicUpdate; }

struct Entry {
  uint32_t block, barriers, stamp, lanes;
  uint16_t warp;
  uint8_t bytes;  // a bit for each of the granule's four
  Kind kind;

  bool alike(const Entry& other) const {
    return block == other.block && barriers == other.barriers && stamp == other.stamp && warp == other.warp &&
           bytes == other.bytes && kind == other.kind;
  }
};

struct Granule {
  std::vector<Entry> written, read;
};
constexpr uintptr_t PAGE_BYTES = 4096;
using Page = std::array<Granule, PAGE_BYTES / 4>;

// Of a barrier of hopper.h: what those who arrived in this phase or before did, and what a phase that ended lets others know.
struct Phases {
  Knowledge arrived, ended;
};

struct Argument {
  size_t number;
  uintptr_t address;
};

struct Checker {
  uintptr_t stacks = 0;
  size_t stack_bytes = 0;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
  uintptr_t last_page = ~uintptr_t(0);
  Page* last = nullptr;
  std::map<uintptr_t, Knowledge> released;    // by the address of the atomic
  std::map<uintptr_t, Phases> phases;         // by the address of the barrier
  std::vector<std::vector<Where>> barriers;  // that each block passed
  std::vector<Argument> arguments;
  uint32_t constants = 0;  // of arguments, by number

  Granule& granule(uintptr_t at) {
    if (at / PAGE_BYTES != last_page) {
      auto& page = pages[at / PAGE_BYTES];
      if (!page) page = std::make_unique<Page>();
      last_page = at / PAGE_BYTES;
      last = page.get();
    }
    return (*last)[at % PAGE_BYTES / 4];
  }
};

thread_local Checker checker;

uint32_t barriers_passed(uint32_t block) { return uint32_t(checker.barriers[block].size()); }

// --- knowledge ---

void merge(Known& into, const Known& other) {
  if (other.barriers > into.barriers) {
    into = other;  // what the barrier covers, stamps need not
  } else if (other.barriers == into.barriers) {
    for (const auto& [thread, stamp] : other.stamps) into.stamps[thread] = std::max(into.stamps[thread], stamp);
  }
}

Knowledge merged(const Knowledge& a, const Knowledge& b) {
  if (!b || a == b) return a;
  if (!a) return b;
  auto all = std::make_shared<std::map<uint32_t, Known>>(*a);
  for (const auto& [block, known] : *b) merge((*all)[block], known);
  return all;
}

// All that a thread did or knows, and its clock goes on: what it does next is not part of it.
Knowledge all_of(Thread& thread) {
  Known own{barriers_passed(thread.block->number), {}};
  for (unsigned lane = 0; lane < 32; lane++)
    if (thread.clock.seen[lane]) own.stamps[thread.warp->first_thread + lane] = thread.clock.seen[lane];
  own.stamps[thread.number] = thread.warp->clock.now++;
  const auto alone = std::make_shared<std::map<uint32_t, Known>>();
  (*alone)[thread.block->number] = std::move(own);
  return merged(alone, thread.clock.acquired);
}

// Lanes of the entry whose access is not known to happen before what the thread does now.
uint32_t unordered(const Entry& entry, const Thread& thread) {
  uint32_t lanes = entry.lanes;
  if (entry.block == thread.block->number) {
    if (entry.barriers < barriers_passed(entry.block)) return 0;
    if (entry.warp == thread.warp->number) {
      lanes &= ~(1u << thread.lane);
      for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if (entry.stamp <= thread.clock.seen[lane]) lanes &= ~(1u << lane);
      }
    }
  }
  if (!lanes || !thread.clock.acquired) return lanes;
  const auto known = thread.clock.acquired->find(entry.block);
  if (known == thread.clock.acquired->end()) return lanes;
  if (entry.barriers < known->second.barriers) return 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const auto stamp = known->second.stamps.find(entry.warp * 32 + lane);
    if (stamp != known->second.stamps.end() && entry.stamp <= stamp->second) lanes &= ~(1u << lane);
  }
  return lanes;
}

// --- messages ---

const char* name(Kind kind) {
  switch (kind) {
    case Kind::Read: return "a read";
    case Kind::AtomicRead: return "an atomic read";
    case Kind::Write: return "a write";
    case Kind::AtomicUpdate: return "an atomic update";
    case Kind::Copy: return "an asynchronous copy";
    case Kind::Bulk: return "a bulk copy";
  }
  return "";
}

// The pointer argument that is nearest below: how far an allocation reaches is not known here.
const Argument* argument_of(uintptr_t at) {
  const Argument* nearest = nullptr;
  for (const Argument& argument : checker.arguments)
    if (argument.address <= at && (!nearest || argument.address > nearest->address)) nearest = &argument;
  return nearest;
}

bool is_dynamic_shared(uintptr_t at) {
  return at - uintptr_t(current->block->dynamic_shared) < current_launch().dynamic_shared;
}

std::string memory_name(uintptr_t at) {
  const Block& block = *current->block;
  const auto within = [at](const void* memory, size_t bytes) { return at - uintptr_t(memory) < bytes; };
  const auto offset = [at](const void* memory) { return " + " + std::to_string(at - uintptr_t(memory)) + " bytes"; };
  for (const auto& [array, memory] : block.static_shared)
    if (within(memory.begin, memory.bytes)) return std::string("shared memory ") + array + offset(memory.begin);
  if (is_dynamic_shared(at)) return "dynamic shared memory" + offset(block.dynamic_shared);
  if (const Argument* const nearest = argument_of(at)) return "argument " + std::to_string(nearest->number) + offset(reinterpret_cast<void*>(nearest->address));
  char text[32];
  std::snprintf(text, sizeof text, "address %p", reinterpret_cast<void*>(at));
  return text;
}

std::string last_barrier(const Entry& entry) {
  if (entry.barriers == 0) return "before any barrier";
  return "after barrier " + std::to_string(entry.barriers) + ", " + checker.barriers[entry.block][entry.barriers - 1].text();
}

[[noreturn]] void report(const Entry& before, uint32_t lanes, const Entry& now, uintptr_t granule) {
  const dim3 grid = current_launch().grid;
  const unsigned block = before.block, thread = before.warp * 32 + unsigned(__builtin_ctz(lanes));
  const uintptr_t at = granule + unsigned(__builtin_ctz(before.bytes & now.bytes));
  fault("race at " + memory_name(at) + ": " + name(before.kind) + " by block (" + std::to_string(block % grid.x) + ", " +
        std::to_string(block / grid.x % grid.y) + ", " + std::to_string(block / grid.x / grid.y) + ") thread " +
        std::to_string(thread) + " (" + last_barrier(before) + (before.kind == Kind::Copy ? ", not waited for" : "") + ") and " +
        name(now.kind) + " (" + last_barrier(now) + "), with nothing to order them");
}

// --- accesses ---

void check(const Entry& before, const Entry& now, uintptr_t granule) {
  if (!(before.bytes & now.bytes) || (atomic(before.kind) && atomic(now.kind))) return;
  const uint32_t lanes = before.kind == Kind::Copy ? before.lanes : unordered(before, *current);
  if (lanes) report(before, lanes, now, granule);
}

template <class F> void remove(std::vector<Entry>& entries, F needless) {
  entries.erase(std::remove_if(entries.begin(), entries.end(), needless), entries.end());
}

void add(std::vector<Entry>& entries, const Entry& now) {
  for (size_t i = entries.size(), looked = 0; i > 0 && looked < 4; looked++)
    if (entries[--i].alike(now)) {
      entries[i].lanes |= now.lanes;
      return;
    }
  // Who is ordered after this access is ordered after those before it: they need not be kept. Looked for at sizes 8, 16, 32, ...
  if (entries.size() >= 8 && (entries.size() & (entries.size() - 1)) == 0)
    remove(entries, [&](const Entry& old) {
      return old.kind == now.kind && !(old.bytes & ~now.bytes) && !unordered(old, *current);
    });
  entries.push_back(now);
}

void access_granule(uintptr_t at, uint8_t bytes, Kind kind) {
  const Thread& thread = *current;
  const Entry now{thread.block->number, barriers_passed(thread.block->number), thread.warp->clock.now, 1u << thread.lane,
                  uint16_t(thread.warp->number), bytes, kind};
  Granule& granule = checker.granule(at);
  for (const Entry& before : granule.written) check(before, now, at);
  if (!writes(kind)) return add(granule.read, now);
  for (const Entry& before : granule.read) check(before, now, at);
  if (!atomic(kind))
    for (auto* entries : {&granule.written, &granule.read})
      remove(*entries, [&](const Entry& old) { return !(old.bytes & ~bytes); });
  add(granule.written, now);
}

// Calls f(granule, its bytes).
template <class F> void for_each_granule(const void* address, size_t count, F f) {
  for (uintptr_t at = uintptr_t(address), end = at + count; at < end;) {
    const uintptr_t granule = at & ~uintptr_t(3), next = std::min(end, granule + 4);
    f(granule, uint8_t(((1u << (next - at)) - 1) << (at - granule)));
    at = next;
  }
}

// What a thread does before it waits for the kernel before, if it ever does.
void note_early(uintptr_t at, Kind kind) {
  for (const auto& [array, memory] : current->block->static_shared)
    if (at - uintptr_t(memory.begin) < memory.bytes) return;
  if (is_dynamic_shared(at)) return;
  const Argument* const argument = argument_of(at);
  if (argument) (writes(kind) ? current->clock.written_early : current->clock.read_early) |= 1u << argument->number;
}

void access(const void* address, size_t count, Kind kind) {
  if (!current || uintptr_t(address) - checker.stacks < checker.stack_bytes) return;
  if (!current->clock.waited) note_early(uintptr_t(address), kind);
  for_each_granule(address, count, [kind](uintptr_t granule, uint8_t bytes) { access_granule(granule, bytes, kind); });
}

}  // namespace

void begin(const void* stacks, size_t stack_bytes, unsigned blocks, const std::string& signature, void** arguments) {
  checker.stacks = uintptr_t(stacks);
  checker.stack_bytes = stack_bytes;
  checker.pages.clear();
  checker.last_page = ~uintptr_t(0);
  checker.released.clear();
  checker.phases.clear();
  checker.barriers.assign(blocks, {});
  checker.arguments.clear();
  for (size_t i = 0; i < signature.size(); i++)
    if (signature[i] == 'p') checker.arguments.push_back({i, *static_cast<uintptr_t*>(arguments[i])});
}

void constants(uint32_t arguments) { checker.constants = arguments; }

void wait_for_previous() {
  Clock& clock = current->clock;
  const uint32_t read = clock.read_early & ~checker.constants, early = read | clock.written_early;
  if (early)
    fault(std::string(read ? "reads" : "writes") + " at argument " + std::to_string(__builtin_ctz(early)) +
          " before it waits for the kernel before, which may still run");
  clock.waited = true;
}

void forget(const void* memory, size_t bytes) {
  for_each_granule(memory, bytes, [](uintptr_t granule, uint8_t) {
    if (checker.pages.count(granule / PAGE_BYTES)) checker.granule(granule) = {};
  });
  const auto erase = [&](auto& map) {
    map.erase(map.lower_bound(uintptr_t(memory)), map.lower_bound(uintptr_t(memory) + bytes));
  };
  erase(checker.released);
  erase(checker.phases);
}

void read(const void* from, size_t bytes) { access(from, bytes, Kind::Read); }
void write(const void* to, size_t bytes) { access(to, bytes, Kind::Write); }

void update(const void* at, size_t bytes) {
  access(at, bytes, Kind::AtomicUpdate);
  Clock& clock = current->clock;
  Knowledge& released = checker.released[uintptr_t(at)];
  clock.read = merged(clock.read, released);
  released = merged(released, clock.fenced);
}

void release(const void* at) {
  Knowledge& released = checker.released[uintptr_t(at)];
  released = merged(released, all_of(*current));
}

void acquire(const void* at, size_t bytes) {
  access(at, bytes, Kind::AtomicRead);
  Clock& clock = current->clock;
  const Knowledge& released = checker.released[uintptr_t(at)];
  if (released == clock.last) return;
  clock.last = released;
  clock.acquired = merged(clock.acquired, released);
}

void fence() {
  Clock& clock = current->clock;
  clock.acquired = merged(clock.acquired, clock.read);
  clock.read.reset();
  clock.fenced = all_of(*current);
}

void copy_begins(const Copy& copy) {
  access(copy.from, copy.valid, Kind::Read);
  access(copy.to, copy.count, Kind::Copy);
}

// Both sides were in use until now.
void copy_ends(const Copy& copy) {
  for_each_granule(copy.to, copy.count, [](uintptr_t granule, uint8_t) {
    remove(checker.granule(granule).written, [](const Entry& entry) { return entry.kind == Kind::Copy; });
  });
  access(copy.from, copy.valid, Kind::Read);
  access(copy.to, copy.count, Kind::Write);
}

void arrive(const void* barrier) {
  access(barrier, 8, Kind::AtomicUpdate);
  Knowledge& arrived = checker.phases[uintptr_t(barrier)].arrived;
  arrived = merged(arrived, all_of(*current));
}
void phase_ends(const void* barrier) {
  Phases& phases = checker.phases[uintptr_t(barrier)];
  phases.ended = phases.arrived;
}
void wait_ends(const void* barrier) {
  access(barrier, 8, Kind::AtomicRead);
  Clock& clock = current->clock;
  clock.acquired = merged(clock.acquired, checker.phases[uintptr_t(barrier)].ended);
}
void forget_phases(const void* barrier) { checker.phases.erase(uintptr_t(barrier)); }

// From here on the bytes are as if the thread that began the copy had written them, and who waits for the phase knows.
void bulk_copy_ends(const BulkCopy& bulk, Thread& thread) {
  for_each_granule(bulk.copy.to, bulk.copy.count, [&](uintptr_t at, uint8_t bytes) {
    auto& written = checker.granule(at).written;
    remove(written, [](const Entry& entry) { return entry.kind == Kind::Copy; });
    written.push_back({thread.block->number, barriers_passed(thread.block->number), thread.warp->clock.now, 1u << thread.lane,
                       uint16_t(thread.warp->number), bytes, Kind::Bulk});
  });
  Knowledge& arrived = checker.phases[uintptr_t(bulk.barrier)].arrived;
  arrived = merged(arrived, all_of(thread));
}

void fence_proxy() { current->clock.proxied = current->warp->clock.now++; }

void read_by_async_proxy(const void* from, size_t bytes) {
  for_each_granule(from, bytes, [](uintptr_t at, uint8_t) {
    for (const Entry& entry : checker.granule(at).written) {
      if (entry.kind != Kind::Write) continue;
      for (uint32_t lanes = entry.lanes; lanes; lanes &= lanes - 1) {
        const unsigned thread = entry.warp * 32 + unsigned(__builtin_ctz(lanes));
        if (current->block->threads[thread].clock.proxied < entry.stamp)
          fault("race at " + memory_name(at) + ": a write by thread " + std::to_string(thread) + " (" + last_barrier(entry) +
                ") is read by wgmma and was not fenced by fence_proxy_async");
      }
    }
  });
  access(from, bytes, Kind::Read);
}

void barrier(Block& block) {
  Knowledge all, previous;
  for (const Thread& thread : block.threads) {
    if (thread.clock.acquired == previous) continue;
    previous = thread.clock.acquired;
    all = merged(all, previous);
  }
  for (Thread& thread : block.threads) thread.clock.acquired = all;
  checker.barriers[block.number].push_back(block.barrier);
}

void lanes_meet(Block& block, Warp& warp, uint32_t mask) {
  Clock all;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const Clock& clock = block.threads[warp.first_thread + lane].clock;
    for (int other = 0; other < 32; other++) all.seen[other] = std::max(all.seen[other], clock.seen[other]);
    all.acquired = merged(all.acquired, clock.acquired);
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1) all.seen[__builtin_ctz(rest)] = warp.clock.now;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    Clock& clock = block.threads[warp.first_thread + __builtin_ctz(rest)].clock;
    std::copy(all.seen, all.seen + 32, clock.seen);
    clock.acquired = all.acquired;
  }
  warp.clock.now++;
}

}  // namespace sim::races

// What -fsanitize=thread calls before an access.
#define SIM_HOOK(NAME, KIND, BYTES) \
  extern "C" void __tsan_##NAME##BYTES(void* at) { sim::races::KIND(at, BYTES); }
#define SIM_HOOKS(BYTES) SIM_HOOK(read, read, BYTES) SIM_HOOK(write, write, BYTES)
#define SIM_UNALIGNED_HOOKS(BYTES) SIM_HOOK(unaligned_read, read, BYTES) SIM_HOOK(unaligned_write, write, BYTES)
SIM_HOOKS(1) SIM_HOOKS(2) SIM_HOOKS(4) SIM_HOOKS(8) SIM_HOOKS(16)
SIM_UNALIGNED_HOOKS(2) SIM_UNALIGNED_HOOKS(4) SIM_UNALIGNED_HOOKS(8) SIM_UNALIGNED_HOOKS(16)
extern "C" {
void __tsan_read_range(void* at, size_t bytes) { sim::races::read(at, bytes); }
void __tsan_write_range(void* at, size_t bytes) { sim::races::write(at, bytes); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
#endif
