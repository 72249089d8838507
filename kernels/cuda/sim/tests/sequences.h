// Sequences whose keys and values are in a paged cache, and what attention to them is in float64.
#pragma once
#include "cache.h"

namespace check {

constexpr float LOG2_E = 1.44269504f;
constexpr int ONLINE = 0, BOUNDED = 1, CALIBRATED = 2, ONLINE_THRESHOLD = 3;

struct Layout {
  int num_heads, num_kv_heads, head_dim;
  int group() const { return num_heads / num_kv_heads; }
  int heads() const { return num_heads + 2 * num_kv_heads; }
  int width() const { return heads() * head_dim; }
  int q_width() const { return num_heads * head_dim; }
  float scale() const { return 1 / std::sqrt(float(head_dim)); }
  std::string name() const {
    return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " heads of " + std::to_string(head_dim);
  }
};

// What a row subtracts from its scores; a range is phi, below, above.
struct Arm {
  int arm = ONLINE;
  float phi = 0, below = -INF, above = INF;
  std::string name() const { return "arm " + std::to_string(arm) + ", phi " + std::to_string(int(phi)); }
};

// Sequences of fused rows whose keys and values are in a cache, rounded to its type.
template <class T> struct Sequences {
  Layout layout;
  std::vector<std::vector<int>> tables;
  std::vector<Row> qkv;
  Cache<T> cache;

  Sequences(Random& random, Layout layout, const std::vector<int>& lens)
      : layout(layout), tables(block_tables(random, lens)), cache(num_blocks(lens), layout.num_kv_heads, layout.head_dim) {
    for (int len : lens) qkv.push_back(uniform(random, size_t(len) * layout.width(), 1.7f));
    store();
  }
  static int num_blocks(const std::vector<int>& lens) {
    int count = 2;
    for (int len : lens) count += divided_up(len, BLOCK_SIZE);
    return count;
  }
  int len(int sequence) const { return int(qkv[sequence].size()) / layout.width(); }
  float* row(int sequence, int position) { return &qkv[sequence][size_t(position) * layout.width()]; }

  // Rounds keys and values and puts them into the cache. What lies behind a sequence's end stays not a number.
  void store() {
    for (size_t sequence = 0; sequence < qkv.size(); sequence++)
      for (int position = 0; position < len(sequence); position++)
        for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head++) {
          const int slot = tables[sequence][position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE;
          float* const key = row(sequence, position) + (layout.num_heads + kv_head) * layout.head_dim;
          float* const value = key + layout.num_kv_heads * layout.head_dim;
          double squares = 0;
          __nv_bfloat16* const scales = cache.scales(slot, kv_head);
          store_head(key, layout.head_dim, cache.key(slot, kv_head), scales);
          store_head(value, layout.head_dim, cache.value(slot, kv_head), scales ? scales + 1 : scales);
          for (int d = 0; d < layout.head_dim; d++) squares += double(key[d]) * key[d];
          const float before = position % BLOCK_SIZE == 0 ? 0.0f : cache.key_length(slot - 1, kv_head);
          cache.key_length(slot, kv_head) = std::fmax(before, float(std::sqrt(squares)));
        }
  }
};

struct Span {
  int sequence, begin, end;
};

// Tables and fused rows of a step, with a row of nobody at its end.
template <class T> std::pair<Step, Row> step_of(const Sequences<T>& sequences, const std::vector<Span>& spans) {
  Step step;
  Row qkv;
  for (const Span& span : spans) {
    step.add(sequences.tables[span.sequence], span.begin, span.end);
    const auto all = sequences.qkv[span.sequence].begin();
    const size_t width = sequences.layout.width();
    qkv.insert(qkv.end(), all + span.begin * width, all + span.end * width);
  }
  step.pad();
  qkv.resize(qkv.size() + sequences.layout.width(), NOT_A_NUMBER);
  return {step, qkv};
}

// Attention of a row in float64.
template <class T> std::vector<double> reference(Sequences<T>& sequences, int sequence, int position) {
  const Layout layout = sequences.layout;
  std::vector<double> out;
  for (int head = 0; head < layout.num_heads; head++) {
    const int key_at = (layout.num_heads + head / layout.group()) * layout.head_dim;
    const float* const q = sequences.row(sequence, position) + head * layout.head_dim;
    std::vector<double> weights;
    double largest = -INFINITY, sum = 0;
    for (int key = 0; key <= position; key++) {
      double score = 0;
      for (int d = 0; d < layout.head_dim; d++) score += double(q[d]) * sequences.row(sequence, key)[key_at + d];
      weights.push_back(score * layout.scale());
      largest = std::fmax(largest, weights.back());
    }
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (int d = 0; d < layout.head_dim; d++) {
      double value = 0;
      for (int key = 0; key <= position; key++)
        value += weights[key] * sequences.row(sequence, key)[key_at + layout.num_kv_heads * layout.head_dim + d];
      out.push_back(value / sum);
    }
  }
  return out;
}

// A sequence in which every query scores about score(i), in log2 units, with key i, which holds value(i) or its negative.
template <class T>
Sequences<T> with_scores(int len, const std::function<float(int)>& score, const std::function<float(int)>& value) {
  Random random(7);
  const Layout layout{3, 1, 64};
  Sequences<T> sequences(random, layout, {len});
  for (int position = 0; position < len; position++) {
    float* const row = sequences.row(0, position);
    for (int d = 0; d < 64; d++) {
      for (int head = 0; head < 3; head++) row[head * 64 + d] = 1.0f;
      row[3 * 64 + d] = score(position) * 0.693147181f / 8;
      row[4 * 64 + d] = d % 3 ? value(position) : -value(position);
    }
  }
  sequences.store();
  return sequences;
}

// Scores that are hard on a softmax.
struct Hard {
  const char* name;
  int len;
  std::function<float(int)> score;
  float largest_score;
  // Of the two rows' six (row, head) pairs, how many each arm computes again.
  unsigned bounded, calibrated, two_sided;
};

inline std::vector<Hard> hard_cases() {
  return {
      {"alternating", 600, [](int i) { return i % 2 ? -151.0f : 151.0f; }, 151, 0, 6, 6},
      {"rising", 604, [](int i) { return i / 2.0f - 151; }, 151, 0, 6, 6},
      {"falling", 604, [](int i) { return 151 - i / 2.0f; }, 151, 0, 6, 6},
      {"all at 151", 200, [](int) { return 151.0f; }, 151, 0, 6, 6},
      {"all at -151", 200, [](int) { return -151.0f; }, 151, 6, 6, 6},
      {"all at -99", 200, [](int) { return -99.0f; }, 99, 0, 0, 6},
      {"all at -1e5", 200, [](int) { return -1e5f; }, 1e5, 6, 6, 6},
      {"one huge key at the end", 300, [](int i) { return i == 299 ? 1e5f : 0.0f; }, 1e5, 0, 3, 3},
      {"one huge key in the first block", 300, [](int i) { return i == 40 ? 1e5f : 0.0f; }, 1e5, 0, 6, 6},
      {"one long opposite key", 300, [](int i) { return i == 40 ? -1e5f : 0.0f; }, 1e5, 6, 0, 6},
      {"all equal", 257, [](int) { return 4.0f; }, 4, 0, 0, 0},
      {"all zero", 257, [](int) { return 0.0f; }, 0, 0, 0, 0},
      {"one hot", 257, [](int i) { return i == 128 ? 59.0f : -59.0f; }, 59, 0, 0, 0},
      {"all far above", 100, [](int) { return 62.0f; }, 62, 0, 6, 6},
      {"one key", 1, [](int) { return 80.0f; }, 80, 0, 3, 3},
  };
}

}  // namespace check
