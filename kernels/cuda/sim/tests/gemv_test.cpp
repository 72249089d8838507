// gemv.cu against float64: every weight type that is left in rows, outputs and rows that are no multiple of a tile, parts of a
// matrix, and bits that depend on no schedule and no other row.
#include "weights.h"

using namespace check;

namespace {

// Products of all rows of x; `stride` and `first` place them among the outputs of other parts, which stay not a number.
Row products(const Row& x, const Matrix& matrix, const Row* bias, const sim::Schedule& schedule, int stride, int first) {
  const int rows = int(x.size()) / matrix.cols;
  Row out(size_t(rows) * stride, NOT_A_NUMBER);
  launch((std::string("gemv_") + matrix.type.name).c_str(), {dim3(divided_up(matrix.rows, 16), divided_up(rows, 4)), 256}, schedule,
         x.data(), matrix.bytes.data(), bias ? bias->data() : nullptr, out.data() + first, rows, matrix.rows, matrix.cols, stride);
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
  Random random(1);
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
  Random random(2);
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
  Random random(3);
  const Matrix matrix(random, weight_types()[2], 20, 64);
  const Row x = uniform(random, 3 * 64), alone = products(x, matrix), among = products(x, matrix, nullptr, {}, 50, 7);
  for (int row = 0; row < 3; row++)
    for (int output = 0; output < 50; output++) {
      const float value = among[row * 50 + output];
      const bool mine = output >= 7 && output < 27;
      CHECK(mine ? value == alone[row * 20 + output - 7] : std::isnan(value), "output " + std::to_string(output));
    }
}

TEST(not_a_number_stays_in_its_row) {
  Random random(4);
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
