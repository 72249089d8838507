// Hopper's instructions in the simulator: products of a warpgroup with operands laid out by formulas of their own, descriptors that
// are refused, phases of barriers, and seeded bugs, each of which some schedule must find.
#include "launch.h"
#include "seeded_hopper.cuh"

using namespace check;

namespace {

// How B lies in memory, one element at a time.
struct Layout {
  ptx::Swizzle swizzle;
  unsigned leading, stride;  // as the descriptor is told
  // The byte of element k of a column, k up to 63.
  unsigned (*byte)(unsigned column, unsigned k);
};
// Without swizzle, blocks of 8 columns x 8 k of 128 bytes: all k of eight columns, then the next columns; or all columns of eight k.
unsigned columns_slow(unsigned column, unsigned k) { return column / 8 * 1024 + k / 8 * 128 + column % 8 * 16 + k % 8 * 2; }
unsigned columns_fast(unsigned column, unsigned k) { return k / 8 * 2048 + column / 8 * 128 + column % 8 * 16 + k % 8 * 2; }
// A line of 128 bytes for each column; its eight pieces of 16 bytes change places.
unsigned lines(unsigned column, unsigned k) {
  static const unsigned ORDER[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5}, {3, 2, 1, 0, 7, 6, 5, 4},
                                       {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2}, {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};
  return column * 128 + ORDER[column % 8][k / 8] * 16 + k % 8 * 2;
}
const Layout LAYOUTS[] = {{ptx::NOT_SWIZZLED, 128, 1024, columns_slow},
                          {ptx::NOT_SWIZZLED, 2048, 128, columns_fast},
                          {ptx::SWIZZLED_128, 16, 1024, lines}};

float rounded(float x) { return __bfloat162float(__float2bfloat16(x)); }

constexpr unsigned K = 64, AT = 2048;

// D [64, N] = A [64, 64] B [64, N] by four wgmma; d[row * N + column].
template <unsigned N> Row multiplied(const Row& a, const Row& b, const Layout& layout, const sim::Schedule& schedule) {
  Row d(64 * N);
  sim::run({1, 128, AT + 128 * 128}, schedule, [&] {
    DYNAMIC_SHARED(char, memory);
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    for (unsigned i = thread; i < N * K; i += 128) {
      const __nv_bfloat16 element = __float2bfloat16(b[i % K * N + i / K]);
      std::memcpy(memory + AT + layout.byte(i / K, i % K), &element, 2);
    }
    ptx::fence_proxy_async();
    __syncthreads();
    uint32_t of_a[K / 16][4] = {};
    for (unsigned row = 0; row < 16; row++)
      for (unsigned k = 0; k < K; k++)
        if (lane == row % 8 * 4 + k % 8 / 2)
          of_a[k / 16][row / 8 + 2 * (k % 16 / 8)] |= uint32_t(__float2bfloat16(a[(16 * warp + row) * K + k]).bits) << (k % 2 * 16);
    float sums[N / 2];
    ptx::wgmma_fence();
    for (unsigned step = 0; step < K / 16; step++) {
      const unsigned forward = layout.swizzle == ptx::SWIZZLED_128 ? 32 : 2 * layout.byte(0, 8);
      ptx::wgmma_m64k16_bf16(sums, of_a[step],
                             ptx::matrix_descriptor(memory + AT + step * forward, layout.leading, layout.stride, layout.swizzle), step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (unsigned row = 0; row < 16; row++)
      for (unsigned column = 0; column < N; column++)
        if (lane == row % 8 * 4 + column % 8 / 2)
          d[(16 * warp + row) * N + column] = sums[column / 8 * 4 + row / 8 * 2 + column % 2];
  });
  return d;
}

template <unsigned N> void check_products() {
  Random random(N);
  const Row a = uniform(random, 64 * K), b = uniform(random, K * N);
  std::vector<double> expected(64 * N);
  for (unsigned row = 0; row < 64; row++)
    for (unsigned k = 0; k < K; k++)
      for (unsigned column = 0; column < N; column++)
        expected[row * N + column] += double(rounded(a[row * K + k])) * rounded(b[k * N + column]);
  for (const Layout& layout : LAYOUTS)
    for_each_schedule([&](const sim::Schedule& schedule) {
      compare(multiplied<N>(a, b, layout, schedule), expected, 1e-5, 0, std::to_string(N) + " columns, " + schedule.name());
    });
}
TEST(products_agree_with_float64_for_every_layout_of_b) {
  check_products<8>();
  check_products<16>();
  check_products<32>();
  check_products<64>();
  check_products<128>();
}

std::string fault_of(const sim::Launch& launch, const std::function<void()>& body, const sim::Schedule& schedule = {}) {
  try {
    sim::run(launch, schedule, body);
  } catch (const sim::Fault& fault) {
    return fault.what();
  }
  return "";
}

// The fault of one wgmma by a descriptor, with `threads` threads.
std::string multiply_fault(const std::function<uint64_t(const char*)>& descriptor, unsigned threads = 128) {
  return fault_of({1, threads, 4096}, [&] {
    DYNAMIC_SHARED(char, memory);
    float d[4] = {};
    const unsigned a[4] = {};
    ptx::wgmma_fence();
    ptx::wgmma_m64k16_bf16(d, a, descriptor(memory), false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  });
}

TEST(descriptors_that_are_not_understood_are_refused_with_a_reason) {
  using ptx::matrix_descriptor;
  const auto refused = [](const char* reason, const std::function<uint64_t(const char*)>& descriptor, unsigned threads = 128) {
    const std::string said = multiply_fault(descriptor, threads);
    CHECK(said.find(reason) != std::string::npos, std::string(reason) + ": " + said);
  };
  CHECK(multiply_fault([](const char* m) { return matrix_descriptor(m, 128, 256, ptx::NOT_SWIZZLED); }).empty(), "a good one");
  CHECK(multiply_fault([](const char* m) { return matrix_descriptor(m + 96, 0, 1024, ptx::SWIZZLED_128); }).empty(), "a good one");
  refused("swizzle of 64 or 32", [](const char* m) { return matrix_descriptor(m, 0, 1024, ptx::Swizzle(2)); });
  refused("swizzle of 64 or 32", [](const char* m) { return matrix_descriptor(m, 0, 1024, ptx::Swizzle(3)); });
  refused("no multiple of 1024", [](const char* m) { return matrix_descriptor(m + 128, 0, 1024, ptx::SWIZZLED_128); });
  refused("multiple of 1024 bytes apart", [](const char* m) { return matrix_descriptor(m, 0, 512, ptx::SWIZZLED_128); });
  refused("base offset", [](const char* m) { return matrix_descriptor(m, 0, 1024, ptx::SWIZZLED_128) | uint64_t(1) << 49; });
  refused("beyond dynamic", [](const char* m) { return matrix_descriptor(m + 4000, 128, 256, ptx::NOT_SWIZZLED); });
  refused("beyond dynamic", [](const char*) { return uint64_t(1) << 62; });
  refused("different matrices", [](const char* m) { return matrix_descriptor(m + threadIdx.x / 32 * 256, 128, 256, ptx::NOT_SWIZZLED); });
  refused("fewer than four warps", [](const char* m) { return matrix_descriptor(m, 128, 256, ptx::NOT_SWIZZLED); }, 96);
}

TEST(a_descriptor_has_the_bits_of_the_manual) {
  sim::run({1, 1, 1 << 17}, {}, [] {
    DYNAMIC_SHARED(char, memory);
    const unsigned address = ptx::shared_address(memory + 70000 / 16 * 16);
    const uint64_t bits = ptx::matrix_descriptor(memory + 70000 / 16 * 16, 2048, 1024, ptx::SWIZZLED_128);
    CHECK(bits == (uint64_t(address / 16) | uint64_t(128) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62), "all fields");
    CHECK(ptx::shared_address(memory) % 1024 == 0, "as a GPU has it");
  });
}

TEST(sums_under_way_are_not_a_number_and_groups_end_in_order) {
  for_each_schedule([](const sim::Schedule& schedule) {
    const bool late = schedule.landing == sim::Landing::Late;
    sim::run({1, 128, 1024}, schedule, [late] {
      DYNAMIC_SHARED(__nv_bfloat16, memory);
      for (unsigned i = threadIdx.x; i < 512; i += 128) memory[i] = __float2bfloat16(1.0f);
      ptx::fence_proxy_async();
      __syncthreads();
      const uint64_t b = ptx::matrix_descriptor(memory, 128, 256, ptx::NOT_SWIZZLED);
      const unsigned ones[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
      float first[4] = {5, 5, 5, 5}, second[8] = {};
      ptx::wgmma_fence();
      ptx::wgmma_m64k16_bf16(first, ones, b, true);
      ptx::wgmma_m64k16_bf16(first, ones, b, true);
      ptx::wgmma_commit();
      ptx::wgmma_fence();
      ptx::wgmma_m64k16_bf16(second, ones, b, false);
      ptx::wgmma_commit();
      CHECK(late ? std::isnan(first[3]) : first[3] == 37, "before the wait");
      ptx::wgmma_wait<1>();
      CHECK(first[3] == 37, "the first group");
      CHECK(late ? std::isnan(second[7]) : second[7] == 16, "the second is under way");
      ptx::wgmma_wait<0>();
      CHECK(second[7] == 16, "the second group");
    });
  });
}

TEST(a_barrier_ends_a_phase_when_all_have_come_and_all_bytes_are_there) {
  for_each_schedule([](const sim::Schedule& schedule) {
    sim::run({1, 1, 64}, schedule, [] {
      DYNAMIC_SHARED(float, memory);
      uint64_t* const barrier = reinterpret_cast<uint64_t*>(memory + 8);
      alignas(16) static const float FROM[8] = {1, 2, 3, 4, 5, 6, 7, 8};
      ptx::mbarrier_init(barrier, 2);
      CHECK(ptx::mbarrier_try_wait(barrier, 1) && !ptx::mbarrier_try_wait(barrier, 0), "the phase before the first is over");
      ptx::mbarrier_arrive(barrier);
      CHECK(!ptx::mbarrier_try_wait(barrier, 0), "one of two");
      ptx::mbarrier_arrive_expect_bytes(barrier, 32);
      ptx::copy_bulk(memory, FROM, 16, barrier);
      for (int i = 0; i < 4; i++) CHECK(!ptx::mbarrier_try_wait(barrier, 0), "half of the bytes");
      ptx::copy_bulk(memory + 4, FROM + 4, 16, barrier);
      ptx::mbarrier_wait(barrier, 0);
      CHECK(memory[0] == 1 && memory[7] == 8, "the bytes");
      CHECK(!ptx::mbarrier_try_wait(barrier, 1), "the next phase");
      ptx::mbarrier_arrive(barrier);
      ptx::mbarrier_arrive(barrier);
      CHECK(ptx::mbarrier_try_wait(barrier, 1) && !ptx::mbarrier_try_wait(barrier, 0), "is over, too");
    });
  });
}

TEST(what_a_barrier_or_a_bulk_copy_cannot_do_is_refused) {
  const auto refused = [](const char* reason, const std::function<void(float*, uint64_t*)>& body) {
    alignas(16) static const float from[8] = {};
    const std::string said = fault_of({1, 1, 64}, [&] {
      DYNAMIC_SHARED(float, memory);
      body(memory, reinterpret_cast<uint64_t*>(memory + 8));
      ptx::copy_bulk(memory, from, 32, reinterpret_cast<uint64_t*>(memory + 8));
    });
    CHECK(said.find(reason) != std::string::npos, std::string(reason) + ": " + said);
  };
  alignas(16) static const float FROM[8] = {};
  refused("not initialised", [](float*, uint64_t*) {});
  refused("more arrivals", [](float*, uint64_t* barrier) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_arrive_expect_bytes(barrier, 32);
    ptx::mbarrier_arrive(barrier);
  });
  refused("so many arrivals", [](float*, uint64_t* barrier) { ptx::mbarrier_init(barrier, 1 << 20); });
  refused("whole 16 bytes", [](float* memory, uint64_t* barrier) {
    ptx::mbarrier_init(barrier, 1);
    ptx::copy_bulk(memory, FROM, 24, barrier);
  });
  refused("leaves dynamic shared memory", [](float* memory, uint64_t* barrier) {
    ptx::mbarrier_init(barrier, 1);
    ptx::copy_bulk(memory + 12, FROM, 32, barrier);
  });
  refused("bulk copies under way", [](float*, uint64_t* barrier) { ptx::mbarrier_init(barrier, 1); });
}

// --- seeded bugs ---

// Schedules under which a kernel faults or leaves another sum.
std::vector<std::string> found(void (*kernel)(const float*, float*), const sim::Launch& launch, std::string& why) {
  std::vector<std::string> schedules;
  for_each_schedule([&](const sim::Schedule& schedule) {
    alignas(16) static float in[hopper::VALUES];
    for (int i = 0; i < hopper::VALUES; i++) in[i] = float(i + 1);
    float out = 0;
    std::string reason = fault_of(launch, [&] { kernel(in, &out); }, schedule);
    if (reason.empty() && out != hopper::VALUES * (hopper::VALUES + 1) / 2) reason = "the result is " + std::to_string(out);
    if (reason.empty()) return;
    schedules.push_back(schedule.name());
    why = reason;
  });
  return schedules;
}

void expect(const char* bug, void (*kernel)(const float*, float*), const sim::Launch& launch, size_t at_least) {
  std::string why, list;
  const auto schedules = found(kernel, launch, why);
  CHECK(schedules.size() >= at_least, bug);
  for (const auto& schedule : schedules) list += (list.empty() ? "" : "; ") + schedule;
  std::printf("  %s: %s\n    under %s\n", bug, why.substr(0, why.find('\n')).c_str(), list.c_str());
}

TEST(bugs_of_a_ring_of_bulk_copies_are_found) {
  using namespace hopper;
  const sim::Launch launch{1, 160, RING_SHARED};
  std::string why;
  CHECK(found(ring<NO_RING_BUG>, launch, why).empty(), why);
  expect("a wait for the wrong parity", ring<WRONG_PARITY>, launch, 4);
  expect("no expected bytes", ring<NO_EXPECTED_BYTES>, launch, 8);
  expect("no wait for the bytes", ring<NO_WAIT_FOR_BYTES>, launch, 4);
  expect("a stage filled before it was read", ring<NO_WAIT_FOR_READERS>, launch, 4);
  expect("readers that do not tell", ring<NO_ARRIVAL_OF_READERS>, launch, 8);
}

TEST(bugs_of_products_are_found) {
  using namespace hopper;
  const sim::Launch launch{1, 128, PRODUCT_SHARED};
  std::string why;
  CHECK(found(product<NO_PRODUCT_BUG>, launch, why).empty(), why);
  expect("no wgmma_fence", product<NO_WGMMA_FENCE>, launch, 8);
  expect("no wgmma_commit", product<NO_COMMIT>, launch, 4);
  expect("no wgmma_wait", product<NO_WGMMA_WAIT>, launch, 4);
  expect("a wait for too few groups", product<WAIT_FOR_TOO_FEW>, launch, 4);
  expect("no fence_proxy_async", product<NO_PROXY_FENCE>, launch, 4);
  expect("fence_proxy_async before the stores", product<PROXY_FENCE_FIRST>, launch, 4);
  expect("a matrix that is written while it is read", product<NO_BARRIER_BEFORE_REUSE>, launch, 1);
}

}  // namespace

int main(int count, char** arguments) { return run_all(count, arguments); }
