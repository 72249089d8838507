// gemv.cu. Alone against float64: every weight type that is left in rows, outputs and rows that are no multiple of a tile, parts of a
// matrix, and bits that depend on no schedule and no other row. Joined bit for bit against the kernels that it joins: rms_norm, itself
// alone, add and silu_mul.
#include "weights.h"

using namespace check;

namespace {

constexpr float EPS = 1e-5f;
enum { STORE = 0, ADD = 1, SILU_MUL = 2 };

Row rms_norm(const Row& x, const Row& weight) {
  const int cols = int(weight.size());
  Row out(x.size(), NOT_A_NUMBER);
  launch("rms_norm", {unsigned(x.size()) / cols, 256}, {}, x.data(), weight.data(), out.data(), cols, EPS);
  return out;
}

struct Joined {
  const Row *norm_weight = nullptr, *bias = nullptr;
  const Matrix* up = nullptr;
  int epilogue = STORE;
};

// The kernel, into [rows, stride] from `first` on.
void multiply_joined(const Row& x, const Matrix& matrix, const Joined& joined, Row& out, int stride, int first,
                     const sim::Schedule& schedule) {
  const int rows = int(x.size()) / matrix.cols, of_block = joined.epilogue == SILU_MUL ? 8 : 16;
  launch((std::string("gemv_") + matrix.type.name).c_str(),
         {dim3(divided_up(matrix.rows, of_block), divided_up(rows, 4)), 256}, schedule, x.data(),
         joined.norm_weight ? joined.norm_weight->data() : nullptr, matrix.bytes.data(),
         joined.up ? joined.up->bytes.data() : nullptr, joined.bias ? joined.bias->data() : nullptr, out.data() + first, rows,
         matrix.rows, matrix.cols, stride, EPS, joined.epilogue);
}

// The product alone.
void multiply(const Row& x, const Matrix& matrix, const Row* bias, Row& out, int stride, int first,
              const sim::Schedule& schedule = {}) {
  multiply_joined(x, matrix, {nullptr, bias, nullptr, STORE}, out, stride, first, schedule);
}

// The same by one kernel after the other.
void multiply_apart(const Row& x, const Matrix& matrix, const Joined& joined, Row& out, int stride, int first) {
  const int rows = int(x.size()) / matrix.cols, n = matrix.rows;
  const Row of_x = joined.norm_weight ? rms_norm(x, *joined.norm_weight) : x;
  Row products(size_t(rows) * 2 * n, NOT_A_NUMBER), results(size_t(rows) * n, 0.0f);
  if (joined.epilogue == SILU_MUL) {
    multiply(of_x, matrix, nullptr, products, 2 * n, 0);
    multiply(of_x, *joined.up, nullptr, products, 2 * n, n);
    launch("silu_mul", {dim3(divided_up(n, 256), rows), 256}, {}, products.data(), results.data(), n);
  } else {
    multiply(of_x, matrix, joined.bias, results, n, 0);
  }
  for (int row = 0; row < rows; row++) {
    if (joined.epilogue == ADD) {
      launch("add", {dim3(divided_up(n, 256), 1), 256}, {}, out.data() + row * stride + first, results.data() + row * n, n);
    } else {
      std::copy_n(results.begin() + row * n, n, out.begin() + row * stride + first);
    }
  }
}

const char* name_of(int epilogue) { return epilogue == STORE ? "store" : epilogue == ADD ? "add" : "silu_mul"; }

// Compares both, the outputs among others that stay as they were.
void compare_both(Random& random, const Row& x, const Matrix& matrix, const Joined& joined, const sim::Schedule& schedule) {
  const int rows = int(x.size()) / matrix.cols, first = rows % 3, stride = matrix.rows + first + rows % 2;
  Row apart = uniform(random, size_t(rows) * stride, 2), together(apart);
  multiply_apart(x, matrix, joined, apart, stride, first);
  multiply_joined(x, matrix, joined, together, stride, first, schedule);
  CHECK(same_bits(together, apart), std::string(matrix.type.name) + ", " + std::to_string(rows) + " rows, " +
                                        std::to_string(matrix.rows) + " outputs of " + std::to_string(matrix.cols) + ", " +
                                        name_of(joined.epilogue) + (joined.norm_weight ? ", norm" : "") +
                                        (joined.bias ? ", bias" : "") + " under " + schedule.name());
}

TEST(every_type_has_the_bits_of_the_kernels_that_are_joined) {
  Random random(1);
  int number = 0;
  for (const WeightType& type : row_types()) {
    struct Shape {
      int rows, outputs, cols;
    };
    // The last two have several tiles of shared memory: of four rows, and of one.
    std::vector<Shape> shapes = {{1, 16, 256}, {4, 37, 512}, {5, 9, 768}, {2, 11, 2048}, {1, 10, 6400}};
    if (type.block_len == 1)
      shapes.insert(shapes.end(), {{1, 37, 50}, {9, 17, 34}, {2, 3, 1}, {3, 20, 7}, {6, 5, 1540}, {1, 3, 6147}});
    for (auto [rows, outputs, cols] : shapes) {
      const Matrix matrix(random, type, outputs, cols), up(random, type, outputs, cols);
      const Row x = uniform(random, size_t(rows) * cols, 3), weight = uniform(random, cols, 2), bias = uniform(random, outputs);
      const Joined all[] = {{&weight, nullptr, nullptr, STORE}, {&weight, &bias, nullptr, STORE}, {nullptr, nullptr, nullptr, ADD},
                            {nullptr, &bias, nullptr, ADD},     {&weight, nullptr, &up, SILU_MUL}, {&weight, &bias, nullptr, ADD},
                            {nullptr, nullptr, &up, SILU_MUL}};
      for (const Joined& joined : all) {
        if (quick && (number + joined.epilogue) % 3) {
          number++;
          continue;
        }
        compare_both(random, x, matrix, joined, sim::Schedule::numbered(number++ % 8));
      }
    }
  }
}

TEST(bits_are_the_same_in_every_schedule_and_those_of_the_row_alone) {
  Random random(2);
  for (const WeightType& type : row_types()) {
    const int cols = 1792, rows = 5, n = 11;
    const Matrix matrix(random, type, n, cols), up(random, type, n, cols);
    const Row x = uniform(random, rows * cols), weight = uniform(random, cols), before = uniform(random, rows * n);
    for (const Joined& joined : {Joined{&weight, nullptr, &up, SILU_MUL}, Joined{&weight, nullptr, nullptr, ADD}}) {
      Row first;
      for_each_schedule([&](const sim::Schedule& schedule) {
        Row out(before);
        multiply_joined(x, matrix, joined, out, n, 0, schedule);
        if (first.empty()) first = out;
        CHECK(same_bits(out, first), type.name + schedule.name());
      });
      for (int row = 0; row < rows; row++) {
        Row alone = part(before, row * n, n);
        multiply_joined(part(x, row * cols, cols), matrix, joined, alone, n, 0, {});
        CHECK(same_bits(alone, part(first, row * n, n)), type.name);
      }
      if (quick) break;
    }
  }
}

TEST(up_may_lie_behind_the_gate_in_one_matrix) {
  Random random(3);
  const int cols = 320, n = 12;
  const Matrix stacked(random, weight_types()[2], 2 * n, cols);
  const Row x = uniform(random, 3 * cols), weight = uniform(random, cols);
  Row apart(3 * 2 * n, NOT_A_NUMBER), expected(3 * n, NOT_A_NUMBER), out(3 * n, NOT_A_NUMBER);
  multiply(rms_norm(x, weight), stacked, nullptr, apart, 2 * n, 0);
  launch("silu_mul", {dim3(1, 3), 256}, {}, apart.data(), expected.data(), n);
  launch("gemv_bf16", {dim3(divided_up(n, 8)), 256}, {}, x.data(), weight.data(), stacked.bytes.data(),
         stacked.bytes.data() + n * stacked.row_bytes(), static_cast<const float*>(nullptr), out.data(), 3, n, cols, n, EPS,
         int(SILU_MUL));
  CHECK(same_bits(out, expected), "stacked");
}

TEST(not_a_number_stays_in_its_row) {
  Random random(4);
  const Matrix matrix(random, weight_types()[2], 18, 50);
  const Row weight = uniform(random, 50);
  for (float bad : {NOT_A_NUMBER, INF}) {
    Row x = uniform(random, 6 * 50), before(6 * 18), after(before);
    const Joined joined{&weight, nullptr, nullptr, ADD};
    multiply_joined(x, matrix, joined, before, 18, 0, {});
    x[2 * 50 + 49] = bad;
    multiply_joined(x, matrix, joined, after, 18, 0, {});
    for (int at = 0; at < 6 * 18; at++)
      CHECK(at / 18 == 2 ? !std::isfinite(after[at]) : after[at] == before[at], "row " + std::to_string(at / 18));
  }
}

// Products of all rows of x; `stride` and `first` place them among the outputs of other parts, which stay not a number.
Row products(const Row& x, const Matrix& matrix, const Row* bias, const sim::Schedule& schedule, int stride, int first) {
  Row out(x.size() / matrix.cols * stride, NOT_A_NUMBER);
  multiply(x, matrix, bias, out, stride, first, schedule);
  return out;
}
Row products(const Row& x, const Matrix& matrix, const sim::Schedule& schedule = {}) {
  return products(x, matrix, nullptr, schedule, matrix.rows, 0);
}

// Within the rounding of a sum of cols products in 32 lanes.
void compare_products(const Row& out, const Row& x, const Matrix& matrix, const Row* bias, const std::string& what) {
  for (size_t row = 0; row * matrix.cols < x.size(); row++)
    for (int output = 0; output < matrix.rows; output++) {
      double sum = bias ? (*bias)[output] : 0, magnitude = std::fabs(sum);
      for (int col = 0; col < matrix.cols; col++) {
        const double product = double(x[row * matrix.cols + col]) * matrix.at(output, col);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double error = std::fabs(out[row * matrix.rows + output] - sum);
      if (error <= 4e-7 * magnitude + 1e-30) continue;
      CHECK(error <= 4e-7 * magnitude, what + ", row " + std::to_string(row) + ", output " + std::to_string(output) + ": off by " +
                                           std::to_string(error / magnitude));
      return;
    }
}

TEST(products_of_every_type_agree_with_float64) {
  Random random(5);
  int number = 0;
  for (const WeightType& type : row_types()) {
    struct Shape {
      int rows, outputs, cols;
    };
    std::vector<Shape> shapes = {{1, 16, 256}, {1, 37, 512}, {5, 17, 256}, {9, 33, 768}};
    if (type.block_len == 1) shapes.insert(shapes.end(), {{1, 37, 50}, {9, 49, 34}, {2, 3, 1}, {3, 20, 7}});
    for (auto [rows, outputs, cols] : shapes) {
      const Matrix matrix(random, type, outputs, cols);
      const Row x = uniform(random, size_t(rows) * cols), bias = uniform(random, outputs);
      const Row* const maybe = number % 2 ? &bias : nullptr;
      const auto schedule = sim::Schedule::numbered(number++ % 8);
      compare_products(products(x, matrix, maybe, schedule, outputs, 0), x, matrix, maybe,
                       type.name + (", " + std::to_string(outputs)) + " outputs of " + std::to_string(cols));
    }
  }
}

TEST(rows_have_the_bits_they_have_alone_and_in_every_schedule) {
  Random random(6);
  for (const WeightType& type : row_types()) {
    const int cols = 512, rows = 9;
    const Matrix matrix(random, type, 21, cols);
    const Row x = uniform(random, rows * cols), together = products(x, matrix);
    for (int row = 0; row < rows; row++)
      CHECK(same_bits(products(part(x, row * cols, cols), matrix), part(together, row * 21, 21)), type.name);
    for_each_schedule([&](const sim::Schedule& schedule) {
      CHECK(same_bits(products(x, matrix, schedule), together), type.name + schedule.name());
    });
  }
}

TEST(a_part_of_a_matrix_writes_its_own_outputs) {
  Random random(7);
  const Matrix matrix(random, weight_types()[2], 20, 64);
  const Row x = uniform(random, 3 * 64), alone = products(x, matrix), among = products(x, matrix, nullptr, {}, 50, 7);
  for (int row = 0; row < 3; row++)
    for (int output = 0; output < 50; output++) {
      const float value = among[row * 50 + output];
      const bool mine = output >= 7 && output < 27;
      CHECK(mine ? value == alone[row * 20 + output - 7] : std::isnan(value), "output " + std::to_string(output));
    }
}

TEST(alone_not_a_number_stays_in_its_row) {
  Random random(8);
  const Matrix matrix(random, weight_types()[2], 18, 50);
  for (float bad : {NOT_A_NUMBER, INF}) {
    Row x = uniform(random, 6 * 50);
    const Row before = products(x, matrix);
    x[2 * 50 + 49] = bad;
    const Row out = products(x, matrix);
    for (int row = 0; row < 6; row++)
      for (int output = 0; output < 18; output++) {
        const size_t at = row * 18 + output;
        CHECK(row == 2 ? !std::isfinite(out[at]) : out[at] == before[at], "row " + std::to_string(row));
      }
  }
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
