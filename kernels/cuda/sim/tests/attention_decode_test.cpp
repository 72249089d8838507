// attention_decode.cu, and attention_mma.cu with rows as the product left them, bit for bit against the kernels that they join:
// qk_norm, rope_kv_store, and attention_plain or attention_mma; outputs, the whole cache, and how many heads were computed again.
#include "cache.h"

using namespace check;

namespace {

constexpr float LOG2_E = 1.44269504f, EPS = 1e-6f;
constexpr int ONLINE = 0, BOUNDED = 1, CALIBRATED = 2, ONLINE_THRESHOLD = 3;
constexpr int ADJACENT_PAIRS = 0, HALF_SPLIT = 1;

struct Layout {
  int num_heads, num_kv_heads, head_dim, rotary_dim, kind;
  int parts() const { return num_kv_heads * int(divided_up(num_heads / num_kv_heads, 8)); }
  int heads() const { return num_heads + 2 * num_kv_heads; }
  int width() const { return heads() * head_dim; }
  int q_width() const { return num_heads * head_dim; }
  float log2_scale() const { return LOG2_E / std::sqrt(float(head_dim)); }
  std::string name() const {
    return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " heads of " + std::to_string(head_dim);
  }
};

struct Arm {
  int arm = ONLINE;
  float phi = 0, below = -INF, above = INF;
};

// Sequences whose last tokens are a step's rows: the cache has all keys but theirs.
template <class T> struct Decoding {
  Layout layout;
  Step step;
  Row qkv, angles, q_weight, k_weight;
  Cache<T> cache;

  // Rows of nobody stand after the first row and at the end.
  Decoding(Random& random, Layout layout, const std::vector<int>& lens, bool hard = false)
      : layout(layout), cache(num_blocks(lens), layout.num_kv_heads, layout.head_dim) {
    const auto tables = block_tables(random, lens);
    for (size_t i = 0; i < lens.size(); i++) {
      for (int position = 0; position < lens[i] - 1; position++) {
        const bool long_key = hard && position == 40;
        remember(random, tables[i][position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE, long_key ? 1e4f : 1.7f);
      }
      step.add(tables[i], lens[i] - 1, lens[i]);
      if (i == 0) step.pad();
    }
    step.pad();
    qkv = uniform(random, size_t(step.rows()) * layout.width(), 1.7f);
    q_weight = uniform(random, layout.head_dim, 2);
    k_weight = uniform(random, layout.head_dim, 2);
    std::vector<double> inv_freq;
    for (int i = 0; i < layout.rotary_dim / 2; i++) inv_freq.push_back(std::pow(10000.0, -2.0 * i / layout.rotary_dim));
    angles.assign(size_t(step.rows()) * layout.rotary_dim + 1, NOT_A_NUMBER);
    launch("rope_angles", {unsigned(step.rows()), 128}, {}, step.positions.data(), inv_freq.data(), angles.data(), layout.rotary_dim,
           1.0f);
  }
  static int num_blocks(const std::vector<int>& lens) {
    int count = 2;
    for (int len : lens) count += divided_up(len, BLOCK_SIZE);
    return count;
  }
  void remember(Random& random, int slot, float scale) {
    for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head++) {
      double squares = 0;
      if (SCALED<T>) std::fill_n(cache.scales(slot, kv_head), 2, __float2bfloat16(1.0f));
      for (int d = 0; d < layout.head_dim; d++) {
        narrow(random.uniform() * scale, cache.key(slot, kv_head)[d]);
        narrow(random.uniform() * 1.7f, cache.value(slot, kv_head)[d]);
        squares += std::pow(double(widened(cache.key(slot, kv_head)[d])), 2);
      }
      const float before = slot % BLOCK_SIZE == 0 ? 0.0f : cache.key_length(slot - 1, kv_head);
      cache.key_length(slot, kv_head) = std::fmax(before, float(std::sqrt(squares)));
    }
  }
};

// Which kernels attend.
enum class On { PLAIN, TENSOR_CORES };

struct Answer {
  Row out;
  std::vector<char> cache;
  unsigned recomputed = 0;
};

// By the kernels that are joined, or by the one; `sharing` blocks of threads for each row and part of the heads.
template <class T, On ON>
Answer attend(const Decoding<T>& decoding, bool joined, bool normed, const Arm& arm, const sim::Schedule& schedule,
              unsigned sharing) {
  const Layout layout = decoding.layout;
  const Step& step = decoding.step;
  const int rows = step.rows(), parts = layout.parts();
  Cache<T> cache(decoding.cache);
  Row qkv(decoding.qkv), ranges;
  for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head++) ranges.insert(ranges.end(), {arm.phi, arm.below, arm.above});
  Row states(sharing == 1 ? 0 : size_t(rows) * (parts * 8 + layout.num_heads) * 32 * (layout.head_dim + 2), NOT_A_NUMBER);
  std::vector<unsigned> tickets(sharing == 1 ? 0 : rows * parts, 0);
  void* const layer = cache.bytes.data();
  Answer answer;
  answer.out.assign(size_t(rows) * layout.q_width(), NOT_A_NUMBER);
  const std::string type = type_name<T>();
  const auto on_tensor_cores = [&] {
    const unsigned vectors = divided_up(layout.num_heads / layout.num_kv_heads, 16) * 16;
    const unsigned threads = vectors * (layout.head_dim > 128 ? 4 : 2), width = std::min(layout.head_dim, 128);
    const unsigned stages = layout.head_dim > 128 ? 2 : 4;
    const unsigned pieces = SCALED<T> ? stages / 2 : stages, bytes = SCALED<T> ? stages * 64 * (layout.head_dim + 4) : 0;
    const size_t shared =
        128 + 2 * (layout.head_dim + 8) * (64 * pieces + vectors) + bytes + 24 * vectors + 16 * (1 + width / 8) * threads;
    std::vector<int> spans;
    for (int row = 0; row < rows; row++) spans.insert(spans.end(), {row, step.positions[row] < 0 ? 0 : 1});
    launch(("attention_mma_" + type + "_" + std::to_string(layout.head_dim)).c_str(),
           {dim3(rows, layout.num_kv_heads, sharing), threads, shared}, schedule, static_cast<const float*>(qkv.data()),
           joined ? decoding.angles.data() : nullptr, normed ? decoding.q_weight.data() : nullptr,
           normed ? decoding.k_weight.data() : nullptr, layer, spans.data(), step.positions.data(), step.table_starts.data(),
           step.block_tables.data(), ranges.data(), states.data(), tickets.data(), &answer.recomputed, answer.out.data(),
           layout.num_heads, layout.num_kv_heads, 1, layout.rotary_dim, layout.kind, EPS, layout.log2_scale(), arm.arm);
  };
  if (joined && ON == On::TENSOR_CORES) {
    on_tensor_cores();
    CHECK(same_bits(qkv, decoding.qkv), "rows are left as they were");
  } else if (joined) {
    launch(("attention_decode_" + type).c_str(), {dim3(rows, parts, sharing), 128}, schedule,
           static_cast<const float*>(qkv.data()), decoding.angles.data(), normed ? decoding.q_weight.data() : nullptr,
           normed ? decoding.k_weight.data() : nullptr, layer, step.positions.data(), step.table_starts.data(),
           step.block_tables.data(), ranges.data(), states.data(), tickets.data(), &answer.recomputed, answer.out.data(),
           layout.num_heads, layout.num_kv_heads, layout.head_dim, layout.rotary_dim, layout.kind, EPS, layout.log2_scale(),
           arm.arm);
    CHECK(same_bits(qkv, decoding.qkv), "rows are left as they were");
  } else {
    if (normed)
      launch("qk_norm", {dim3(rows, divided_up(layout.num_heads + layout.num_kv_heads, 4)), 128}, schedule, qkv.data(),
             decoding.q_weight.data(), decoding.k_weight.data(), layout.num_heads, layout.num_kv_heads, layout.head_dim, EPS);
    launch(("rope_kv_store_" + type).c_str(), {dim3(rows, layout.num_kv_heads), 128}, schedule, qkv.data(), decoding.angles.data(),
           step.slots.data(), layer, rows, layout.num_heads, layout.num_kv_heads, layout.head_dim, layout.rotary_dim, layout.kind);
    if (ON == On::TENSOR_CORES)
      on_tensor_cores();
    else
      launch(("attention_plain_" + type).c_str(), {dim3(rows, parts, sharing), 128}, schedule, qkv.data(), layer,
             step.positions.data(), step.table_starts.data(), step.block_tables.data(), ranges.data(), states.data(), tickets.data(),
             &answer.recomputed, answer.out.data(), layout.num_heads, layout.num_kv_heads, layout.head_dim, layout.log2_scale(),
             arm.arm);
  }
  for (unsigned left : tickets) CHECK(left == 0, "tickets are ready for the next launch");
  answer.cache = cache.bytes;
  return answer;
}

template <class T, On ON = On::PLAIN>
unsigned compare_both(const Decoding<T>& decoding, bool normed, const Arm& arm, const sim::Schedule& schedule, unsigned sharing) {
  const Answer apart = attend<T, ON>(decoding, false, normed, arm, {}, sharing);
  const Answer together = attend<T, ON>(decoding, true, normed, arm, schedule, sharing);
  const std::string what = decoding.layout.name() + ", " + type_name<T>() + ", arm " + std::to_string(arm.arm) +
                           (normed ? ", norm" : "") + ", shared by " + std::to_string(sharing) + " under " + schedule.name();
  CHECK(same_bits(together.out, apart.out), what);
  CHECK(together.cache == apart.cache, what + ": the cache");
  CHECK(together.cache != decoding.cache.bytes, what + ": the cache was written");
  CHECK(together.recomputed == apart.recomputed, what + ": computed again");
  return together.recomputed;
}

const Arm ARMS[] = {{}, {BOUNDED}, {ONLINE_THRESHOLD}, {CALIBRATED, 2, -INF, 60}, {CALIBRATED, 0, -INF, 1}, {CALIBRATED, 0, -2, 2}};

template <class T> void all_layouts() {
  Random random(1);
  const Layout layouts[] = {{3, 1, 64, 64, HALF_SPLIT},  {4, 2, 18, 6, ADJACENT_PAIRS}, {8, 1, 128, 128, HALF_SPLIT},
                            {1, 1, 2, 0, ADJACENT_PAIRS}, {9, 1, 33, 20, HALF_SPLIT},    {2, 2, 256, 64, ADJACENT_PAIRS},
                            {20, 1, 16, 16, HALF_SPLIT}};
  unsigned number = 0;
  for (const Layout& layout : layouts) {
    // A sequence's first token; the second; the last and the first place of a block; and more splits than blocks share a row.
    const Decoding<T> decoding(random, layout, {65, 1, 2, 64, 200});
    for (const Arm& arm : ARMS)
      for (bool normed : {false, true}) {
        const unsigned sharing[] = {1, 2, 32, 3};
        compare_both(decoding, normed, arm, sim::Schedule::numbered(number % 8), sharing[number / 2 % 4]);
        number++;
      }
  }
}

TEST(all_layouts_have_the_bits_of_the_kernels_that_are_joined_in_bf16) { all_layouts<__nv_bfloat16>(); }
TEST(all_layouts_have_the_bits_of_the_kernels_that_are_joined_in_f16) { all_layouts<__half>(); }
TEST(all_layouts_have_the_bits_of_the_kernels_that_are_joined_in_f32) { all_layouts<float>(); }

template <class T> void all_layouts_on_tensor_cores() {
  Random random(6);
  const Layout layouts[] = {{3, 1, 64, 64, HALF_SPLIT}, {6, 2, 96, 40, ADJACENT_PAIRS}, {17, 1, 128, 128, HALF_SPLIT},
                            {1, 1, 64, 0, HALF_SPLIT},  {4, 2, 256, 64, ADJACENT_PAIRS}, {40, 1, 64, 64, ADJACENT_PAIRS}};
  unsigned number = 0, recomputed = 0;
  for (const Layout& layout : layouts) {
    if (quick && number > 15) break;
    const Decoding<T> decoding(random, layout, {65, 1, 2, 64, 200}, number % 2 == 0);
    for (const Arm& arm : ARMS) {
      const unsigned sharing[] = {1, 2, 32, 3};
      recomputed += compare_both<T, On::TENSOR_CORES>(decoding, number % 2, arm, sim::Schedule::numbered(number % 8), sharing[number % 4]);
      number++;
    }
  }
  CHECK((recomputed > 0) == !(std::is_same<T, __half>::value), "some under references of float32's range are computed again");
}

TEST(tensor_cores_too_have_the_bits_of_the_kernels_that_are_joined_in_bf16) { all_layouts_on_tensor_cores<__nv_bfloat16>(); }
TEST(tensor_cores_too_have_the_bits_of_the_kernels_that_are_joined_in_f16) { all_layouts_on_tensor_cores<__half>(); }

TEST(tensor_cores_too_have_the_bits_of_the_kernels_that_are_joined_in_e4m3) { all_layouts_on_tensor_cores<__nv_fp8_e4m3>(); }

TEST(contexts_around_the_borders_of_splits_have_them_too) {
  Random random(2);
  const std::vector<int> lens = quick ? std::vector<int>{2049} : std::vector<int>{127, 128, 129, 1000, 2048, 2049, 2112, 4097};
  const Decoding<__half> decoding(random, {2, 1, 16, 16, HALF_SPLIT}, lens);
  for (unsigned sharing : {1u, 2u, 7u, 32u})
    for (const Arm& arm : {Arm{}, Arm{BOUNDED}, Arm{CALIBRATED, 0, -INF, 1}})
      compare_both(decoding, false, arm, sim::Schedule::numbered(sharing % 8), sharing);
}

TEST(rows_that_are_computed_again_see_their_own_key) {
  Random random(3);
  const Decoding<float> decoding(random, {12, 1, 24, 24, ADJACENT_PAIRS}, {130, 65, 64}, true);
  unsigned bounded = 0, calibrated = 0;
  for (unsigned sharing : {1u, 2u, 32u})
    for (int number = 0; number < sim::Schedule::COUNT; number++) {
      bounded += compare_both(decoding, false, {BOUNDED}, sim::Schedule::numbered(number), sharing);
      calibrated += compare_both(decoding, true, {CALIBRATED, 0, -INF, 1}, sim::Schedule::numbered(number), sharing);
    }
  CHECK(bounded > 0 && calibrated > 0, "some are");
}

TEST(a_key_that_is_not_a_number_bounds_nothing) {
  Random random(4);
  Decoding<__half> decoding(random, {2, 1, 32, 32, HALF_SPLIT}, {70, 65});
  for (int d = 0; d < 32; d++) decoding.qkv[2 * 32 + d] = d % 2 ? INF : NOT_A_NUMBER;
  const Answer apart = attend<__half, On::PLAIN>(decoding, false, false, {BOUNDED}, {}, 2);
  const Answer together = attend<__half, On::PLAIN>(decoding, true, false, {BOUNDED}, {}, 2);
  Cache<__half> cache(decoding.cache), expected(decoding.cache);
  cache.bytes = together.cache;
  expected.bytes = apart.cache;
  CHECK(cache.key_length(decoding.step.slots[0], 0) == expected.key_length(decoding.step.slots[0], 0), "the length so far");
  for (size_t i = 0; i < apart.out.size(); i++)
    CHECK(apart.out[i] == together.out[i] || (std::isnan(apart.out[i]) && std::isnan(together.out[i])),
          "element " + std::to_string(i));
}

TEST(bits_are_the_same_in_every_schedule) {
  Random random(5);
  const Decoding<__nv_bfloat16> decoding(random, {12, 1, 24, 24, HALF_SPLIT}, {400, 70});
  for (unsigned seed : {1u, 2u})
    for (int number = 0; number < sim::Schedule::COUNT; number++)
      for (const Arm& arm : {Arm{}, Arm{BOUNDED}}) compare_both(decoding, true, arm, sim::Schedule::numbered(number, seed), 5);
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
