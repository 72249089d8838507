// gemm_wgmma.cu against float64 on what the product sees (x rounded to bf16): rows, outputs and columns that fill no tile, parts of a
// matrix, and bits that depend on no schedule, no other row, no number of rows, and not on how runs of k are spread over blocks.
#include "launch.h"
#include "../types.h"

using namespace check;

namespace {

constexpr int SEGMENTS = 4;

struct Kernel {
  int rows, groups, stages;
  std::string name() const { return "gemm_wgmma_bf16_" + std::to_string(rows); }
  unsigned shared() const { return unsigned(stages * (128 * rows + 8192 * groups + 16)); }
};
const Kernel KERNELS[] = {{16, 2, 6}, {32, 2, 5}, {64, 2, 8}, {128, 2, 6}};

// A matrix [n, cols] of bf16 in tiles: lane l of a tile has, in this order, (output l / 4, k 2 (l % 4)), the next k, the same of output
// l / 4 + 8, then both again with k + 8.
struct Tiles {
  int n, cols;
  std::vector<uint16_t> plain, tiles;

  Tiles(Random& random, int n, int cols) : n(n), cols(cols), plain(size_t(n) * cols) {
    const size_t across = divided_up(cols, 16);
    tiles.assign(divided_up(n, 16) * across * 256, 0);
    for (auto& element : plain) element = __float2bfloat16(random.uniform()).bits;
    for (size_t tile = 0; tile < tiles.size() / 256; tile++)
      for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 8; i++) {
          const size_t output = tile / across * 16 + lane / 4 + i / 2 % 2 * 8, k = tile % across * 16 + lane % 4 * 2 + i % 2 + i / 4 * 8;
          if (output < size_t(n) && k < size_t(cols)) tiles[tile * 256 + lane * 8 + i] = plain[output * cols + k];
        }
  }
  float at(int output, int k) const { return __bfloat162float({plain[size_t(output) * cols + k]}); }
};

struct Options {
  const Row* bias = nullptr;
  bool split = false;
  int stride = 0, first = 0;  // among the outputs of other parts
};

Row products(const Kernel& kernel, const Row& x, const Tiles& w, const sim::Schedule& schedule, const Options& options = {}) {
  const int rows = int(x.size()) / w.cols, stride = options.stride ? options.stride : w.n;
  const dim3 grid(divided_up(w.n, 64 * kernel.groups), divided_up(rows, kernel.rows), options.split ? SEGMENTS : 1);
  Row out(size_t(rows) * stride, NOT_A_NUMBER), partial(options.split ? grid.count() * 64 * kernel.groups * kernel.rows : 0, NOT_A_NUMBER);
  std::vector<unsigned> tickets(grid.x * grid.y, 0);
  launch(kernel.name().c_str(), {grid, 128 * unsigned(kernel.groups + 1), kernel.shared()}, schedule, x.data(), w.tiles.data(),
         options.bias ? options.bias->data() : nullptr, out.data() + options.first, partial.data(), tickets.data(), rows, w.n, w.cols,
         stride);
  for (unsigned ticket : tickets) CHECK(ticket == 0, "ready for the next launch");
  return out;
}

void compare_products(const Row& out, const Row& x, const Tiles& w, const Row* bias, const std::string& what) {
  for (size_t row = 0; row * w.cols < x.size(); row++)
    for (int output = 0; output < w.n; output++) {
      double sum = bias ? (*bias)[output] : 0, magnitude = std::fabs(sum);
      for (int k = 0; k < w.cols; k++) {
        const double product = double(__bfloat162float(__float2bfloat16(x[row * w.cols + k]))) * w.at(output, k);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double error = std::fabs(out[row * w.n + output] - sum);
      if (error <= 1e-6 * magnitude + 1e-30) continue;
      CHECK(error <= 1e-6 * magnitude, what + ", row " + std::to_string(row) + ", output " + std::to_string(output) + ": " +
                                           std::to_string(out[row * w.n + output]) + " instead of " + std::to_string(sum));
      return;
    }
}

std::string describe(const Kernel& kernel, int rows, int n, int cols) {
  return kernel.name() + ", " + std::to_string(rows) + " rows, " + std::to_string(n) + " x " + std::to_string(cols);
}

TEST(products_agree_with_float64) {
  Random random(1);
  int number = 0;
  struct Shape {
    int rows, n, cols;
  };
  // A ring of eight stages goes round from 513 columns on.
  for (auto [rows, n, cols] : std::vector<Shape>{{16, 64, 64}, {1, 16, 16}, {5, 3, 1}, {17, 70, 96}, {3, 130, 200}, {9, 33, 645}})
    for (const Kernel& kernel : KERNELS) {
      if (quick && kernel.rows > 32 && cols > 200) continue;
      const Tiles w(random, n, cols);
      const Row x = uniform(random, size_t(rows) * cols), bias = uniform(random, n);
      Options options;
      if (number % 2) options.bias = &bias;
      compare_products(products(kernel, x, w, sim::Schedule::numbered(number % 8), options), x, w, options.bias,
                       describe(kernel, rows, n, cols));
      number++;
    }
  for (const Kernel& kernel : KERNELS) {  // every row of a tile, and a second tile of rows
    if (quick && kernel.rows > 32) continue;
    const int rows = kernel.rows + 1;
    const Tiles w(random, 40, 72);
    const Row x = uniform(random, size_t(rows) * 72);
    compare_products(products(kernel, x, w, sim::Schedule::numbered(number++ % 8)), x, w, nullptr, describe(kernel, rows, 40, 72));
  }
}

TEST(runs_of_k_have_the_same_bits_in_one_block_and_in_four) {
  Random random(2);
  int number = 0;
  for (const Kernel& kernel : KERNELS) {
    if (quick && kernel.rows > 16) continue;
    const int cols = 1100, rows = 5;
    const Tiles w(random, 21, cols);
    const Row x = uniform(random, rows * cols), bias = uniform(random, 21);
    Options options;
    options.bias = &bias;
    const Row whole = products(kernel, x, w, sim::Schedule::numbered(number++ % 8), options);
    compare_products(whole, x, w, &bias, describe(kernel, rows, 21, cols));
    options.split = true;
    for (int of = 0; of < 8; of++) {
      if (quick ? of % 4 != 2 : kernel.rows > 32 && of % 4 != number % 4) continue;
      CHECK(same_bits(products(kernel, x, w, sim::Schedule::numbered(of), options), whole), kernel.name() + " split");
    }
  }
}

TEST(rows_have_the_bits_they_have_alone_in_every_kernel_and_schedule) {
  Random random(3);
  const int cols = 640, n = 20, rows = 18;
  const Tiles w(random, n, cols);
  const Row x = uniform(random, rows * cols), together = products(KERNELS[1], x, w, {});
  for (int row : {0, 7, 17})
    CHECK(same_bits(products(KERNELS[0], part(x, row * cols, cols), w, {}), part(together, row * n, n)), "alone");
  for (const Kernel& kernel : KERNELS) {
    if (quick && kernel.rows > 16) continue;
    for_each_schedule([&](const sim::Schedule& schedule) {
      if (kernel.rows > 32 && schedule.order != sim::Order::Random && schedule.order != sim::Order::Forward) return;
      CHECK(same_bits(products(kernel, x, w, schedule), together), kernel.name() + ", " + schedule.name());
    });
  }
}

TEST(a_part_of_a_matrix_writes_its_own_outputs) {
  Random random(4);
  const Tiles w(random, 20, 64);
  const Row x = uniform(random, 3 * 64), alone = products(KERNELS[0], x, w, {});
  Options options;
  options.stride = 50, options.first = 7;
  const Row among = products(KERNELS[0], x, w, {}, options);
  for (int row = 0; row < 3; row++)
    for (int output = 0; output < 50; output++) {
      const float value = among[row * 50 + output];
      const bool mine = output >= 7 && output < 27;
      CHECK(mine ? value == alone[row * 20 + output - 7] : std::isnan(value), "output " + std::to_string(output));
    }
}

TEST(not_a_number_stays_in_its_row) {
  Random random(5);
  const Tiles w(random, 18, 50);
  for (float bad : {NOT_A_NUMBER, INF}) {
    Row x = uniform(random, 6 * 50);
    const Row before = products(KERNELS[0], x, w, {});
    x[2 * 50 + 49] = bad;
    const Row out = products(KERNELS[0], x, w, {});
    for (int row = 0; row < 6; row++)
      for (int output = 0; output < 18; output++) {
        const size_t at = row * 18 + output;
        CHECK(row == 2 ? !std::isfinite(out[at]) : out[at] == before[at], "row " + std::to_string(row));
      }
  }
}

}  // namespace

int main(int count, char** arguments) { return run_all(count, arguments); }
