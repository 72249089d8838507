// Seeded bugs: kernels in two versions, of which the right one must pass all eight schedules and the wrong one must be found
// in at least one, by a fault or by a wrong result. Which schedules find which bug is printed.
#include "../../cuda.cuh"
#include "check.h"

namespace {

constexpr int THREADS = 128, N = 512;

// What a kernel must leave in out[0].
float expected_sum() { return float(N) * (N + 1) / 2; }

struct Data {
  std::vector<float> in = std::vector<float>(N), out = std::vector<float>(1, 0.0f), partial = std::vector<float>(64, -1.0f);
  unsigned counter = 0;
  Data() {
    for (int i = 0; i < N; i++) in[i] = float(i + 1);
  }
};
using Kernel = void (*)(const float* in, float* out, float* partial, unsigned* counter);

// Schedules under which the kernel faults or leaves something else.
std::vector<std::string> found(Kernel kernel, sim::Launch launch, std::string* why = nullptr) {
  std::vector<std::string> schedules;
  check::for_each_schedule([&](const sim::Schedule& schedule) {
    Data data;
    std::string reason;
    try {
      sim::run(launch, schedule, [&] { kernel(data.in.data(), data.out.data(), data.partial.data(), &data.counter); });
      if (data.out[0] != expected_sum()) reason = "the result is " + std::to_string(data.out[0]);
    } catch (const sim::Fault& fault) {
      reason = fault.what();
    }
    if (reason.empty()) return;
    schedules.push_back(schedule.name());
    if (why) *why = reason;
  });
  return schedules;
}

void expect(const char* bug, Kernel right, Kernel wrong, const char* reason, sim::Launch launch = {1, THREADS}) {
  std::string why;
  const auto false_alarms = found(right, launch, &why);
  CHECK(false_alarms.empty(), std::string(bug) + ", without the bug: " + why);
  const auto schedules = found(wrong, launch, &why);
  CHECK(!schedules.empty(), bug);
  CHECK(why.find(reason) != std::string::npos, why);
  std::string list;
  for (const auto& schedule : schedules) list += (list.empty() ? "" : "; ") + schedule;
  std::printf("  %s: %s\n    under %s\n", bug, why.substr(0, why.find('\n')).c_str(), list.c_str());
}

__device__ float warp_sum(float x) {
  for (int bits = 16; bits; bits /= 2) x += __shfl_xor_sync(0xffffffff, x, bits);
  return x;
}

template <bool BUG> void block_sum(const float* in, float* out, float*, unsigned*) {
  SHARED(float, of_warps, THREADS / 32);
  float sum = 0;
  for (int i = threadIdx.x; i < N; i += THREADS) sum += in[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  if (!BUG) __syncthreads();
  if (threadIdx.x == THREADS - 1) out[0] = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
}
TEST(a_missing_barrier_between_a_write_and_its_reads_is_found) {
  expect("missing __syncthreads", block_sum<false>, block_sum<true>, "nan");
}

template <bool BUG> void staged_sum(const float* in, float* out, float*, unsigned*) {
  SHARED(float, stage, THREADS);
  float sum = 0;
  for (int from = 0; from < N; from += THREADS) {
    stage[threadIdx.x] = in[from + threadIdx.x];
    __syncthreads();
    sum += stage[THREADS - 1 - threadIdx.x];
    if (!BUG) __syncthreads();
  }
  atomicAdd(out, sum);
}
TEST(a_missing_barrier_between_reads_and_the_next_write_is_found) {
  expect("missing __syncthreads before memory is used again", staged_sum<false>, staged_sum<true>, "the result is");
}

template <bool BUG> void ticket_sum(const float* in, float* out, float* partial, unsigned* tickets) {
  const int per_block = N / gridDim.x, from = blockIdx.x * per_block;
  float sum = 0;
  for (int i = threadIdx.x; i < per_block; i += 32) sum += in[from + i];
  sum = warp_sum(sum);
  unsigned ticket = 0;
  if (threadIdx.x == 0) {
    __stcg(partial + blockIdx.x, sum);
    if (!BUG) __threadfence();
    ticket = atomicInc(tickets, gridDim.x - 1);
    __threadfence();
    if (ticket == gridDim.x - 1) {
      float all = 0;
      for (unsigned i = 0; i < gridDim.x; i++) all += __ldcg(partial + i);
      out[0] = all;
    }
  }
}
TEST(a_missing_fence_before_a_ticket_is_found) {
  expect("missing __threadfence before the ticket", ticket_sum<false>, ticket_sum<true>, "the result is", {8, 32});
}

// All threads store, a barrier, one thread fences for all: enough without the bug, too early with it.
template <bool BUG> void fence_after_barrier(const float* in, float* out, float* partial, unsigned* tickets) {
  if (threadIdx.x < 8) __stcg(partial + blockIdx.x * 8 + threadIdx.x, in[blockIdx.x * 8 + threadIdx.x]);
  if (BUG && threadIdx.x == 0) __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (!BUG) __threadfence();
  if (atomicInc(tickets, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  float all = 0;
  for (unsigned i = 0; i < 8 * gridDim.x; i++) all += __ldcg(partial + i);
  out[0] = all + (expected_sum() - 64 * 65 / 2);
}
TEST(a_fence_covers_what_a_barrier_put_before_it_and_no_more) {
  expect("__threadfence before the barrier", fence_after_barrier<false>, fence_after_barrier<true>, "the result is", {8, 64});
}

template <bool BUG> void masked_shuffle(const float* in, float* out, float*, unsigned*) {
  float sum = 0;
  for (int i = threadIdx.x; i < N; i += 32) sum += in[i];
  for (int bits = 16; bits; bits /= 2) sum += __shfl_xor_sync(BUG ? 0x0000ffff : 0xffffffff, sum, bits);
  if (threadIdx.x == 0) out[0] = sum;
}
TEST(a_shuffle_with_a_mask_that_lacks_its_caller_is_found) {
  expect("wrong shuffle mask", masked_shuffle<false>, masked_shuffle<true>, "mask", {1, 32});
}

template <bool BUG> void shuffle_of_half(const float* in, float* out, float*, unsigned*) {
  float sum = 0;
  for (int i = threadIdx.x; i < N; i += 32) sum += in[i];
  sum += __shfl_down_sync(0xffffffff, sum, 16);
  if (threadIdx.x < 16)
    for (int by = 8; by; by /= 2) sum += __shfl_down_sync(BUG ? 0xffffffff : 0x0000ffff, sum, by, 16);
  if (threadIdx.x == 0) out[0] = sum;
  __syncwarp();
}
TEST(a_shuffle_that_half_a_warp_does_not_reach_is_found) {
  expect("shuffle in a branch, with the mask of all", shuffle_of_half<false>, shuffle_of_half<true>, "different operations", {1, 32});
}

template <bool BUG> void shuffle_after_exit(const float* in, float* out, float*, unsigned*) {
  float sum = 0;
  for (int i = threadIdx.x; i < N; i += 32) sum += in[i];
  if (BUG && threadIdx.x >= 30) return;
  sum = warp_sum(sum);
  if (threadIdx.x == 0) out[0] = sum;
}
TEST(a_shuffle_that_names_lanes_which_have_ended_is_found) {
  expect("lanes that ended", shuffle_after_exit<false>, shuffle_after_exit<true>, "never come", {1, 32});
}

// Double-buffered copies. Bugs: 1 waits for one group too few, 2 waits after the barrier, 3 refills a buffer that others still read.
template <int BUG> void pipelined_sum(const float* in, float* out, float*, unsigned*) {
  constexpr int STAGE = 128, STAGES = N / STAGE;
  DYNAMIC_SHARED(float, stages);
  const int thread = threadIdx.x;
  const auto load = [&](int stage) {
    if (thread < STAGE / 4) ptx::copy_async_16(stages + stage % 2 * STAGE + 4 * thread, in + stage * STAGE + 4 * thread);
    ptx::copy_async_commit();
  };
  float sum = 0;
  load(0);
  for (int stage = 0; stage < STAGES; stage++) {
    if (stage + 1 < STAGES) {
      load(stage + 1);
      if (BUG == 0 || BUG == 3) ptx::copy_async_wait<1>();
      if (BUG == 1) ptx::copy_async_wait<2>();
    } else if (BUG != 2) {
      ptx::copy_async_wait<0>();
    }
    __syncthreads();
    if (BUG == 2) ptx::copy_async_wait<0>();
    sum += stages[stage % 2 * STAGE + (thread + 64) % STAGE];
    if (BUG != 3) __syncthreads();
  }
  ptx::copy_async_wait<0>();
  atomicAdd(out, sum);
}
TEST(a_wait_for_too_few_copies_is_found) {
  expect("cp.async waits for one group too few", pipelined_sum<0>, pipelined_sum<1>, "nan", {1, THREADS, 1024});
}
TEST(a_wait_for_copies_after_the_barrier_is_found) {
  expect("cp.async waits after the barrier", pipelined_sum<0>, pipelined_sum<2>, "nan", {1, THREADS, 1024});
}
TEST(a_copy_into_memory_that_is_still_read_is_found) {
  expect("cp.async into a buffer in use", pipelined_sum<0>, pipelined_sum<3>, "the result is", {1, THREADS, 1024});
}

template <bool BUG> void barrier_in_a_branch(const float* in, float* out, float*, unsigned*) {
  float sum = 0;
  for (int i = threadIdx.x; i < N; i += THREADS) sum += in[i];
  if (BUG && threadIdx.x < 64) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  atomicAdd(out, sum);
}
TEST(different_barriers_in_branches_are_found) {
  expect("__syncthreads in both branches", barrier_in_a_branch<false>, barrier_in_a_branch<true>, "different barriers");
}

template <bool BUG> void wait_for_block(const float* in, float* out, float* partial, unsigned* ready) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < N; i++) sum += in[i];
    __stcg(partial, sum);
    if (!BUG) ptx::add_release(ready, 1);
    if (BUG) atomicAdd(ready, 1);
  } else {
    while (ptx::load_acquire(ready) == 0) {
    }
    out[0] = __ldcg(partial);
  }
}
TEST(a_flag_without_release_is_found) {
  sim::Launch launch{2, 32};
  launch.cooperative = true;
  expect("a flag that releases nothing", wait_for_block<false>, wait_for_block<true>, "the result is", launch);
}
TEST(waiting_for_a_block_that_is_not_on_the_machine_is_found) {
  const auto schedules = found(wait_for_block<false>, {2, 32});
  CHECK(!schedules.empty(), "the greedy schedules run one block at a time");
}

template <bool BUG> void misaligned_rows(const float*, float* out, float*, unsigned*) {
  SHARED(__half, rows, 16 * 24 + 4);
  for (int i = threadIdx.x; i < 16 * 24 + 4; i += 32) rows[i] = __float2half(1.0f);
  __syncwarp();
  uint32_t fragment[4];
  ptx::ldmatrix_x4(fragment, rows + threadIdx.x % 16 * (BUG ? 20 : 24) + threadIdx.x / 16 * 8);
  if (threadIdx.x == 0) out[0] = fragment[3] == 0x3c003c00 ? expected_sum() : 0;
}
TEST(a_row_of_ldmatrix_that_is_not_aligned_is_found) {
  expect("ldmatrix off its alignment", misaligned_rows<false>, misaligned_rows<true>, "aligned", {1, 32});
}

void copies_left_behind(const float* in, float*, float*, unsigned*) {
  SHARED(float, to, 4);
  ptx::copy_async_16(to, in);
}
TEST(a_thread_that_ends_before_its_copies_is_found) {
  std::string why;
  CHECK(found(copies_left_behind, {1, 1}, &why).size() == 8, why);
  CHECK(why.find("asynchronous copies under way") != std::string::npos, why);
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
