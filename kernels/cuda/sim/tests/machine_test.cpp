// The simulator itself: that what it models is what CUDA's and PTX's manuals say.
#include "../../cuda.cuh"
#include "check.h"

#include <set>

namespace {

TEST(conversions_to_narrow_types_and_back_keep_every_value) {
  for (unsigned bits = 0; bits < 1 << 16; bits++) {
    const __half half{uint16_t(bits)};
    const float value = __half2float(half);
    CHECK(std::isnan(value) || __float2half(value).bits == bits, "float16 " + std::to_string(bits));
    const __nv_bfloat16 brain{uint16_t(bits)};
    const float wide = __bfloat162float(brain);
    CHECK(std::isnan(wide) || __float2bfloat16(wide).bits == bits, "bfloat16 " + std::to_string(bits));
  }
  for (unsigned bits = 0; bits < 256; bits++) {
    __nv_fp8_e4m3 byte;
    byte.__x = uint8_t(bits);
    CHECK(std::isnan(float(byte)) || __nv_fp8_e4m3(float(byte)).__x == bits, "e4m3 " + std::to_string(bits));
  }
}

TEST(conversions_round_to_nearest_even) {
  CHECK(__float2half(1.0f + 0x1p-11f).bits == 0x3c00, "a tie goes to the even neighbour");
  CHECK(__float2half(1.0f + 3 * 0x1p-11f).bits == 0x3c02, "a tie goes to the even neighbour");
  CHECK(__float2half(65519.0f).bits == 0x7bff && __float2half(65520.0f).bits == 0x7c00, "overflow");
  CHECK(__float2half(0x1p-25f).bits == 0 && __float2half(0x1.8p-25f).bits == 1, "subnormal numbers");
  CHECK(__float2bfloat16(1.0f + 0x1p-8f).bits == 0x3f80 && __float2bfloat16(1.0f + 3 * 0x1p-8f).bits == 0x3f82, "ties");
  CHECK(float(__nv_fp8_e4m3(1e9f)) == 448.0f && float(__nv_fp8_e4m3(-1e9f)) == -448.0f, "e4m3 saturates");
  CHECK(float(__nv_fp8_e4m3(1.0625f)) == 1.0f && float(__nv_fp8_e4m3(1.1875f)) == 1.25f, "ties");
}

TEST(every_thread_of_every_block_runs_once) {
  check::for_each_schedule([](const sim::Schedule& schedule) {
    const dim3 grid(3, 2, 2), block(5, 4, 2);
    std::vector<int> runs(grid.count() * block.count());
    sim::run({grid, block}, schedule, [&] {
      const unsigned in_grid = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      const unsigned in_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      runs[in_grid * block.count() + in_block]++;
    });
    for (int count : runs) CHECK(count == 1, schedule.name());
  });
}

TEST(schedules_differ_in_the_order_of_blocks_and_warps) {
  std::set<std::vector<unsigned>> orders;
  check::for_each_schedule([&](const sim::Schedule& schedule) {
    std::vector<unsigned> order;
    sim::run({6, 96}, schedule, [&] {
      __syncthreads();
      if (threadIdx.x % 32 == 0) order.push_back(blockIdx.x * 3 + threadIdx.x / 32);
    });
    orders.insert(order);
  });
  CHECK(orders.size() == 4, std::to_string(orders.size()) + " of four orders");
}

TEST(shuffles_and_votes_do_what_the_manual_says) {
  check::for_each_schedule([](const sim::Schedule& schedule) {
    sim::run({1, 64}, schedule, [&] {
      const int lane = threadIdx.x % 32;
      CHECK(__shfl_sync(0xffffffff, lane * 3, 7) == 21, "broadcast");
      CHECK(__shfl_sync(0xffffffff, lane, 2, 8) == lane / 8 * 8 + 2, "broadcast in segments of eight");
      CHECK(__shfl_up_sync(0xffffffff, lane, 3) == (lane < 3 ? lane : lane - 3), "up");
      CHECK(__shfl_down_sync(0xffffffff, lane, 3, 16) == (lane % 16 + 3 > 15 ? lane : lane + 3), "down in segments");
      CHECK(__shfl_xor_sync(0xffffffff, double(lane), 5) == (lane ^ 5), "64 bits");
      CHECK(__ballot_sync(0xffffffff, lane % 3 == 0) == 0x49249249, "ballot");
      CHECK(__any_sync(0xffffffff, lane == 31) && !__all_sync(0xffffffff, lane != 31), "any and all");
      if (lane % 2) CHECK(__shfl_xor_sync(0xaaaaaaaa, lane, 2) == (lane ^ 2), "odd lanes alone");
      CHECK(__syncthreads_count(lane < 5) == 10, "count");
      CHECK(__syncthreads_or(threadIdx.x == 63) && !__syncthreads_and(threadIdx.x != 63), "or and and");
    });
  });
}

TEST(atomic_operations_return_what_was_there) {
  check::for_each_schedule([](const sim::Schedule& schedule) {
    unsigned sum = 0, largest = 0, wraps = 0;
    std::vector<int> seen(256);
    sim::run({4, 64}, schedule, [&] {
      seen[atomicAdd(&sum, 1u)]++;
      atomicMax(&largest, blockIdx.x * 100 + threadIdx.x);
      atomicInc(&wraps, 127);
    });
    CHECK(sum == 256 && largest == 363 && wraps == 0, schedule.name());
    for (int times : seen) CHECK(times == 1, "every value is returned once");
  });
}

TEST(shared_memory_is_the_blocks_own_and_begins_as_not_a_number) {
  check::for_each_schedule([](const sim::Schedule& schedule) {
    sim::Launch launch{8, 64};
    launch.dynamic_shared = 256;
    sim::run(launch, schedule, [&] {
      SHARED(float, fixed, 64);
      DYNAMIC_SHARED(float, given);
      CHECK(std::isnan(fixed[threadIdx.x]) && std::isnan(given[threadIdx.x]), "poison");
      __syncthreads();
      fixed[threadIdx.x] = given[threadIdx.x] = float(blockIdx.x);
      __syncthreads();
      CHECK(fixed[63 - threadIdx.x] == blockIdx.x && given[63 - threadIdx.x] == blockIdx.x, "of this block");
    });
  });
}

TEST(stores_for_the_grid_wait_for_a_fence_and_the_thread_itself_sees_them) {
  for (int number : {0, 4}) {
    int memory = 1;
    sim::run({1, 1}, sim::Schedule::numbered(number), [&] {
      __stcg(&memory, 2);
      CHECK(__ldcg(&memory) == 2, "its own store");
      CHECK(memory == (number == 0 ? 1 : 2), "late, early");
      __threadfence();
      CHECK(memory == 2, "after the fence");
    });
  }
}

// D = A B + C through ldmatrix and mma, B given as 8 rows of 16 and, transposed, as 16 rows of 8.
TEST(mma_multiplies_matrices_that_ldmatrix_loads) {
  check::for_each_schedule([](const sim::Schedule& schedule) {
    check::Random random(5);
    float a[16][16], b[16][8], c[16][8];
    for (auto& row : a) for (float& x : row) x = float(int(random.uniform() * 8));
    for (auto& row : b) for (float& x : row) x = float(int(random.uniform() * 8));
    for (auto& row : c) for (float& x : row) x = float(int(random.uniform() * 8));
    float d[2][16][8];
    sim::run({1, 32}, schedule, [&] {
      SHARED(__nv_bfloat16, rows_of_a, 256);
      SHARED(__nv_bfloat16, columns_of_b, 128);
      SHARED(__nv_bfloat16, rows_of_b, 128);
      const int lane = threadIdx.x;
      for (int i = lane; i < 256; i += 32) rows_of_a[i] = __float2bfloat16(a[i / 16][i % 16]);
      for (int i = lane; i < 128; i += 32) {
        columns_of_b[i] = __float2bfloat16(b[i % 16][i / 16]);
        rows_of_b[i] = __float2bfloat16(b[i / 8][i % 8]);
      }
      __syncwarp();
      uint32_t fragment_a[4], fragment_b[4], transposed_b[4];
      ptx::ldmatrix_x4(fragment_a, rows_of_a + lane % 16 * 16 + lane / 16 * 8);
      ptx::ldmatrix_x4(fragment_b, columns_of_b + lane % 8 * 16 + lane / 8 % 2 * 8);
      ptx::ldmatrix_x4_transposed(transposed_b, rows_of_b + lane % 16 * 8);
      const int row = lane / 4, column = lane % 4 * 2;
      for (int way = 0; way < 2; way++) {
        float sum[4] = {c[row][column], c[row][column + 1], c[row + 8][column], c[row + 8][column + 1]};
        const uint32_t(&from)[4] = way ? transposed_b : fragment_b;
        ptx::mma_m16n8k16_bf16(sum, fragment_a, {from[0], from[1]});
        for (int i = 0; i < 4; i++) d[way][row + i / 2 * 8][column + i % 2] = sum[i];
      }
    });
    for (int row = 0; row < 16; row++)
      for (int column = 0; column < 8; column++) {
        float expected = c[row][column];
        for (int k = 0; k < 16; k++) expected += a[row][k] * b[k][column];
        CHECK(d[0][row][column] == expected && d[1][row][column] == expected, schedule.name());
      }
  });
}

__global__ void scale(const float* x, float* out, int count, float factor, unsigned long long offset) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < unsigned(count)) out[at] = x[at] * factor + float(offset);
}
EXPORT_KERNEL(scale)

TEST(kernels_are_found_by_name_and_take_their_arguments_as_cuLaunchKernel_does) {
  std::vector<float> x(100, 2.0f), out(100);
  const float* from = x.data();
  float *to = out.data(), factor = 3.0f;
  int count = 100;
  unsigned long long offset = 1;
  void* arguments[] = {&from, &to, &count, &factor, &offset};
  sim::run("scale", {4, 32}, {}, arguments);
  for (float y : out) CHECK(y == 7.0f, "2 * 3 + 1");
  CHECK(sim::kernels()["scale"].signature == "ppifU", sim::kernels()["scale"].signature);
  bool refused = false;
  try {
    sim::run("absent", {1, 1}, {}, arguments);
  } catch (const sim::Fault&) {
    refused = true;
  }
  CHECK(refused, "an unknown name");
}

TEST(launches_that_CUDA_refuses_are_refused) {
  for (const sim::Launch& launch : {sim::Launch{1, 1025}, sim::Launch{1, 0}, sim::Launch{0, 32}, sim::Launch{dim3(1, 65536), 32},
                                    sim::Launch{1, 32, 228 << 10}}) {
    bool refused = false;
    try {
      sim::run(launch, {}, [] {});
    } catch (const sim::Fault&) {
      refused = true;
    }
    CHECK(refused, std::to_string(launch.block.count()));
  }
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
