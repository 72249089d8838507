// attention_plain.cu against float64: every storage type and head size, contexts around the borders of blocks and splits, scores
// that are hard on a softmax, references that do not fit, and bits that depend on no schedule, no other row, not on how many
// blocks of threads share a row, and not on how a sequence was cut into steps. What is tested of attention in
// kernels/tests/conformance in Rust is tested of the same formulas here.
#include "sequences.h"

using namespace check;

namespace {

struct Answer {
  Row out;
  unsigned recomputed = 0;
  // [rows][parts][32][8 (head_dim + 2)], not a number where nothing was left.
  Row states;
};

// Attention of some rows; `sharing` blocks of threads for each row and part of the heads.
template <class T>
Answer attend(Sequences<T>& sequences, const std::vector<Span>& spans, const Arm& arm, const sim::Schedule& schedule = {},
              unsigned sharing = 32) {
  const Layout layout = sequences.layout;
  const auto [step, qkv] = step_of(sequences, spans);
  const int rows = step.rows(), parts = layout.num_kv_heads * divided_up(layout.group(), 8);
  Row ranges;
  for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head++) ranges.insert(ranges.end(), {arm.phi, arm.below, arm.above});
  std::vector<unsigned> tickets(sharing == 1 ? 0 : rows * parts, 0);
  Answer answer;
  answer.out.assign(size_t(rows) * layout.q_width(), NOT_A_NUMBER);
  answer.states.assign(sharing == 1 ? 0 : size_t(rows) * parts * 32 * 8 * (layout.head_dim + 2), NOT_A_NUMBER);
  launch((std::string("attention_plain_") + type_name<T>()).c_str(), {dim3(rows, parts, sharing), 128}, schedule, qkv.data(),
         static_cast<void*>(sequences.cache.bytes.data()), step.positions.data(), step.table_starts.data(), step.block_tables.data(),
         ranges.data(), answer.states.data(), tickets.data(), &answer.recomputed, answer.out.data(), layout.num_heads,
         layout.num_kv_heads, layout.head_dim, layout.scale() * LOG2_E, arm.arm);
  for (unsigned left : tickets) CHECK(left == 0, "tickets are ready for the next launch");
  for (size_t i = size_t(rows - 1) * layout.q_width(); i < answer.out.size(); i++)
    CHECK(std::isnan(answer.out[i]), "nobody's row is left alone");
  answer.out.resize(size_t(rows - 1) * layout.q_width());
  return answer;
}

// The baseline, with all scores in memory.
template <class T> Row attend_naively(Sequences<T>& sequences, const std::vector<Span>& spans, const sim::Schedule& schedule = {}) {
  const Layout layout = sequences.layout;
  const auto [step, qkv] = step_of(sequences, spans);
  const int rows = step.rows();
  int stride = 1;
  for (int position : step.positions) stride = std::max(stride, position + 1);
  Row scores(size_t(rows) * layout.num_heads * stride, NOT_A_NUMBER), out(size_t(rows) * layout.q_width(), NOT_A_NUMBER);
  launch((std::string("attention_naive_") + type_name<T>()).c_str(), {dim3(rows, layout.num_heads), 128}, schedule, qkv.data(),
         static_cast<void*>(sequences.cache.bytes.data()), step.positions.data(), step.table_starts.data(), step.block_tables.data(),
         scores.data(), out.data(), layout.num_heads, layout.num_kv_heads, layout.head_dim, stride, layout.scale() * LOG2_E);
  out.resize(size_t(rows - 1) * layout.q_width());
  return out;
}

// Scores are sums in float32, with an error of some 2^-24 of the largest that ends in the exponent; `size` is that of the values.
template <class T>
void compare_rows(Sequences<T>& sequences, const std::vector<Span>& spans, const Row& out, double largest_score, double size,
                  const std::string& what) {
  size_t at = 0;
  for (const Span& span : spans)
    for (int position = span.begin; position < span.end; position++, at += sequences.layout.q_width())
      compare(part(out, at, sequences.layout.q_width()), reference(sequences, span.sequence, position),
              (3e-6 + 1e-6 * largest_score) * size, 0,
              what + ", position " + std::to_string(position) + " of sequence " + std::to_string(span.sequence));
}

const Arm ARMS[] = {{}, {BOUNDED}, {CALIBRATED, 2, -INF, 60}};

template <class T> void layouts_agree_with_float64() {
  Random random(1);
  const Layout layouts[] = {{3, 1, 64}, {4, 2, 18}, {8, 1, 128}, {1, 1, 2}, {9, 1, 33}, {2, 2, 256}, {20, 1, 16}};
  int number = 0;
  for (const Layout& layout : layouts) {
    Sequences<T> sequences(random, layout, {1, 64, 65, 200});
    const std::vector<Span> spans = {{0, 0, 1}, {1, 63, 64}, {2, 63, 65}, {3, 197, 200}};
    for (const Arm& arm : ARMS) {
      const auto schedule = sim::Schedule::numbered(number++ % 8);
      const Answer answer = attend(sequences, spans, arm, schedule, number % 3 ? 32 : number % 2 + 1);
      const std::string what = layout.name() + ", " + type_name<T>() + ", " + arm.name() + " under " + schedule.name();
      compare_rows(sequences, spans, answer.out, 10, 2, what);
      CHECK(answer.recomputed == 0, what);
    }
  }
}

TEST(all_layouts_agree_with_float64_in_bf16) { layouts_agree_with_float64<__nv_bfloat16>(); }
TEST(all_layouts_agree_with_float64_in_f16) { layouts_agree_with_float64<__half>(); }
TEST(all_layouts_agree_with_float64_in_f32) { layouts_agree_with_float64<float>(); }

TEST(the_baseline_agrees_with_float64_and_has_the_same_bits_in_every_schedule) {
  Random random(9);
  for (const Layout& layout : {Layout{3, 1, 64}, Layout{4, 2, 18}, Layout{2, 1, 256}}) {
    Sequences<__half> sequences(random, layout, {1, 65, 300});
    const std::vector<Span> spans = {{0, 0, 1}, {1, 63, 65}, {2, 299, 300}};
    Row first;
    for_each_schedule([&](const sim::Schedule& schedule) {
      const Row out = attend_naively(sequences, spans, schedule);
      if (first.empty()) compare_rows(sequences, spans, first = out, 10, 2, layout.name());
      CHECK(same_bits(out, first), layout.name() + " under " + schedule.name());
    });
    CHECK(same_bits(attend_naively(sequences, {{1, 64, 65}}), part(first, 2 * layout.q_width(), layout.q_width())), "alone");
  }
}

TEST(contexts_around_the_borders_of_splits_agree_with_float64) {
  Random random(2);
  const std::vector<int> lens = quick ? std::vector<int>{2049} : std::vector<int>{127, 129, 1000, 2047, 2048, 2049, 2112, 4097};
  Sequences<__half> sequences(random, {2, 1, 16}, lens);
  std::vector<Span> spans;
  for (size_t i = 0; i < lens.size(); i++) spans.push_back({int(i), lens[i] - 1, lens[i]});
  const Answer split = attend(sequences, spans, {});
  for (size_t i = 0; i < lens.size(); i++) {
    const size_t len = lens[i] <= 2048 ? 64 : lens[i] <= 4096 ? 128 : 256, state = 8 * (16 + 2);
    for (size_t part = 0; part < 32; part++)
      CHECK(std::isnan(split.states[(i * 32 + part) * state]) == (part * len >= size_t(lens[i])),
            "splits of " + std::to_string(lens[i]) + " keys");
  }
  Row first;
  for (unsigned sharing : {1u, 2u, 7u, 32u})
    for (const Arm& arm : ARMS) {
      const Answer answer = attend(sequences, spans, arm, sim::Schedule::numbered(sharing % 8), sharing);
      const std::string what = arm.name() + ", shared by " + std::to_string(sharing);
      if (first.empty()) compare_rows(sequences, spans, first = answer.out, 10, 2, what);
      // All weights are within 2^100 of each other, so the arms agree to the bit, whoever merges.
      CHECK(same_bits(answer.out, first), what);
    }
}

TEST(bits_are_the_same_in_every_schedule) {
  Random random(3);
  Sequences<__nv_bfloat16> sequences(random, {12, 1, 24}, {400, 70});
  const std::vector<Span> spans = {{0, 397, 400}, {1, 69, 70}};
  for (const Arm& arm : {Arm{}, Arm{BOUNDED}, Arm{CALIBRATED, 0, -INF, 1}}) {
    Answer first;
    for (unsigned seed : {1u, 2u, 3u})
      for (int number = 0; number < sim::Schedule::COUNT; number++) {
        const auto schedule = sim::Schedule::numbered(number, seed);
        const Answer answer = attend(sequences, spans, arm, schedule, 5);
        if (first.out.empty()) first = answer;
        CHECK(same_bits(answer.out, first.out) && answer.recomputed == first.recomputed, arm.name() + " under " + schedule.name());
      }
    CHECK((first.recomputed > 0) == (arm.arm == CALIBRATED), arm.name());
  }
}

TEST(a_row_has_the_bits_it_has_alone_and_a_prompt_those_of_its_pieces) {
  Random random(4);
  Sequences<__half> sequences(random, {6, 2, 20}, {150, 64, 1, 300});
  const std::vector<Span> batch = {{0, 149, 150}, {1, 0, 64}, {2, 0, 1}, {3, 295, 300}};
  for (const Arm& arm : {Arm{}, Arm{BOUNDED}, Arm{CALIBRATED, 0, -2, 2}}) {
    const Answer together = attend(sequences, batch, arm, sim::Schedule::numbered(2), 1);
    Row alone;
    unsigned recomputed = 0;
    for (const Span& span : batch)
      for (int position = span.begin; position < span.end; position++) {
        const Answer row = attend(sequences, {{span.sequence, position, position + 1}}, arm, {}, 32);
        alone.insert(alone.end(), row.out.begin(), row.out.end());
        recomputed += row.recomputed;
      }
    CHECK(same_bits(together.out, alone), arm.name());
    CHECK(together.recomputed == recomputed, arm.name());
  }
}

TEST(what_lies_behind_a_row_does_not_matter) {
  Random random(5);
  Sequences<float> sequences(random, {3, 1, 32}, {130});
  Sequences<float> longer = sequences;
  for (int position = 100; position < 130; position++)
    for (int i = 3 * 32; i < 5 * 32; i++) longer.row(0, position)[i] = position % 2 ? INF : NOT_A_NUMBER;
  longer.store();
  for (const Arm& arm : ARMS)
    CHECK(same_bits(attend(sequences, {{0, 90, 100}}, arm).out, attend(longer, {{0, 90, 100}}, arm).out), arm.name());
}

template <class T> void stored_rows_are_what_attention_reads() {
  Random random(11);
  const Layout layout{6, 2, 40};
  const std::vector<int> lens = {130, 64, 1};
  Sequences<T> by_hand(random, layout, lens), by_kernel = by_hand;
  std::fill(by_kernel.cache.bytes.begin(), by_kernel.cache.bytes.end(), char(0xff));
  // In two steps, of which the second begins in the middle of a block.
  for (const std::vector<Span>& spans : std::vector<std::vector<Span>>{{{0, 0, 70}, {2, 0, 1}}, {{1, 0, 64}, {0, 70, 130}}}) {
    auto [step, qkv] = step_of(by_kernel, spans);
    const Row angles(1, 0.0f);  // of none
    launch((std::string("rope_kv_store_") + type_name<T>()).c_str(), {dim3(step.rows(), layout.num_kv_heads), 128},
           sim::Schedule::numbered(3), qkv.data(), angles.data(), step.slots.data(),
           static_cast<void*>(by_kernel.cache.bytes.data()), step.rows(), layout.num_heads, layout.num_kv_heads, layout.head_dim, 0, 0);
  }
  for (const Arm& arm : ARMS) {
    const std::vector<Span> last = {{0, 127, 130}, {1, 63, 64}, {2, 0, 1}};
    CHECK(same_bits(attend(by_kernel, last, arm).out, attend(by_hand, last, arm).out), type_name<T>() + (", " + arm.name()));
  }
}

TEST(stored_rows_are_what_attention_reads_in_every_type) {
  stored_rows_are_what_attention_reads<__nv_bfloat16>();
  stored_rows_are_what_attention_reads<__half>();
  stored_rows_are_what_attention_reads<float>();
}

TEST(not_a_number_stays_in_its_row_and_head) {
  Random random(6);
  Sequences<__nv_bfloat16> sequences(random, {4, 2, 16}, {100});
  const Row before = attend(sequences, {{0, 97, 100}}, {}).out;
  sequences.row(0, 98)[16 + 3] = NOT_A_NUMBER;  // query head 1
  for (const Arm& arm : ARMS) {
    const Row out = attend(sequences, {{0, 97, 100}}, arm).out;
    for (int i = 0; i < 3 * 64; i++)
      CHECK(i / 16 == 4 + 1 ? std::isnan(out[i]) : out[i] == before[i], arm.name() + ", element " + std::to_string(i));
  }
}

TEST(hard_scores_agree_with_float64_and_references_that_do_not_fit_are_noticed) {
  int number = 0;
  for (const Hard& hard : hard_cases()) {
    auto sequences = with_scores<float>(hard.len, hard.score, [](int i) { return 1.0f + i % 7; });
    const std::vector<Span> spans = {{0, std::max(0, hard.len - 2), hard.len}};
    const struct {
      Arm arm;
      unsigned expected;
    } runs[] = {{{}, 0},
                {{ONLINE_THRESHOLD}, 0},
                {{BOUNDED}, hard.bounded},
                {{CALIBRATED, 0, -INF, 60}, hard.calibrated},
                {{CALIBRATED, 0, -60, 60}, hard.two_sided}};
    const Row online = attend(sequences, spans, {}).out;
    for (const auto& run : runs) {
      const auto schedule = sim::Schedule::numbered(number++ % 8);
      const Answer answer = attend(sequences, spans, run.arm, schedule, number % 4 ? 32 : 1);
      const std::string what = hard.name + (", " + run.arm.name());
      compare_rows(sequences, spans, answer.out, hard.largest_score, 7, what);
      CHECK(answer.recomputed == run.expected, what + ": " + std::to_string(answer.recomputed) + " computed again");
      // All of a row's heads have the same scores here: what was computed again has the bits of running references.
      if (run.expected == 6) CHECK(same_bits(answer.out, online), what);
      if (run.arm.arm == ONLINE_THRESHOLD) CHECK(same_bits(answer.out, online), what + " is taken for arm 0");
    }
  }
}

TEST(weights_that_could_be_cut_at_the_end_of_the_exponent_are_computed_again) {
  auto sequences = with_scores<float>(90, [](int) { return 0.0f; }, [](int i) { return i / 1024.0f; });
  const std::vector<Span> spans = {{0, 89, 90}};
  const Row online = attend(sequences, spans, {}).out;
  for (float phi : {-118.0f, -120.0f, -126.0f}) {
    const Answer answer = attend(sequences, spans, {CALIBRATED, phi, -INF, 127});
    CHECK(answer.recomputed == (phi < -119 ? 3u : 0u) && same_bits(answer.out, online), "phi " + std::to_string(phi));
  }
}

TEST(sums_of_values_that_overflow_are_computed_again) {
  const float largest = 65504;
  auto sequences = with_scores<__half>(1500, [](int) { return 100.5f; }, [=](int) { return largest; });
  const std::vector<Span> spans = {{0, 1499, 1500}};
  const Answer online = attend(sequences, spans, {}), bounded = attend(sequences, spans, {BOUNDED});
  compare_rows(sequences, spans, online.out, 100, largest, "the largest values");
  CHECK(same_bits(online.out, bounded.out), "finite, and the same");
  auto high = with_scores<float>(1500, [](int) { return 100.5f; }, [](int) { return 1e9f; });
  const Answer again = attend(high, spans, {BOUNDED});
  CHECK(again.recomputed == 3 && same_bits(again.out, attend(high, spans, {}).out), "sums beyond 2^128");
}

TEST(one_unfit_head_of_one_row_is_computed_again_alone) {
  Random random(8);
  Sequences<__half> sequences(random, {6, 2, 64}, {300});
  for (int d = 0; d < 64; d++) sequences.row(0, 297)[4 * 64 + d] *= 100;
  const std::vector<Span> spans = {{0, 295, 300}};
  for (unsigned sharing : {1u, 32u}) {
    const Answer online = attend(sequences, spans, {}, {}, sharing);
    const Answer narrow = attend(sequences, spans, {CALIBRATED, 0, -100, 30}, {}, sharing);
    CHECK(narrow.recomputed == 1 && same_bits(narrow.out, online.out), "one row and head");
  }
}

TEST(arms_have_equal_bits_up_to_a_spread_of_102) {
  const std::function<float(int)> scores[] = {[](int i) { return i % 300 * 0.34f - 51; },
                                              [](int i) { return i * 7919 % 1021 * 0.0999f - 51; }};
  for (const auto& score : scores)
    for (float value : {1.0f, std::exp2(-24.0f)}) {
      auto sequences = with_scores<__half>(330, score, [=](int i) { return value * (1 + i % 3); });
      const std::vector<Span> spans = {{0, 328, 330}};
      const Answer online = attend(sequences, spans, {});
      for (const Arm& arm : {Arm{BOUNDED}, Arm{CALIBRATED, -60, -200, 127}, Arm{CALIBRATED, 51, -200, 127}}) {
        const Answer answer = attend(sequences, spans, arm);
        CHECK(answer.recomputed == 0 && same_bits(answer.out, online.out), arm.name() + ", values around " + std::to_string(value));
      }
    }
}

TEST(scores_are_counted_by_their_floor) {
  Random random(10);
  const Layout layout{4, 2, 24};
  Sequences<__nv_bfloat16> sequences(random, layout, {150, 64});
  for (int d = 0; d < 24; d++) sequences.row(0, 149)[d] *= d % 2 ? 1e5f : 1;
  sequences.row(1, 63)[0] = NOT_A_NUMBER;
  const std::vector<Span> spans = {{0, 140, 150}, {1, 63, 64}};
  const auto [step, qkv] = step_of(sequences, spans);
  constexpr int FLOORS = 2049;
  std::vector<unsigned> expected(2 * 2 * FLOORS, 0);
  const auto count = [&](int kv_head, int which, float x) {
    const float floor = std::isnan(x) ? 1024.0f : std::fmin(std::fmax(std::floor(x), -1024.0f), 1024.0f);
    expected[(2 * kv_head + which) * FLOORS + int(floor) + 1024]++;
  };
  for (const Span& span : spans)
    for (int position = span.begin; position < span.end; position++)
      for (int head = 0; head < layout.num_heads; head++) {
        const int kv_head = head / layout.group(), key_at = (layout.num_heads + kv_head) * layout.head_dim;
        float largest = -INF;
        for (int key = 0; key <= position; key++) {
          float x = 0;
          for (int d = 0; d < layout.head_dim; d++) {
            const float q = sequences.row(span.sequence, position)[head * layout.head_dim + d] * (layout.scale() * LOG2_E);
            x = std::fma(q, sequences.row(span.sequence, key)[key_at + d], x);
          }
          count(kv_head, 0, x);
          largest = std::fmax(x, largest);
        }
        count(kv_head, 1, largest);
      }
  for_each_schedule([&](const sim::Schedule& schedule) {
    std::vector<unsigned> counts(expected.size(), 0);
    launch("observe_scores_bf16", {dim3(step.rows(), layout.num_heads), 128}, schedule, qkv.data(),
           static_cast<void*>(sequences.cache.bytes.data()), step.positions.data(), step.table_starts.data(),
           step.block_tables.data(), counts.data(), layout.num_heads, layout.num_kv_heads, layout.head_dim, layout.scale() * LOG2_E);
    CHECK(counts == expected, schedule.name());
  });
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
