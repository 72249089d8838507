// The bodies of hopper.h.
#include "hopper.h"

#include <algorithm>

namespace sim {

namespace {

// As good as the hardware's: nobody looks into it.
struct BarrierState {
  static constexpr int MOST = (1 << 20) - 1;
  static constexpr uint64_t MARK = 1;  // memory that nobody initialised is all ones

  int pending, expected, bytes;
  unsigned parity;

  static BarrierState of(const uint64_t* barrier) {
    if (reinterpret_cast<uintptr_t>(barrier) % 8) fault("a barrier is not aligned to eight bytes");
    const uint64_t bits = *barrier;
    if (bits >> 62 != MARK) fault("a barrier was not initialised");
    return {int(bits & MOST), int(bits >> 20 & MOST), int(bits >> 40 & 0x1fffff) - MOST, unsigned(bits >> 61 & 1)};
  }
  void keep(uint64_t* barrier) const {
    if (bytes < -MOST || bytes > MOST) fault("a barrier is told of more bytes than it can count");
    *barrier = uint64_t(pending) | uint64_t(expected) << 20 | uint64_t(bytes + MOST) << 40 | uint64_t(parity) << 61 | MARK << 62;
  }
};

bool early() { return current_schedule().landing == Landing::Early; }

// The phase ends if nothing is left to come, and with it the copies that it counted.
void settle(uint64_t* barrier, BarrierState state) {
  if (state.pending == 0 && state.bytes == 0) {
    state.pending = state.expected;
    state.parity ^= 1;
    auto& copies = current->block->bulk_copies;
    for (size_t i = 0; i < copies.size();) {
      if (copies[i].barrier != barrier || !copies[i].landed) {
        i++;
        continue;
      }
      races::bulk_copy_ends(copies[i], *copies[i].thread);
      copies.erase(copies.begin() + i);
    }
    races::phase_ends(barrier);
  }
  state.keep(barrier);
}

void land(BulkCopy& bulk) {
  const Copy& copy = bulk.copy;
  Block& block = *current->block;
  std::memcpy(copy.to, copy.from, copy.count);
  std::memcpy(&block.async_view[copy.to - block.dynamic_shared], copy.from, copy.count);
  bulk.landed = true;
  uint64_t* const barrier = bulk.barrier;
  BarrierState state = BarrierState::of(barrier);
  state.bytes -= int(copy.count);
  settle(barrier, state);
}

bool is_dynamic(const void* at, size_t bytes) {
  const size_t offset = size_t(static_cast<const char*>(at) - current->block->dynamic_shared);
  return offset <= current_launch().dynamic_shared && bytes <= current_launch().dynamic_shared - offset;
}

// The first kilobyte is the system's on these machines.
constexpr unsigned FIRST_ADDRESS = 1024;

struct Descriptor {
  unsigned start, leading, stride, swizzle;

  explicit Descriptor(uint64_t bits)
      : start(unsigned(bits & 0x3fff) << 4), leading(unsigned(bits >> 16 & 0x3fff) << 4), stride(unsigned(bits >> 32 & 0x3fff) << 4),
        swizzle(unsigned(bits >> 62)) {
    if (bits & ~0xc0003fff3fff3fffull) fault("a matrix descriptor has bits, or a base offset, that the simulator does not know");
    if (swizzle > 1) fault("a matrix descriptor asks for a swizzle of 64 or 32 bytes, which the simulator lacks");
    if (swizzle == 1 && start % 1024 >= 128) fault("a swizzled matrix begins at no multiple of 1024 and has no base offset");
    if (swizzle == 1 && stride % 1024) fault("the columns of a swizzled matrix are no multiple of 1024 bytes apart");
  }
  // Of element k of a column, in dynamic shared memory.
  unsigned offset(unsigned column, unsigned k, size_t limit) const {
    unsigned at = start + column / 8 * stride;
    if (swizzle == 0) at += column % 8 * 16 + k / 8 * leading + k % 8 * 2;
    if (swizzle == 1) {
      at += column % 8 * 128 + k * 2;
      at ^= (at >> 7 & 7) << 4;
    }
    if (at < FIRST_ADDRESS || at - FIRST_ADDRESS + 2 > limit) fault("a matrix descriptor reaches beyond dynamic shared memory");
    return at - FIRST_ADDRESS;
  }
};

float bf16(uint32_t pair, unsigned half) { return sim_bit_cast<float>((half ? pair >> 16 : pair & 0xffff) << 16); }

// The bytes of B, to the checker of races.
void read_matrix(const Multiply& multiply) {
  const Descriptor descriptor(multiply.b);
  const size_t limit = current_launch().dynamic_shared;
  for (unsigned column = 0; column < multiply.columns; column++)
    for (unsigned k = 0; k < 16; k += 8)
      races::read_by_async_proxy(current->block->dynamic_shared + descriptor.offset(column, k, limit), 16);
}

// A warp's sixteen rows.
void compute(const Multiply& multiply, std::vector<float>& d) {
  const Descriptor descriptor(multiply.b);
  const Block& block = *current->block;
  const char* const memory = early() ? block.dynamic_shared : block.async_view.data();
  std::vector<float> b(16 * multiply.columns);
  for (unsigned column = 0; column < multiply.columns; column++)
    for (unsigned k = 0; k < 16; k++) {
      uint16_t bits;
      std::memcpy(&bits, memory + descriptor.offset(column, k, current_launch().dynamic_shared), 2);
      b[k * multiply.columns + column] = bf16(bits, 0);
    }
  float a[16][16];
  for (unsigned lane = 0; lane < 32; lane++)
    for (unsigned i = 0; i < 4; i++)
      for (unsigned half = 0; half < 2; half++)
        a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + half] = bf16(multiply.a[lane][i], half);
  const unsigned of_lane = multiply.columns / 2;
  for (unsigned lane = 0; lane < 32; lane++)
    for (unsigned i = 0; i < of_lane; i++) {
      const unsigned row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = 0;
      for (unsigned k = 0; k < 16; k++) sum += a[row][k] * b[k * multiply.columns + column];
      float& to = d[lane * of_lane + i];
      to = multiply.accumulate ? to + sum : sum;
    }
}

void show(const Sums& sums, const Multiply& multiply) {
  const unsigned of_lane = multiply.columns / 2;
  for (unsigned lane = 0; lane < 32; lane++) std::memcpy(multiply.d[lane], &sums.values[lane * of_lane], of_lane * sizeof(float));
}

}  // namespace

void mbarrier_init(uint64_t* barrier, unsigned count) {
  if (count < 1 || count > unsigned(BarrierState::MOST)) fault("a barrier cannot count so many arrivals");
  races::write(barrier, 8);
  races::forget_phases(barrier);
  BarrierState{int(count), int(count), 0, 0}.keep(barrier);
}

void mbarrier_arrive(uint64_t* barrier, unsigned bytes) {
  pause(false);
  races::arrive(barrier);
  BarrierState state = BarrierState::of(barrier);
  if (state.pending == 0) fault("a barrier has more arrivals than it expects");
  state.pending--;
  state.bytes += int(bytes);
  settle(barrier, state);
  pause(false);
}

bool mbarrier_try_wait(uint64_t* barrier, unsigned parity) {
  const auto over = [&] {
    if (BarrierState::of(barrier).parity == parity) return false;
    races::wait_ends(barrier);
    return true;
  };
  if (over()) return true;
  // As late as can be: nothing but bytes is missing.
  if (BarrierState::of(barrier).pending == 0) {
    auto& copies = current->block->bulk_copies;
    const auto waiting = [&](const BulkCopy& bulk) { return bulk.barrier == barrier && !bulk.landed; };
    const auto bulk = std::find_if(copies.begin(), copies.end(), waiting);
    if (bulk != copies.end()) land(*bulk);
    if (over()) return true;
  }
  pause(true);
  return over();
}

void copy_bulk(void* to, const void* from, unsigned bytes, uint64_t* barrier) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % 16 || !bytes)
    fault("a bulk copy is not of whole 16 bytes");
  if (!is_dynamic(to, bytes)) fault("a bulk copy leaves dynamic shared memory");
  BarrierState::of(barrier);
  const Copy copy{static_cast<char*>(to), static_cast<const char*>(from), bytes, bytes};
  races::copy_begins(copy);
  auto& copies = current->block->bulk_copies;
  copies.push_back({copy, barrier, current, false});
  if (early()) land(copies.back());
}

void fence_proxy_async() {
  Block& block = *current->block;
  std::memcpy(block.async_view.data(), block.dynamic_shared, block.async_view.size());
  races::fence_proxy();
}

unsigned shared_address(const void* at) {
  if (!is_dynamic(at, 0)) fault("the simulator knows addresses of dynamic shared memory only");
  return unsigned(static_cast<const char*>(at) - current->block->dynamic_shared) + FIRST_ADDRESS;
}

void fence_multiplies(Lane*, uint32_t) { current->warp->multiply.fenced = true; }

void begin_multiply(Lane* lanes, uint32_t) {
  Block& block = *current->block;
  Warp& warp = *current->warp;
  MultiplyQueue& queue = warp.multiply;
  const unsigned group = warp.number / 4;
  if (group * 4 + 3 >= block.warps.size()) fault("wgmma in a warpgroup of fewer than four warps");
  if (!queue.fenced) fault("a group of wgmma without wgmma_fence");
  const auto& first = *static_cast<const MultiplyInput*>(lanes[0].in);
  Multiply multiply{first.b, first.columns, first.accumulate, {}, {}};
  for (unsigned lane = 0; lane < 32; lane++) {
    const auto& in = *static_cast<const MultiplyInput*>(lanes[lane].in);
    if (in.b != first.b || in.columns != first.columns || in.accumulate != first.accumulate)
      fault("lanes give wgmma different matrices");
    std::copy(in.a, in.a + 4, multiply.a[lane]);
    multiply.d[lane] = static_cast<float*>(lanes[lane].out);
  }
  block.multiplied.resize(block.warps.size() / 4);
  auto& by_group = block.multiplied[group];
  if (queue.begun == by_group.size()) by_group.push_back(first.b);
  if (by_group[queue.begun++] != first.b) fault("warps of a warpgroup give wgmma different matrices");

  Sums& sums = queue.sums[multiply.d[0]];
  if (sums.pending == 0) {
    for (unsigned lane = 0; lane < 32; lane++)
      sums.values.insert(sums.values.end(), multiply.d[lane], multiply.d[lane] + multiply.columns / 2);
  } else if (sums.values.size() != 16 * multiply.columns) {
    fault("wgmma of another shape adds to sums under way");
  }
  sums.pending++;
  read_matrix(multiply);
  if (early()) {
    compute(multiply, sums.values);
    show(sums, multiply);
  } else {
    for (unsigned lane = 0; lane < 32; lane++) std::fill_n(multiply.d[lane], multiply.columns / 2, NAN);
  }
  queue.open.push_back(std::move(multiply));
}

void commit_multiplies(Lane*, uint32_t) {
  MultiplyQueue& queue = current->warp->multiply;
  queue.groups.push_back(std::move(queue.open));
  queue.open.clear();
  queue.fenced = false;
}

void wait_for_multiplies(Lane* lanes, uint32_t) {
  MultiplyQueue& queue = current->warp->multiply;
  const size_t left = *static_cast<const size_t*>(lanes[0].in);
  while (queue.groups.size() > left) {
    for (const Multiply& multiply : queue.groups.front()) {
      Sums& sums = queue.sums[multiply.d[0]];
      read_matrix(multiply);
      if (!early()) compute(multiply, sums.values);
      if (--sums.pending == 0) {
        if (!early()) show(sums, multiply);
        queue.sums.erase(multiply.d[0]);
      }
    }
    queue.groups.erase(queue.groups.begin());
  }
}

const char* left_behind(const Thread& thread) {
  const MultiplyQueue& queue = thread.warp->multiply;
  if (!queue.open.empty() || !queue.groups.empty()) return "a thread ends with wgmma under way";
  // The last one out.
  if (thread.block->live == 1 && !thread.block->bulk_copies.empty()) return "a block ends with bulk copies under way";
  return nullptr;
}

}  // namespace sim
