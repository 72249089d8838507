// gemv_fused.cu, bit for bit against the kernels that it joins: rms_norm, gemv_W, add and silu_mul.
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

// What gemv_W writes into [rows, stride] from `first` on.
void multiply(const Row& x, const Matrix& matrix, const Row* bias, Row& out, int stride, int first) {
  const int rows = int(x.size()) / matrix.cols;
  launch((std::string("gemv_") + matrix.type.name).c_str(), {dim3(divided_up(matrix.rows, 16), divided_up(rows, 4)), 256}, {},
         x.data(), matrix.bytes.data(), bias ? bias->data() : nullptr, out.data() + first, rows, matrix.rows, matrix.cols, stride);
}

struct Joined {
  const Row *norm_weight = nullptr, *bias = nullptr;
  const Matrix* up = nullptr;
  int epilogue = STORE;
};

// The joined kernel, into [rows, stride] from `first` on.
void multiply_joined(const Row& x, const Matrix& matrix, const Joined& joined, Row& out, int stride, int first,
                     const sim::Schedule& schedule) {
  const int rows = int(x.size()) / matrix.cols, of_block = joined.epilogue == SILU_MUL ? 8 : 16;
  launch((std::string("gemv_fused_") + matrix.type.name).c_str(),
         {dim3(divided_up(matrix.rows, of_block), divided_up(rows, 4)), 256}, schedule, x.data(),
         joined.norm_weight ? joined.norm_weight->data() : nullptr, matrix.bytes.data(),
         joined.up ? joined.up->bytes.data() : nullptr, joined.bias ? joined.bias->data() : nullptr, out.data() + first, rows,
         matrix.rows, matrix.cols, stride, EPS, joined.epilogue);
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
                            {nullptr, nullptr, &up, SILU_MUL},  {nullptr, &bias, nullptr, STORE}};
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
  launch("gemv_fused_bf16", {dim3(divided_up(n, 8)), 256}, {}, x.data(), weight.data(), stacked.bytes.data(),
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

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
