// softmax.cu against float64, in all eight schedules: ordinary and hard rows, lengths from 1 to 2^17, masks, NaN, and bits that
// depend on no schedule and no other row. What is tested of kernels/src/softmax in Rust is tested of the same formulas here.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"

namespace {

constexpr float INF = std::numeric_limits<float>::infinity(), NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();
constexpr float LOWEST = -6.338253e29f;

using Row = std::vector<float>;

unsigned divided_up(unsigned a, unsigned b) { return (a + b - 1) / b; }

// A kernel, or two in turn, with the launches its contract asks for. `x` is rows of `cols`; counters must come back as zeros.
struct Softmax {
  const char* name;
  Row (*run)(const Row& x, int cols, const sim::Schedule& schedule);
  // Threads that share a row, at least: what each adds up grows with the length.
  int threads;
};

Row three_pass(const Row& x, int cols, const sim::Schedule& schedule) {
  Row out(x.size(), NOT_A_NUMBER);
  const float* from = x.data();
  float* to = out.data();
  void* arguments[] = {&from, &to, &cols};
  sim::run("softmax_three_pass", {unsigned(x.size()) / cols, 1024}, schedule, arguments);
  return out;
}

Row online(const Row& x, int cols, const sim::Schedule& schedule) {
  Row out(x.size(), NOT_A_NUMBER);
  const float* from = x.data();
  float* to = out.data();
  int rows = int(x.size()) / cols;
  void* arguments[] = {&from, &to, &rows, &cols};
  sim::run("softmax_online", {divided_up(rows, 4), 128}, schedule, arguments);
  return out;
}

Row block(const Row& x, int cols, const sim::Schedule& schedule) {
  Row out(x.size(), NOT_A_NUMBER);
  const float* from = x.data();
  float* to = out.data();
  void* arguments[] = {&from, &to, &cols};
  sim::run("softmax_block", {unsigned(x.size()) / cols, 128}, schedule, arguments);
  return out;
}

Row in_chunks(const Row& x, int cols, int chunk_len, const sim::Schedule& schedule) {
  const unsigned rows = x.size() / cols, chunks = divided_up(cols, chunk_len);
  Row out(x.size(), NOT_A_NUMBER), states(2 * rows * chunks, NOT_A_NUMBER), row_states(2 * rows, NOT_A_NUMBER);
  std::vector<unsigned> tickets(rows, 0);
  const float* from = x.data();
  float *to = out.data(), *of_chunks = states.data(), *of_rows = row_states.data();
  unsigned* ticket = tickets.data();
  void* reduce[] = {&from, &cols, &chunk_len, &of_chunks, &ticket, &of_rows};
  sim::run("softmax_reduce", {dim3(chunks, rows), 256}, schedule, reduce);
  void* normalise[] = {&from, &to, &cols, &chunk_len, &of_rows};
  sim::run("softmax_normalise", {dim3(chunks, rows), 256}, schedule, normalise);
  for (unsigned left : tickets) CHECK(left == 0, "tickets are ready for the next launch");
  return out;
}
// Four chunks at least where there are four elements, and no more than 40.
Row chunks(const Row& x, int cols, const sim::Schedule& schedule) {
  return in_chunks(x, cols, divided_up(cols, cols < 4096 ? 4 : 40), schedule);
}

Row cooperative(const Row& x, int cols, const sim::Schedule& schedule) {
  int chunk_len = std::min<int>(8192, divided_up(cols, cols < 16384 ? 3 : 16));
  const unsigned rows = x.size() / cols, chunks = divided_up(cols, chunk_len);
  Row out(x.size(), NOT_A_NUMBER), states(2 * rows * chunks, NOT_A_NUMBER);
  std::vector<unsigned> counters(2 * rows, 0);
  const float* from = x.data();
  float *to = out.data(), *of_chunks = states.data();
  unsigned* counter = counters.data();
  sim::Launch launch{dim3(chunks, rows), 256};
  launch.cooperative = true;
  void* arguments[] = {&from, &to, &cols, &chunk_len, &of_chunks, &counter};
  sim::run("softmax_cooperative", launch, schedule, arguments);
  for (unsigned left : counters) CHECK(left == 0, "counters are ready for the next launch");
  return out;
}

const Softmax KERNELS[] = {
    {"three-pass", three_pass, 1024},
    {"online", online, 32},
    {"block", block, 128},
    {"chunks", chunks, 1024},
    {"cooperative", cooperative, 256},
};

std::vector<double> reference(const Row& x) {
  double largest = -INF, sum = 0;
  for (float score : x) largest = std::fmax(largest, score);
  std::vector<double> out;
  for (float score : x) {
    out.push_back(score < LOWEST ? 0.0 : std::exp2(score - largest));
    sum += out.back();
  }
  for (double& p : out) p = sum == 0 ? 0 : p / sum;
  return out;
}

struct Named {
  std::string name;
  Row row;
};

// Rows that are hard for a softmax; the same as in kernels/src/softmax/tests.rs.
std::vector<Named> hard_rows(int len) {
  const auto wave = [](int i) { return float((i * 7919ll + 13) % 1009) / 504.5f - 1.0f; };
  std::vector<Named> rows;
  const auto add = [&](const char* name, auto score) {
    Row row(len);
    for (int i = 0; i < len; i++) row[i] = score(i);
    rows.push_back({name, row});
  };
  add("small scores", [&](int i) { return 4 * wave(i); });
  add("scores of +-151", [&](int i) { return 151 * wave(i); });
  add("alternating +-151", [&](int i) { return i % 2 ? -151.0f : 151.0f; });
  add("ascending", [&](int i) { return i * 302.0f / len - 151; });
  add("descending", [&](int i) { return 151 - i * 302.0f / len; });
  add("one huge element, first", [&](int i) { return i == 0 ? 1e30f : wave(i); });
  add("one huge element, last", [&](int i) { return i + 1 == len ? 1e30f : wave(i); });
  add("the largest number", [&](int i) { return i == len / 3 ? std::numeric_limits<float>::max() : wave(i); });
  add("all equal", [&](int) { return 0.7f; });
  add("all equal and far down", [&](int) { return -1e20f; });
  add("one-hot", [&](int i) { return i == len / 2 ? 0.0f : -INF; });
  add("every other masked", [&](int i) { return i % 2 ? -INF : 10 * wave(i); });
  add("masked head", [&](int i) { return i < len / 2 ? -INF : wave(i) - 140; });
  add("masked tail", [&](int i) { return i > len / 2 ? -INF : wave(i) + 140; });
  add("masked by a large number", [&](int i) { return i % 3 == 1 ? std::numeric_limits<float>::lowest() : wave(i); });
  add("all masked", [&](int) { return -INF; });
  add("subnormal scores", [&](int i) { return i % 2 ? 1e-40f : -1e-40f; });
  if (check::quick) rows.erase(rows.begin() + 2, rows.end() - 3);
  return rows;
}

// Within 3e-6 of float64, and a rounding for each addition of a thread (eight elements at a time; all equal ones round in the
// same direction); what is below 2^-100 may be anything that small.
void compare(const Row& out, const Row& x, int threads, const std::string& what) {
  const double tolerance = 3e-6 + 0x1p-24 * x.size() / (8 * threads);
  const auto expected = reference(x);
  for (size_t i = 0; i < x.size(); i++) {
    const double error = std::fabs(out[i] - expected[i]), allowed = tolerance * expected[i] + 0x1p-100;
    if (error <= allowed) continue;
    CHECK(error <= allowed, what + ", element " + std::to_string(i) + " of " + std::to_string(x.size()) + ": " +
                               std::to_string(out[i]) + " instead of " + std::to_string(expected[i]));
    return;
  }
}

bool same_bits(const Row& a, const Row& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0; }

Row joined(const std::vector<Named>& rows) {
  Row all;
  for (const Named& row : rows) all.insert(all.end(), row.row.begin(), row.row.end());
  return all;
}

void compare_all(const Softmax& kernel, const std::vector<Named>& rows, const Row& out, const sim::Schedule& schedule) {
  auto row_out = out.begin();
  for (const Named& row : rows) {
    compare({row_out, row_out + row.row.size()}, row.row, kernel.threads, kernel.name + (", " + row.name) + " under " + schedule.name());
    row_out += row.row.size();
  }
}

TEST(hard_rows_of_all_lengths_agree_with_float64) {
  int number = 0;
  for (int len : {1, 33, 257, 1025, 2, 3, 7, 8, 31, 32, 127, 128, 129, 255, 256, 511, 1023, 3000}) {
    if (check::quick && number == 4) break;
    const auto rows = hard_rows(len);
    const auto schedule = sim::Schedule::numbered(number++ % 8);
    for (const Softmax& kernel : KERNELS) compare_all(kernel, rows, kernel.run(joined(rows), len, schedule), schedule);
  }
}

TEST(hard_rows_have_the_same_right_bits_in_every_schedule) {
  for (int len : {1, 257, 4097, 50'000, 1 << 17}) {
    if (check::quick && len > 257) break;
    const auto rows = hard_rows(len);
    for (const Softmax& kernel : KERNELS) {
      Row first;
      check::for_each_schedule([&](const sim::Schedule& schedule) {
        const Row out = kernel.run(joined(rows), len, schedule);
        if (first.empty()) compare_all(kernel, rows, first = out, schedule);
        CHECK(same_bits(out, first), std::string(kernel.name) + " has other bits under " + schedule.name());
      });
    }
  }
}

// Who comes last at a counter, and what it sees of the others, is a matter of luck.
TEST(blocks_that_share_a_row_agree_under_many_seeds) {
  const Row x = hard_rows(500).front().row;
  const auto agree = [&](const char* name, auto run) {
    const Row first = run(sim::Schedule::numbered(0));
    compare(first, x, 256, name);
    for (unsigned seed = 1; seed <= 8; seed++)
      for (int number = 0; number < sim::Schedule::COUNT; number++) {
        const auto schedule = sim::Schedule::numbered(number, seed);
        CHECK(same_bits(run(schedule), first), name + (" under " + schedule.name()) + ", seed " + std::to_string(seed));
      }
  };
  agree("chunks", [&](const sim::Schedule& schedule) { return in_chunks(x, 500, 63, schedule); });
  agree("cooperative", [&](const sim::Schedule& schedule) { return cooperative(x, 500, schedule); });
}

TEST(a_row_has_the_bits_it_has_alone) {
  for (int len : {5, 300, 5000}) {
    if (check::quick && len > 300) break;
    const auto rows = hard_rows(len);
    const Row x = joined(rows);
    for (const Softmax& kernel : KERNELS) {
      const Row all = kernel.run(x, len, {});
      for (size_t row = 0; row < rows.size(); row++) {
        const Row alone = kernel.run(rows[row].row, len, {});
        CHECK(same_bits(alone, {all.begin() + row * len, all.begin() + (row + 1) * len}), kernel.name + (", " + rows[row].name));
      }
    }
  }
}

TEST(not_a_number_and_plus_infinity_spoil_their_own_row_alone) {
  int number = 0;
  for (const Softmax& kernel : KERNELS)
    for (float bad : {NOT_A_NUMBER, INF})
      for (int len : {1, 40, 600, 3000})
        for (int place : {0, len / 2, len - 1}) {
          if (check::quick && (len > 40 || place != len / 2)) continue;
          Row x(3 * len);
          for (int i = 0; i < 3 * len; i++) x[i] = float(i % 7);
          const Row row(x.begin(), x.begin() + len), row_after(x.begin() + 2 * len, x.end());
          x[len + place] = bad;
          const auto schedule = sim::Schedule::numbered(number++ % 8);
          const Row out = kernel.run(x, len, schedule);
          const std::string what = kernel.name + (": " + std::to_string(bad)) + " at " + std::to_string(place);
          const auto numbers = std::count_if(out.begin() + len, out.begin() + 2 * len, [](float y) { return !std::isnan(y); });
          CHECK(numbers == 0, what);
          compare({out.begin(), out.begin() + len}, row, kernel.threads, what + ", the row before");
          compare({out.begin() + 2 * len, out.end()}, row_after, kernel.threads, what + ", the row after");
        }
}

TEST(rows_that_are_all_masked_are_zeros) {
  for (const Softmax& kernel : KERNELS)
    for (int len : {1, 16, check::quick ? 30 : 300, check::quick ? 90 : 9000})
      for (float y : kernel.run(Row(len, -INF), len, {})) CHECK(y == 0, kernel.name);
}

TEST(random_rows_of_random_lengths_agree_with_float64) {
  check::Random random(7);
  for (int trial = 0; trial < (check::quick ? 5 : 30); trial++) {
    const int len = 1 + int(random.next() % 3000), rows = 1 + int(random.next() % 6);
    const float scale = std::exp2(float(random.next() % 9));
    Row x(size_t(len) * rows);
    for (float& score : x) score = random.uniform() * scale;
    const auto schedule = sim::Schedule::numbered(int(random.next() % 8), unsigned(random.next()));
    for (const Softmax& kernel : KERNELS) {
      const Row out = kernel.run(x, len, schedule);
      for (int row = 0; row < rows; row++)
        compare({out.begin() + row * len, out.begin() + (row + 1) * len}, {x.begin() + row * len, x.begin() + (row + 1) * len},
                kernel.threads, std::string(kernel.name) + ", trial " + std::to_string(trial) + " under " + schedule.name());
    }
  }
}

TEST(chunks_of_any_length_give_the_row_up_to_rounding) {
  for (const Named& row : hard_rows(1500))
    for (int chunk_len : {256, 1499, 1500, 4000, 7, 1}) {
      if (check::quick && chunk_len < 256) break;
      compare(in_chunks(row.row, 1500, chunk_len, sim::Schedule::numbered(2)), row.row, 256, row.name + " in chunks of " + std::to_string(chunk_len));
    }
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
