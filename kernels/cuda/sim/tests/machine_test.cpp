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

// Codes 0 to 126 of e4m3 in units of 2^-9; 127 is not a number, and 128 more is the negative.
const int E4M3[127] = {
      0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 52, 56, 60, 64,
      72, 80, 88, 96, 104, 112, 120, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416, 448, 480, 512, 576,
      640, 704, 768, 832, 896, 960, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048, 2304, 2560, 2816, 3072, 3328, 3584,
      3840, 4096, 4608, 5120, 5632, 6144, 6656, 7168, 7680, 8192, 9216, 10240, 11264, 12288, 13312, 14336, 15360, 16384, 18432,
      20480, 22528, 24576, 26624, 28672, 30720, 32768, 36864, 40960, 45056, 49152, 53248, 57344, 61440, 65536, 73728, 81920,
      90112, 98304, 106496, 114688, 122880, 131072, 147456, 163840, 180224, 196608, 212992, 229376,
};

TEST(e4m3_rounds_to_the_nearest_of_its_table) {
  const auto code = [](float x) { return int(__nv_fp8_e4m3(x).__x); };
  for (int c = 0; c < 127; c++) {
    const float x = std::ldexp(float(E4M3[c]), -9);
    __nv_fp8_e4m3 positive, negative;
    positive.__x = uint8_t(c), negative.__x = uint8_t(c + 128);
    CHECK(float(positive) == x && float(negative) == -x && std::signbit(float(negative)), "code " + std::to_string(c));
    CHECK(code(x) == c && code(-x) == c + 128, "code " + std::to_string(c));
    if (c == 126) break;
    const float middle = std::ldexp(float(E4M3[c] + E4M3[c + 1]), -10);
    CHECK(code(middle) == c + c % 2, "a tie goes to the even neighbour of " + std::to_string(c));
    CHECK(code(std::nextafter(middle, 0.0f)) == c && code(std::nextafter(middle, 1e9f)) == c + 1, "beside a tie");
    CHECK(code(-middle) == 128 + c + c % 2, "and of the negative");
  }
  for (float x : {448.1f, 464.0f, 465.0f, 1e30f, INFINITY}) CHECK(code(x) == 126 && code(-x) == 254, "saturates");
  CHECK(code(NAN) % 128 == 127, "not a number");
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
