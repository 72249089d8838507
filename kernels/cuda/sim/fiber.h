// Stacks and the switch between them.
//
// A switch saves the registers that a call must preserve and exchanges stack pointers: fifteen instructions, about 10 ns.
// Processors other than x86-64 take ucontext, which is slower and otherwise the same. The address sanitizer is told of
// every switch; below each stack lies a page that may not be touched.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace sim {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t GUARD_BYTES = 4096;

// Stacks of equal size, one after the other, each above a guard page.
class Stacks {
 public:
  explicit Stacks(size_t count) : count_(count), bytes_(count * (STACK_BYTES + GUARD_BYTES)) {
    memory_ = static_cast<char*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory_ == MAP_FAILED) throw std::runtime_error("no memory for the stacks of the simulated threads");
    for (size_t i = 0; i < count; i++) mprotect(memory_ + i * (STACK_BYTES + GUARD_BYTES), GUARD_BYTES, PROT_NONE);
  }
  ~Stacks() { munmap(memory_, bytes_); }
  Stacks(const Stacks&) = delete;
  size_t count() const { return count_; }
  const void* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }
  char* bottom(size_t index) const { return memory_ + index * (STACK_BYTES + GUARD_BYTES) + GUARD_BYTES; }

 private:
  size_t count_, bytes_;
  char* memory_;
};

#if defined(__x86_64__)

// Where a stack goes on.
struct Context {
  void* stack_pointer = nullptr;
};

extern "C" void sim_switch(void** save, void* load);

// `below` bytes under the end of the stack, a multiple of 16: were all stacks a whole number of pages apart, their frames would
// share a few lines of the first cache.
inline void prepare(Context& context, char* bottom, size_t below, void (*entry)()) {
  void** top = reinterpret_cast<void**>(bottom + STACK_BYTES - below);
  *--top = nullptr;  // entry's return address: it never returns
  *--top = reinterpret_cast<void*>(entry);
  for (int preserved = 0; preserved < 6; preserved++) *--top = nullptr;
  context.stack_pointer = top;
}
inline void switch_context(Context& save, Context& load) { sim_switch(&save.stack_pointer, load.stack_pointer); }

#else

struct Context {
  ucontext_t context;
};

inline void prepare(Context& context, char* bottom, size_t below, void (*entry)()) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = bottom;
  context.context.uc_stack.ss_size = STACK_BYTES - below;
  context.context.uc_link = nullptr;
  makecontext(&context.context, entry, 0);
}
inline void switch_context(Context& save, Context& load) { swapcontext(&save.context, &load.context); }

#endif

// What the address sanitizer is told; nothing without it.
#if defined(__SANITIZE_ADDRESS__)
inline void before_switch(void** fake, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(fake, bottom, bytes);
}
inline void after_switch(void* fake, const void** bottom, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake, bottom, bytes);
}
inline void forget_frames(char* bottom) { ASAN_UNPOISON_MEMORY_REGION(bottom, STACK_BYTES); }
#else
inline void before_switch(void**, const void*, size_t) {}
inline void after_switch(void*, const void**, size_t*) {}
inline void forget_frames(char*) {}
#endif

}  // namespace sim
