// norm.cu against float64: widths from 1 to some thousand, heads of every size, values that are hard, and bits that depend on no
// schedule and no other row.
#include "launch.h"

using namespace check;

namespace {

constexpr float EPS = 1e-5f;

Row rms_norm(const Row& x, const Row& weight, const sim::Schedule& schedule) {
  const int cols = int(weight.size());
  Row out(x.size(), NOT_A_NUMBER);
  launch("rms_norm", {unsigned(x.size()) / cols, 256}, schedule, x.data(), weight.data(), out.data(), cols, EPS);
  return out;
}

// The residual, then its norm.
std::vector<double> reference(const float* x, const float* weight, int len) {
  double sum = 0;
  for (int i = 0; i < len; i++) sum += double(x[i]) * x[i];
  const double scale = 1 / std::sqrt(sum / len + double(EPS));
  std::vector<double> out(len);
  for (int i = 0; i < len; i++) out[i] = x[i] * scale * weight[i];
  return out;
}

void compare_rows(const Row& out, const Row& x, const Row& weight, const std::string& what) {
  const size_t cols = weight.size();
  for (size_t from = 0; from < x.size(); from += cols)
    compare(part(out, from, cols), reference(&x[from], weight.data(), int(cols)), 1e-6, 2e-6, what);
}

// Rows that are hard for a norm, `cols` each.
Row hard_rows(int cols) {
  Row x;
  const auto add = [&](auto value) {
    for (int i = 0; i < cols; i++) x.push_back(value(i));
  };
  add([](int) { return 0.0f; });
  add([](int i) { return i % 2 ? 1e15f : -1e15f; });
  add([](int) { return 1e-30f; });
  add([](int i) { return i == 0 ? 1e12f : 1.0f; });
  add([=](int i) { return i == cols - 1 ? -3e8f : 0.0f; });
  add([](int i) { return float(i % 13) - 6.0f; });
  return x;
}

TEST(rows_of_all_widths_agree_with_float64) {
  Random random(1);
  int number = 0;
  for (int cols : {1, 2, 7, 31, 32, 33, 50, 255, 256, 257, 576, 1000, 4096}) {
    const auto schedule = sim::Schedule::numbered(number++ % 8);
    const Row weight = uniform(random, cols, 2);
    const Row ordinary = uniform(random, 3 * cols, 4), hard = hard_rows(cols);
    const std::string what = std::to_string(cols) + " columns";
    compare_rows(rms_norm(ordinary, weight, schedule), ordinary, weight, what);
    compare_rows(rms_norm(hard, weight, schedule), hard, weight, what + ", hard");
  }
}

TEST(bits_are_the_same_in_every_schedule_and_those_of_the_row_alone) {
  Random random(2);
  for (int cols : {5, 300, 1027}) {
    const Row x = uniform(random, 4 * cols, 3), weight = uniform(random, cols);
    Row first;
    for_each_schedule([&](const sim::Schedule& schedule) {
      const Row out = rms_norm(x, weight, schedule);
      if (first.empty()) first = out;
      CHECK(same_bits(out, first), schedule.name());
    });
    for (int row = 0; row < 4; row++) {
      const Row alone = part(x, row * cols, cols);
      CHECK(same_bits(rms_norm(alone, weight, {}), part(first, row * cols, cols)), "row " + std::to_string(row));
    }
  }
}

TEST(a_row_may_be_normalised_in_place) {
  Random random(3);
  const int cols = 700;
  Row x = uniform(random, 2 * cols);
  const Row weight = uniform(random, cols), expected = rms_norm(x, weight, {});
  launch("rms_norm", {2, 256}, {}, x.data(), weight.data(), x.data(), cols, EPS);
  CHECK(same_bits(x, expected), "in place");
}

TEST(not_a_number_stays_in_its_row) {
  const int cols = 40;
  for (float bad : {NOT_A_NUMBER, INF}) {
    Row x(3 * cols, 1.0f);
    x[cols + 17] = bad;
    const Row weight(cols, 1.0f), out = rms_norm(x, weight, {});
    for (int i = 0; i < cols; i++) {
      CHECK(std::isfinite(out[i]) && std::isfinite(out[2 * cols + i]), "rows beside it");
      CHECK(i != 17 || std::isnan(out[cols + i]), "its own element");
    }
  }
}

TEST(every_query_and_key_head_has_its_own_norm_and_values_are_left_alone) {
  Random random(4);
  int number = 0;
  struct {
    int num_heads, num_kv_heads, head_dim;
  } layouts[] = {{6, 2, 64}, {1, 1, 2}, {5, 1, 18}, {4, 4, 80}, {3, 1, 128}, {2, 1, 256}, {9, 3, 33}};
  for (const auto& layout : layouts) {
    const int num_heads = layout.num_heads, num_kv_heads = layout.num_kv_heads, head_dim = layout.head_dim;
    const int rows = 3, heads = num_heads + 2 * num_kv_heads, normed = num_heads + num_kv_heads;
    const Row qkv = uniform(random, size_t(rows) * heads * head_dim, 2);
    const Row q_weight = uniform(random, head_dim), k_weight = uniform(random, head_dim);
    const std::string what = std::to_string(num_heads) + " heads of " + std::to_string(head_dim);
    const auto run = [&](Row rows_of_qkv, const sim::Schedule& schedule) {
      const unsigned num_rows = unsigned(rows_of_qkv.size()) / (heads * head_dim);
      launch("qk_norm", {dim3(num_rows, divided_up(normed, 4)), 128}, schedule, rows_of_qkv.data(), q_weight.data(),
             k_weight.data(), num_heads, num_kv_heads, head_dim, EPS);
      return rows_of_qkv;
    };
    const Row out = run(qkv, sim::Schedule::numbered(number++ % 8));
    for (int row = 0; row < rows; row++)
      for (int head = 0; head < heads; head++) {
        const size_t at = (size_t(row) * heads + head) * head_dim;
        const Row before = part(qkv, at, head_dim), after = part(out, at, head_dim);
        if (head >= normed) {
          CHECK(same_bits(before, after), what + ": a value");
        } else {
          compare(after, reference(before.data(), (head < num_heads ? q_weight : k_weight).data(), head_dim), 1e-6, 2e-6, what);
        }
      }
    for_each_schedule([&](const sim::Schedule& schedule) { CHECK(same_bits(run(qkv, schedule), out), what + schedule.name()); });
    const size_t width = size_t(heads) * head_dim;
    CHECK(same_bits(run(part(qkv, width, width), {}), part(out, width, width)), what + ": a row alone");
  }
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
