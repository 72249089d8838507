// choose.cu against lists that are sorted and walked as the definition says, in all eight schedules: every filter alone and with
// others, ties, rows that are listed and rows that are not, and what is no distribution.
#include <algorithm>

#include "launch.h"

using namespace check;

namespace {

struct Draw {
  int row;
  float inverse, min_p, top_p;
  unsigned top_k, unit[2], unused;
};

constexpr double LOG2_E = 1.4426950408889634;

Draw draw(int row, float temperature, float min_p, float top_p, unsigned top_k, uint64_t unit) {
  const float inverse = temperature == 0.0f ? 0.0f : float(LOG2_E / temperature);
  return {row, inverse, min_p, top_p, top_k, {unsigned(unit), unsigned(unit >> 32)}, 0};
}

std::vector<int> choose(const Row& logits, int vocab, const std::vector<Draw>& draws, const sim::Schedule& schedule) {
  std::vector<int> tokens(draws.size(), -2);
  launch("choose_tokens", {unsigned(draws.size()), 1024}, schedule, logits.data(), draws.data(), tokens.data(), vocab);
  return tokens;
}

// By the definition in the head of the kernel's file, weights in float64.
int expected(const float* logits, int vocab, const Draw& draw) {
  float largest = -INF;
  for (int i = 0; i < vocab; i++) {
    if (std::isnan(logits[i])) return -1;
    largest = std::max(largest, logits[i]);
  }
  if (std::isinf(largest)) return -1;
  if (draw.inverse == 0.0f) return int(std::find(logits, logits + vocab, largest) - logits);
  struct Token {
    float distance;
    int id;
    double weight;
  };
  std::vector<Token> tokens;
  for (int i = 0; i < vocab; i++) {
    const float distance = std::fabs(largest - logits[i]);
    const double weight = std::exp2(-double(distance * draw.inverse));
    if (weight >= std::max(double(draw.min_p), std::ldexp(1.0, -44))) tokens.push_back({distance, i, weight});
  }
  std::stable_sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) { return a.distance < b.distance; });
  if (draw.top_k > 0 && draw.top_k < tokens.size()) tokens.resize(draw.top_k);
  const auto mass = [&] {
    double sum = 0;
    for (const Token& token : tokens) sum += token.weight;
    return sum;
  };
  if (draw.top_p < 1.0f) {
    const double goal = draw.top_p * mass();
    double sum = 0;
    size_t len = 0;
    while (len == 0 || (len < tokens.size() && sum < goal)) sum += tokens[len++].weight;
    tokens.resize(len);
  }
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) { return a.id < b.id; });
  const double unit = std::ldexp(double(draw.unit[1]), -32) + std::ldexp(double(draw.unit[0]), -64), target = unit * mass();
  double sum = 0;
  for (const Token& token : tokens)
    if ((sum += token.weight) > target) return token.id;
  return tokens.back().id;
}

// Every draw from every row, in all schedules. Rows must not have weights that add up to a share exactly: float64 rounds otherwise.
void check_rows(const Row& logits, int vocab, const std::vector<Draw>& draws, const std::string& what) {
  for_each_schedule([&](const sim::Schedule& schedule) {
    const std::vector<int> tokens = choose(logits, vocab, draws, schedule);
    for (size_t i = 0; i < draws.size(); i++) {
      const int wanted = expected(logits.data() + size_t(draws[i].row) * vocab, vocab, draws[i]);
      CHECK(tokens[i] == wanted, what + ", draw " + std::to_string(i) + ": " + std::to_string(tokens[i]) + " instead of " +
                                     std::to_string(wanted));
    }
  });
}

template <class T> T any(Random& random, std::initializer_list<T> of) { return of.begin()[random.next() % of.size()]; }

Draw any_draw(Random& random, int row) {
  const float temperature = any(random, {0.2f, 1.0f, 3.0f}), min_p = any(random, {0.0f, 0.05f});
  return draw(row, temperature, min_p, any(random, {1.0f, 0.9f, 0.1f}), any(random, {0u, 1u, 40u}), random.next());
}

}  // namespace

TEST(every_filter_and_every_length_keep_what_they_should) {
  Random random(1);
  for (int vocab : {1, 33, 1000, 1025, 3001}) {
    const Row logits = uniform(random, vocab, 8.0f);
    std::vector<Draw> draws{draw(0, 0.0f, 0.0f, 1.0f, 0, 0)};
    for (int i = 0; i < (quick ? 2 : 5); i++) draws.push_back(any_draw(random, 0));
    check_rows(logits, vocab, draws, "of " + std::to_string(vocab));
  }
}

// More than the list has room for are near the largest, so that filters pass over the row.
TEST(flat_rows_are_searched_as_a_whole) {
  Random random(2);
  const int vocab = 5000;
  const Row logits = uniform(random, vocab, 0.5f);
  std::vector<Draw> draws;
  for (unsigned top_k : {4500u, 0u, 1000u}) {
    draws.push_back(draw(0, 1.0f, 0.0f, 0.95f, top_k, random.next()));
    if (quick) break;
  }
  check_rows(logits, vocab, draws, "flat");
}

// The lower ids go first among equals, for top_k and for top_p; and the number of ties that are kept is right.
TEST(ties_are_kept_by_their_ids) {
  Random random(3);
  const int vocab = 1500;
  Row logits(vocab);
  for (float& x : logits) x = float(random.next() % 5);
  std::vector<Draw> draws;
  for (unsigned top_k : {0u, 3u, 400u})
    for (float top_p : {0.77f, 1.0f, 0.013f}) {
      draws.push_back(draw(0, 0.9f, 0.0f, top_p, top_k, random.next()));
      if (quick) break;
    }
  for (uint64_t unit : {uint64_t(0), ~uint64_t(0)}) draws.push_back(draw(0, 1.0f, 0.0f, 1.0f, 600, unit));
  check_rows(logits, vocab, draws, "ties");
  check_rows(Row(vocab, 1.5f), vocab, {draw(0, 1.0f, 0.0f, 0.5001f, 0, ~uint64_t(0)), draw(0, 0.0f, 0.0f, 1.0f, 0, 0)}, "all equal");
}

TEST(rows_are_found_by_their_numbers) {
  Random random(4);
  const int vocab = 300;
  const Row logits = uniform(random, 4 * vocab, 10.0f);
  check_rows(logits, vocab, {draw(3, 0.0f, 0, 1, 0, 0), draw(1, 1.0f, 0, 1, 0, random.next()), draw(3, 1.0f, 0, 0.5f, 9, random.next())},
             "numbered");
}

TEST(what_is_no_distribution_is_left_to_the_host) {
  const int vocab = 100;
  Row logits(5 * vocab, -1.0f);
  logits[17] = NOT_A_NUMBER;
  logits[vocab + 3] = INF;
  std::fill_n(logits.begin() + 2 * vocab, vocab, -INF);
  std::fill_n(logits.begin() + 3 * vocab, vocab, -INF);
  logits[3 * vocab + 64] = -3e38f;  // alone
  logits[4 * vocab + 8] = 3e38f;    // the others are infinitely far away
  for (float temperature : {0.0f, 1.0f, 1e-30f}) {
    std::vector<Draw> draws;
    for (int row = 0; row < 5; row++) draws.push_back(draw(row, temperature, 0.0f, 0.9f, 2, ~uint64_t(0)));
    draws[3].inverse = draws[4].inverse = temperature == 0.0f ? 0.0f : std::min(draws[3].inverse, 1e30f);
    for_each_schedule([&](const sim::Schedule& schedule) {
      const std::vector<int> tokens = choose(logits, vocab, draws, schedule);
      CHECK((tokens == std::vector<int>{-1, -1, -1, 64, 8}), "at temperature " + std::to_string(temperature));
    });
  }
}

int main(int count, char** arguments) { return run_all(count, arguments); }
