// The check for races (races.h): seeded_races.cu's right kernels are clean in all eight schedules, the wrong ones are found in
// schedule 0 alone. Only with -DSIM_RACES.
#include "check.h"

namespace {

constexpr int N = 512;

// Runs a kernel of seeded_races.cu; the fault's text, or what is wrong with the sum, or nothing.
std::string run(const std::string& kernel, const sim::Launch& launch, const sim::Schedule& schedule) {
  std::vector<float> in(N), out(1, 0.0f), work(1024, 0.0f);
  for (int i = 0; i < N; i++) in[i] = float(i + 1);
  unsigned counters[1] = {};
  const float* from = in.data();
  float *to = out.data(), *between = work.data();
  unsigned* counter = counters;
  void* arguments[] = {&from, &to, &between, &counter};
  sim::races::constants(1);
  try {
    sim::run(kernel, launch, schedule, arguments);
  } catch (const sim::Fault& fault) {
    return fault.what();
  }
  return out[0] == N * (N + 1) / 2 ? "" : "the result is " + std::to_string(out[0]);
}

// `memory`, `one` and `other`: what the message must say of the place and of both accesses.
void expect(const std::string& kernel, const sim::Launch& launch, const char* memory, const char* one, const char* other) {
  check::for_each_schedule([&](const sim::Schedule& schedule) {
    const std::string said = run(kernel + "_right", launch, schedule);
    CHECK(said.empty(), kernel + " under " + schedule.name() + ": " + said);
  });
  const std::string said = run(kernel + "_wrong", launch, {});
  for (const char* part : {"race at ", memory, one, other}) CHECK(said.find(part) != std::string::npos, part + (": " + said));
  std::printf("  %s\n", said.substr(0, said.find('\n')).c_str());
}

const sim::Launch ONE_WARP{1, 32}, ONE_BLOCK{1, 128}, WITH_BUFFERS{1, 128, 1024}, BLOCKS{8, 64};

TEST(a_missing_barrier_between_a_write_and_its_reads_is_found) {
  expect("sum_of_warps", ONE_BLOCK, "shared memory of_warps", "a write by block (0, 0, 0) thread ", "and a read (before any barrier)");
}
TEST(a_tile_written_while_another_warp_reads_the_one_before_is_found) {
  expect("tiles", ONE_BLOCK, "shared memory tile", "after barrier 1, __syncthreads (seeded_races.cu:", "with nothing to order them");
}
TEST(a_read_of_what_the_kernel_before_may_write_is_found_where_it_comes_before_the_wait) {
  check::for_each_schedule([&](const sim::Schedule& schedule) { CHECK(run("early_right", ONE_BLOCK, schedule).empty(), schedule.name()); });
  const std::string said = run("early_wrong", ONE_BLOCK, {});
  CHECK(said.find("reads at argument 3 before it waits for the kernel before") != std::string::npos, said);
}
TEST(a_shuffle_does_not_order_memory) {
  expect("lanes", ONE_WARP, "shared memory exchange", "a write", "a read");
}
TEST(a_missing_fence_before_a_ticket_is_found) {
  expect("fence_before_ticket", BLOCKS, "argument 2 + ", "a write by block (", "and a read (after barrier 2");
}
TEST(a_fence_does_not_cover_what_a_later_barrier_puts_before_the_ticket) {
  expect("fence_before_barrier", BLOCKS, "argument 2 + ", "a write", "a read");
}
TEST(a_missing_fence_after_a_ticket_is_found) {
  expect("fence_after_ticket", BLOCKS, "argument 2 + ", "a write", "a read");
}
TEST(a_flag_that_releases_nothing_is_found) {
  sim::Launch launch{2, 32};
  launch.cooperative = true;
  expect("flag", launch, "argument 2 + 0 bytes", "a write by block (0, 0, 0) thread 0", "a read");
}
TEST(a_wait_for_too_few_copies_is_found) {
  expect("copy_wait_count", WITH_BUFFERS, "dynamic shared memory", "an asynchronous copy", "not waited for");
}
TEST(a_wait_for_copies_after_the_barrier_is_found) {
  expect("copy_wait_order", WITH_BUFFERS, "dynamic shared memory", "an asynchronous copy", "not waited for");
}
TEST(a_copy_into_memory_that_is_still_read_is_found) {
  expect("copy_refill", WITH_BUFFERS, "dynamic shared memory", "a read", "and an asynchronous copy (after barrier");
}
const sim::Launch WITH_RING{1, 160, 2 * 512 + 32}, WITH_MATRIX{1, 128, 256};
TEST(a_bulk_copy_that_is_read_too_early_is_found) {
  expect("bulk_wait", WITH_RING, "dynamic shared memory", "an asynchronous copy by block (0, 0, 0) thread 128", "not waited for");
}
TEST(a_bulk_copy_into_memory_that_is_still_read_is_found) {
  expect("bulk_refill", WITH_RING, "dynamic shared memory", "a read", "an asynchronous copy (after barrier 1");
}
TEST(a_write_that_wgmma_reads_without_a_fence_of_the_writer_is_found) {
  expect("matrix_fence", WITH_MATRIX, "dynamic shared memory", "a write by thread ", "not fenced by fence_proxy_async");
}
TEST(a_write_to_a_matrix_that_wgmma_still_reads_is_found) {
  expect("matrix_reuse", WITH_MATRIX, "dynamic shared memory", "a read", "and a write");
}
TEST(writes_to_the_same_bytes_race_and_writes_to_their_neighbours_do_not) {
  expect("halves", ONE_BLOCK, "shared memory small", "a write", "and a write");
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
