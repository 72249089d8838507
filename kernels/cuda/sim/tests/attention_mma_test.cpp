// attention_mma.cu against float64: every type, head size and form, contexts around the borders of tiles and splits, scores that are
// hard on a softmax, references that do not fit, what is not a number behind a row and in it; and bits that depend on no schedule,
// no other row, not on how a tile is cut nor on how many blocks of threads share it: a prompt's are those of decoding.
#include "sequences.h"

using namespace check;

namespace {

// How a step is launched: threads of a block, blocks of threads for each tile, and the most rows of a tile.
struct Form {
  unsigned threads = 32, sharing = 1;
  int rows = 1;
  std::string name() const {
    return std::to_string(threads) + " threads, " + std::to_string(sharing) + " blocks, " + std::to_string(rows) + " rows";
  }
};
constexpr int ANY = 1 << 20;
const Form DECODE{32, 32, 1}, PROMPT{128, 1, ANY};

struct Answer {
  Row out;
  unsigned recomputed = 0;
};

// Threads that have 16 vectors.
unsigned least_threads(const Layout& layout) { return layout.head_dim > 128 ? 64 : 32; }

// Of each row, the first row and the number of rows of its span.
std::vector<int> rows_of_spans(const std::vector<Span>& spans) {
  std::vector<int> table;
  int first = 0;
  for (const Span& span : spans) {
    const int rows = span.end - span.begin;
    for (int row = 0; row < rows; row++) table.insert(table.end(), {first, rows});
    first += rows;
  }
  table.insert(table.end(), {first, 0});  // nobody's row
  return table;
}

template <class T>
Answer attend(Sequences<T>& sequences, const std::vector<Span>& spans, const Arm& arm, Form form, const sim::Schedule& schedule = {}) {
  const Layout layout = sequences.layout;
  form.threads = std::max(form.threads, least_threads(layout));
  const auto [step, qkv] = step_of(sequences, spans);
  const std::vector<int> table = rows_of_spans(spans);
  const int rows = step.rows(), vectors = form.threads / least_threads(layout) * 16;
  const int tile_rows = std::min(form.rows, vectors / std::min(layout.group(), vectors));
  const int parts = layout.num_kv_heads * divided_up(layout.group(), std::min(layout.group(), vectors));
  const int stages = layout.head_dim > 128 ? 2 : 4;
  const int sums = 16 * (1 + std::min(layout.head_dim, 128) / 8) * form.threads;
  const int pieces = SCALED<T> ? stages / 2 : stages, bytes = SCALED<T> ? stages * 64 * (layout.head_dim + 4) : 0;
  const size_t shared = 128 + 2 * (layout.head_dim + 8) * (64 * pieces + vectors) + bytes + 24 * vectors + sums;
  Row ranges;
  for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head++) ranges.insert(ranges.end(), {arm.phi, arm.below, arm.above});
  std::vector<unsigned> tickets(form.sharing == 1 ? 0 : rows * parts, 0);
  Row states(form.sharing == 1 ? 0 : size_t(rows) * layout.num_heads * 32 * (layout.head_dim + 2), NOT_A_NUMBER);
  Answer answer;
  answer.out.assign(size_t(rows) * layout.q_width(), NOT_A_NUMBER);
  const std::string kernel = std::string("attention_mma_") + type_name<T>() + "_" + std::to_string(layout.head_dim);
  const float* const none = nullptr;
  launch(kernel.c_str(), {dim3(rows, parts, form.sharing), form.threads, shared}, schedule, qkv.data(), none, none, none,
         static_cast<void*>(sequences.cache.bytes.data()), table.data(), step.positions.data(), step.table_starts.data(),
         step.block_tables.data(), ranges.data(), states.data(), tickets.data(), &answer.recomputed, answer.out.data(),
         layout.num_heads, layout.num_kv_heads, tile_rows, 0, 0, 0.0f, layout.scale() * LOG2_E, arm.arm);
  for (unsigned left : tickets) CHECK(left == 0, "tickets are ready for the next launch");
  for (size_t i = size_t(rows - 1) * layout.q_width(); i < answer.out.size(); i++)
    CHECK(std::isnan(answer.out[i]), "nobody's row is left alone");
  answer.out.resize(size_t(rows - 1) * layout.q_width());
  return answer;
}

// Each row in a launch of its own.
template <class T> Answer alone(Sequences<T>& sequences, const std::vector<Span>& spans, const Arm& arm, const Form& form) {
  Answer all;
  for (const Span& span : spans)
    for (int position = span.begin; position < span.end; position++) {
      const Answer row = attend(sequences, {{span.sequence, position, position + 1}}, arm, form, sim::Schedule::numbered(position % 8));
      all.out.insert(all.out.end(), row.out.begin(), row.out.end());
      all.recomputed += row.recomputed;
    }
  return all;
}

// Queries rounded to the type of the products, so that float64 has the scores that the kernel should have.
template <class T> Sequences<T> with_rounded_queries(Sequences<T> sequences) {
  for (int sequence = 0; sequence < int(sequences.qkv.size()); sequence++)
    for (int position = 0; position < sequences.len(sequence); position++)
      for (int i = 0; i < sequences.layout.q_width(); i++)
        sequences.row(sequence, position)[i] = rounded<QueryType<T>>(sequences.row(sequence, position)[i]);
  return sequences;
}

// The largest relative error of a weight.
template <class T> double rounding();
template <> double rounding<__nv_bfloat16>() { return 1.0 / 512; }
template <> double rounding<__half>() { return 1.0 / 4096; }
template <> double rounding<__nv_fp8_e4m3>() { return rounding<__nv_bfloat16>(); }

// Values of at most `size`. An answer is a mean of them by weights that are rounded, so off by twice the rounding at worst.
template <class T>
void compare_rows(Sequences<T>& sequences, const std::vector<Span>& spans, const Row& out, double largest_score, double size,
                  const std::string& what) {
  size_t at = 0;
  for (const Span& span : spans)
    for (int position = span.begin; position < span.end; position++, at += sequences.layout.q_width())
      compare(part(out, at, sequences.layout.q_width()), reference(sequences, span.sequence, position),
              (2 * rounding<T>() + 2e-6 * largest_score) * size, 0,
              what + ", position " + std::to_string(position) + " of sequence " + std::to_string(span.sequence));
}

// The same bits, or not a number on both sides.
bool same_answers(const Row& a, const Row& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i++)
    if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

template <class T> void layouts_agree_with_float64() {
  Random random(1);
  const Layout all[] = {{4, 1, 64}, {1, 1, 64}, {6, 2, 96}, {17, 1, 64}, {5, 1, 128}, {2, 1, 256}, {71, 1, 64}};
  const Form forms[] = {DECODE, {32, 1, ANY}, PROMPT, {128, 3, ANY}, {64, 2, 3}};
  int number = 0;
  for (const Layout& layout : all) {
    if (quick && number > 3) break;
    auto sequences = with_rounded_queries(Sequences<T>(random, layout, {1, 63, 64, 65, 200}));
    const std::vector<Span> spans = {{0, 0, 1}, {1, 60, 63}, {2, 0, quick ? 20 : 64}, {3, 63, 65}, {4, 121, quick ? 140 : 200}};
    Row first;
    for (const Form& form : forms) {
      const Answer answer = attend(sequences, spans, {number % 3}, form, sim::Schedule::numbered(number % 8));
      const std::string what = layout.name() + ", " + form.name();
      if (first.empty()) compare_rows(sequences, spans, first = answer.out, 10, 2, what);
      CHECK(same_bits(answer.out, first), what);
      CHECK(number % 3 == 2 || answer.recomputed == 0, what);
      number++;
    }
  }
}

TEST(all_layouts_and_forms_agree_with_float64_in_bf16) { layouts_agree_with_float64<__nv_bfloat16>(); }
TEST(all_layouts_and_forms_agree_with_float64_in_f16) { layouts_agree_with_float64<__half>(); }
TEST(all_layouts_and_forms_agree_with_float64_in_e4m3) { layouts_agree_with_float64<__nv_fp8_e4m3>(); }

template <class T> void contexts_around_borders() {
  Random random(2);
  const std::vector<int> lens = quick ? std::vector<int>{2049} : std::vector<int>{127, 128, 129, 2047, 2048, 2049, 4097};
  auto sequences = with_rounded_queries(Sequences<T>(random, {2, 1, 64}, lens));
  std::vector<Span> spans;
  for (size_t i = 0; i < lens.size(); i++) spans.push_back({int(i), lens[i] - 1, lens[i]});
  Row first;
  for (unsigned sharing : {32u, 1u, 7u})
    for (const Arm& arm : {Arm{}, Arm{BOUNDED}, Arm{CALIBRATED, 2, -INF, 60}}) {
      const Answer answer = attend(sequences, spans, arm, {32, sharing, 1}, sim::Schedule::numbered(sharing % 8));
      const std::string what = arm.name() + ", shared by " + std::to_string(sharing);
      if (first.empty()) compare_rows(sequences, spans, first = answer.out, 10, 2, what);
      CHECK(same_bits(answer.out, first), what);
    }
}

TEST(contexts_around_the_borders_of_splits_agree_with_float64_and_among_arms) {
  contexts_around_borders<__nv_bfloat16>();
  contexts_around_borders<__half>();
}

template <class T> void a_prompt_has_the_bits_of_decoding(const Layout& layout) {
  Random random(3);
  Sequences<T> sequences(random, layout, {200, 2056});
  // Over the end of a block, and over where splits become longer: rows of a tile differ in the length of their splits.
  const bool few = quick || layout.head_dim > 64;
  const std::vector<Span> spans = {{0, 50, few ? 66 : 130}, {1, few ? 2047 : 2040, few ? 2050 : 2056}};
  for (const Arm& arm : {Arm{}, Arm{BOUNDED}, Arm{ONLINE_THRESHOLD}, Arm{CALIBRATED, 0, -INF, 2.5}}) {
    const Answer one_by_one = alone(sequences, spans, arm, DECODE);
    for (const Form& form : {PROMPT, Form{128, 3, ANY}, Form{32, 1, ANY}, Form{64, 1, 5}}) {
      const Answer together = attend(sequences, spans, arm, form, sim::Schedule::numbered(arm.arm + 2));
      const std::string what = std::string(type_name<T>()) + ", " + layout.name() + ", " + arm.name() + ", " + form.name();
      CHECK(same_bits(together.out, one_by_one.out), what);
      CHECK(together.recomputed == one_by_one.recomputed, what);
      if (few && form.threads == 32) break;
    }
  }
}

TEST(a_prompt_has_the_bits_of_decoding_row_by_row) {
  a_prompt_has_the_bits_of_decoding<__nv_bfloat16>({3, 1, 64});
  a_prompt_has_the_bits_of_decoding<__half>({4, 2, 64});
  if (quick) return;
  a_prompt_has_the_bits_of_decoding<__nv_bfloat16>({4, 1, 96});
  a_prompt_has_the_bits_of_decoding<__nv_bfloat16>({4, 1, 128});
  a_prompt_has_the_bits_of_decoding<__nv_bfloat16>({2, 1, 256});
  a_prompt_has_the_bits_of_decoding<__half>({1, 1, 256});
}

TEST(bits_are_the_same_in_every_schedule) {
  Random random(4);
  Sequences<__nv_bfloat16> sequences(random, {5, 1, 64}, {400, 70});
  const std::vector<Span> spans = {{0, 380, 400}, {1, 69, 70}};
  for (const Arm& arm : {Arm{}, Arm{BOUNDED}, Arm{ONLINE_THRESHOLD}, Arm{CALIBRATED, 0, -INF, 2}})
    for (const Form& form : {PROMPT, Form{32, 5, ANY}}) {
      Answer first;
      for (unsigned seed : {1u, 2u}) {
        for (int number = 0; number < sim::Schedule::COUNT; number++) {
          const auto schedule = sim::Schedule::numbered(number, seed);
          const Answer answer = attend(sequences, spans, arm, form, schedule);
          if (first.out.empty()) first = answer;
          CHECK(same_bits(answer.out, first.out) && answer.recomputed == first.recomputed, arm.name() + " under " + schedule.name());
        }
        if (quick) break;
      }
      CHECK((first.recomputed > 0) == (arm.arm == CALIBRATED), arm.name());
    }
}

template <class T> void what_lies_behind_a_row_does_not_matter() {
  Random random(5);
  for (int head_dim : {64, 256}) {
    Sequences<T> sequences(random, {3, 1, head_dim}, {130});
    Sequences<T> spoiled = sequences;
    for (int position : {100, 107, 129}) {
      spoiled.row(0, position)[3 * head_dim + 5] = INF;
      spoiled.row(0, position)[4 * head_dim + position % 64] = position == 107 ? NOT_A_NUMBER : -INF;
    }
    spoiled.store();
    const std::vector<Span> spans = {{0, 92, 112}};
    const size_t before = size_t(8) * 3 * head_dim;  // of rows that see none of them
    for (const Arm& arm : {Arm{}, Arm{BOUNDED}, Arm{CALIBRATED, 0, -INF, 2.5}}) {
      const Answer clean = attend(sequences, spans, arm, PROMPT), one_by_one = alone(spoiled, spans, arm, DECODE);
      CHECK(same_bits(part(clean.out, 0, before), part(one_by_one.out, 0, before)), arm.name());
      CHECK(std::isnan(one_by_one.out[before + 100 % 64]), arm.name());
      for (const Form& form : {PROMPT, Form{64, 2, 4}, Form{32, 1, ANY}}) {
        const Answer answer = attend(spoiled, spans, arm, form, sim::Schedule::numbered(3));
        CHECK(same_answers(answer.out, one_by_one.out), arm.name() + ", " + form.name());
        CHECK(answer.recomputed == one_by_one.recomputed, arm.name() + ", " + form.name());
      }
    }
  }
}

TEST(what_lies_behind_a_row_does_not_matter_not_even_in_its_own_tile) {
  what_lies_behind_a_row_does_not_matter<__nv_bfloat16>();
  what_lies_behind_a_row_does_not_matter<__nv_fp8_e4m3>();
}

// Rows over whole tiles and parts of one, sizes of heads of all magnitudes.
TEST(e4m3_has_the_bits_of_a_bf16_cache_that_holds_the_same_numbers) {
  Random random(9);
  for (const Layout& layout : {Layout{4, 1, 64}, Layout{3, 1, 96}, Layout{10, 2, 128}, Layout{3, 1, 256}}) {
    Sequences<__nv_fp8_e4m3> bytes(random, layout, {2100});
    for (int position = 0; position < 2100; position++)
      for (int head = 0; head < 2 * layout.num_kv_heads; head++) {
        float* const of_head = bytes.row(0, position) + (layout.num_heads + head) * layout.head_dim;
        for (int d = 0; d < layout.head_dim; d++) of_head[d] *= std::ldexp(1.0f, position % 9 - 6 - d % 20);
      }
    bytes.store();
    Sequences<__nv_bfloat16> same(random, layout, {2100});
    same.tables = bytes.tables;
    same.qkv = bytes.qkv;
    same.store();
    CHECK(same_bits(same.qkv[0], bytes.qkv[0]), "bf16 holds what e4m3 does");
    const std::vector<Span> spans = {{0, 60, 66}, {0, 2097, 2100}};
    for (const Arm& arm : {Arm{}, Arm{BOUNDED}, Arm{ONLINE_THRESHOLD}, Arm{CALIBRATED, 0, -INF, 2.5}})
      for (const Form& form : {DECODE, PROMPT, Form{64, 2, 3}}) {
        const Answer of_bytes = attend(bytes, spans, arm, form, sim::Schedule::numbered(arm.arm + 1));
        const Answer expected = attend(same, spans, arm, form);
        CHECK(same_bits(of_bytes.out, expected.out), layout.name() + ", " + arm.name() + ", " + form.name());
        CHECK(of_bytes.recomputed == expected.recomputed, layout.name() + ", " + arm.name());
      }
    if (quick) break;
  }
}

// A row that sees one key has its value for an answer, times and over a weight of less than 2.
TEST(all_codes_of_e4m3_are_read_under_all_scales) {
  Random random(10);
  Sequences<__nv_fp8_e4m3> sequences(random, {1, 1, 256}, {1});
  const int slot = sequences.tables[0][0] * BLOCK_SIZE;
  for (int exponent : {-124, -100, -9, 0, 7, 8, 100, 118}) {
    for (bool all_finite : {false, true}) {
      const float scale = std::ldexp(1.0f, exponent);
      sequences.cache.scales(slot, 0)[1] = __float2bfloat16(all_finite ? scale : -scale);
      for (int i = 0; i < 256; i++) sequences.cache.value(slot, 0)[i].__x = uint8_t(all_finite && i % 128 == 127 ? 0 : i);
      const Row out = attend(sequences, {{0, 0, 1}}, {}, DECODE).out;
      for (int i = 0; i < 256; i++) {
        const float expected = float(sequences.cache.value(slot, 0)[i]) * scale;
        CHECK(std::isnan(expected) ? std::isnan(out[i]) : out[i] == expected,
              "code " + std::to_string(i) + " under 2^" + std::to_string(exponent) + ": " + std::to_string(out[i]));
      }
    }
  }
}

template <class T> void not_a_number_stays_in_its_row_and_head() {
  Random random(6);
  for (float bad : {NOT_A_NUMBER, INF}) {
    Sequences<T> sequences(random, {4, 2, 64}, {100});
    const Row before = attend(sequences, {{0, 97, 100}}, {}, PROMPT).out;
    sequences.row(0, 98)[64 + 3] = bad;  // query head 1
    for (const Form& form : {PROMPT, DECODE}) {
      const Row out = attend(sequences, {{0, 97, 100}}, {}, form).out;
      for (int i = 0; i < 3 * 256; i++)
        CHECK(i / 64 == 4 + 1 ? std::isnan(out[i]) : out[i] == before[i], form.name() + ", element " + std::to_string(i));
    }
  }
}

TEST(not_a_number_stays_in_its_row_and_head) {
  not_a_number_stays_in_its_row_and_head<__half>();
  not_a_number_stays_in_its_row_and_head<__nv_fp8_e4m3>();
}

TEST(queries_of_any_size_fit_into_f16) {
  Random random(7);
  for (float size : {1e-30f, 1e-4f, 1e5f, 1e30f}) {
    Sequences<__half> sequences(random, {2, 1, 64}, {70});
    Row usual;
    for (float by : {1.0f, size}) {
      for (int i = 0; i < 128; i++) sequences.row(0, 69)[i] *= by;
      const Answer answer = attend(sequences, {{0, 69, 70}}, {}, DECODE);
      for (float x : answer.out) CHECK(std::fabs(x) <= 2, "a mean of values, queries of " + std::to_string(by));
      if (by == 1) usual = answer.out;
      else CHECK(!same_bits(usual, answer.out), "queries of " + std::to_string(by));
    }
  }
}

TEST(hard_scores_agree_with_float64_and_references_that_do_not_fit_are_noticed) {
  int number = 0;
  for (const Hard& hard : hard_cases()) {
    auto sequences = with_scores<__nv_bfloat16>(hard.len, hard.score, [](int i) { return 1.0f + i % 7; });
    const std::vector<Span> spans = {{0, std::max(0, hard.len - 2), hard.len}};
    const struct {
      Arm arm;
      unsigned expected;
    } runs[] = {{{}, 0},
                {{ONLINE_THRESHOLD}, 0},
                {{BOUNDED}, hard.bounded},
                {{CALIBRATED, 0, -INF, 60}, hard.calibrated},
                {{CALIBRATED, 0, -60, 60}, hard.two_sided}};
    const Row online = attend(sequences, spans, {}, DECODE).out;
    for (const auto& run : runs) {
      const auto schedule = sim::Schedule::numbered(number++ % 8);
      const Answer answer = attend(sequences, spans, run.arm, number % 4 ? DECODE : PROMPT, schedule);
      const std::string what = hard.name + (", " + run.arm.name());
      compare_rows(sequences, spans, answer.out, hard.largest_score, 7, what);
      CHECK(answer.recomputed == run.expected, what + ": " + std::to_string(answer.recomputed) + " computed again");
      if (run.expected == 6) CHECK(same_bits(answer.out, online), what);
    }
    auto in_f16 = with_scores<__half>(hard.len, hard.score, [](int i) { return 1.0f + i % 7; });
    const Answer answer = attend(in_f16, spans, {BOUNDED}, PROMPT);
    compare_rows(in_f16, spans, answer.out, hard.largest_score, 7, hard.name);
    CHECK(answer.recomputed == 0, hard.name);
  }
}

TEST(weights_that_could_be_cut_at_the_end_of_the_exponent_are_computed_again) {
  auto sequences = with_scores<__nv_bfloat16>(90, [](int) { return 0.0f; }, [](int i) { return i / 1024.0f; });
  const std::vector<Span> spans = {{0, 89, 90}};
  const Row online = attend(sequences, spans, {}, DECODE).out;
  for (float phi : {-118.0f, -120.0f, -126.0f}) {
    const Answer answer = attend(sequences, spans, {CALIBRATED, phi, -INF, 127}, DECODE);
    CHECK(answer.recomputed == (phi < -119 ? 3u : 0u) && same_bits(answer.out, online), "phi " + std::to_string(phi));
  }
}

TEST(sums_of_values_that_overflow_are_computed_again) {
  auto high = with_scores<__nv_bfloat16>(1500, [](int) { return 100.5f; }, [](int) { return 1e9f; });
  const std::vector<Span> spans = {{0, 1498, 1500}};
  for (const Form& form : {DECODE, PROMPT}) {
    const Answer again = attend(high, spans, {BOUNDED}, form);
    CHECK(again.recomputed == 6 && same_bits(again.out, attend(high, spans, {}, form).out), "sums beyond 2^128");
  }
}

TEST(one_unfit_head_of_one_row_is_computed_again_alone) {
  Random random(8);
  Sequences<__nv_bfloat16> sequences(random, {6, 2, 64}, {300});
  for (int d = 0; d < 64; d++) sequences.row(0, 297)[4 * 64 + d] *= 100;
  const std::vector<Span> spans = {{0, 295, 300}};
  for (const Form& form : {DECODE, PROMPT}) {
    const Answer online = attend(sequences, spans, {}, form);
    const Answer narrow = attend(sequences, spans, {CALIBRATED, 0, -100, 30}, form);
    CHECK(narrow.recomputed == 1 && same_bits(narrow.out, online.out), "one row and head");
  }
}

TEST(arms_have_equal_bits_up_to_a_spread_of_102) {
  const std::function<float(int)> scores[] = {[](int i) { return i % 300 * 0.34f - 51; },
                                              [](int i) { return i * 7919 % 1021 * 0.0999f - 51; }};
  for (const auto& score : scores)
    for (float value : {1.0f, std::exp2(-24.0f)}) {
      auto sequences = with_scores<__nv_bfloat16>(330, score, [=](int i) { return value * (1 + i % 3); });
      const std::vector<Span> spans = {{0, 328, 330}};
      const Answer online = attend(sequences, spans, {}, DECODE);
      for (const Arm& arm : {Arm{BOUNDED}, Arm{ONLINE_THRESHOLD}, Arm{CALIBRATED, -60, -200, 127}, Arm{CALIBRATED, 51, -200, 127}}) {
        const Answer answer = attend(sequences, spans, arm, PROMPT);
        CHECK(answer.recomputed == 0 && same_bits(answer.out, online.out), arm.name() + ", values around " + std::to_string(value));
      }
    }
}

// Scores of key i, in tiles of 64 keys; the last rows' splits have four of them.
struct Late {
  const char* name;
  std::function<float(int)> score;
  float largest_score;
};

std::vector<Late> late_cases() {
  return {
      {"rising by 3 a tile", [](int i) { return i / 64 * 3 - 99.0f; }, 99},
      {"rising by 8 a tile", [](int i) { return i / 64 % 8 * 8 - 30.0f; }, 30},
      {"rising by 9 a tile", [](int i) { return i / 64 % 8 * 9 - 30.0f; }, 40},
      {"rising by 20 a tile", [](int i) { return i / 64 % 4 * 20 - 30.0f; }, 30},
      {"rising by a little a key", [](int i) { return i % 256 / 20.0f; }, 13},
      {"falling by 5 a tile", [](int i) { return 20 - i / 64 % 8 * 5.0f; }, 20},
      {"alternating", [](int i) { return i % 2 ? 4.5f : -4.5f; }, 5},
      {"one hot", [](int i) { return i == 4150 ? 59.0f : -20.0f; }, 59},
      {"all equal", [](int) { return 4.0f; }, 4},
      {"a tile of each split masked", [](int i) { return i / 64 % 4 == 2 ? -INF : i % 5; }, 5},
      {"the first tiles of each split masked", [](int i) { return i / 64 % 4 < 2 ? -INF : i % 256 / 20.0f; }, 13},
  };
}

TEST(references_that_are_raised_late_have_the_bits_of_running_ones) {
  constexpr int LEN = 4200;
  const std::vector<Span> spans = {{0, LEN - 2, LEN}};
  const auto value = [](int i) { return 1.0f + i % 7; };
  const Arm late{ONLINE_THRESHOLD};
  int number = 0;
  for (const Late& scores : late_cases()) {
    number++;
    if (quick && number % 3 != 0) continue;
    auto in_bf16 = with_scores<__nv_bfloat16>(LEN, scores.score, value);
    const Row online = attend(in_bf16, spans, {}, DECODE).out;
    for (const Form& form : {DECODE, PROMPT}) {
      const Answer answer = attend(in_bf16, spans, late, form, sim::Schedule::numbered(number % 8));
      CHECK(same_bits(answer.out, online) && answer.recomputed == 0, std::string(scores.name) + ", " + form.name());
    }
    compare_rows(in_bf16, spans, online, scores.largest_score, 7, scores.name);
    auto in_f16 = with_scores<__half>(LEN, scores.score, value);
    CHECK(same_bits(attend(in_f16, spans, late, DECODE).out, attend(in_f16, spans, {}, DECODE).out), scores.name);
  }
  auto masked = with_scores<__nv_bfloat16>(LEN, [](int) { return -INF; }, value);
  for (float x : attend(masked, spans, late, DECODE).out) CHECK(x == 0, "all masked");
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
