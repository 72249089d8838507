// rope.cu against float64: both kinds of pairs, heads that turn in part, every storage type, rows that begin and end anywhere in a
// block, and bits that depend on no schedule and not on how a sequence was cut into steps.
#include "cache.h"

using namespace check;

namespace {

constexpr int ADJACENT_PAIRS = 0, HALF_SPLIT = 1;

struct Layout {
  int num_heads, num_kv_heads, head_dim, rotary_dim;
  int heads() const { return num_heads + 2 * num_kv_heads; }
  int width() const { return heads() * head_dim; }
  std::string name() const {
    return std::to_string(num_heads) + " heads of " + std::to_string(head_dim) + ", " + std::to_string(rotary_dim) + " turn";
  }
};

std::vector<double> frequencies(int rotary_dim) {
  std::vector<double> inv_freq;
  for (int i = 0; i < rotary_dim / 2; i++) inv_freq.push_back(std::pow(10000.0, -2.0 * i / rotary_dim));
  return inv_freq;
}

Row angles_of(const std::vector<int>& positions, int rotary_dim, float magnitude, const sim::Schedule& schedule) {
  const auto inv_freq = frequencies(rotary_dim);
  Row out(positions.size() * rotary_dim, NOT_A_NUMBER);
  launch("rope_angles", {unsigned(positions.size()), 128}, schedule, positions.data(), inv_freq.data(), out.data(), rotary_dim,
         magnitude);
  return out;
}

// Turns and stores the rows of a step; the turned rows.
template <class T>
Row store(Row qkv, const Step& step, Layout layout, int kind, Cache<T>& cache, const sim::Schedule& schedule) {
  const int rows = step.rows();
  const Row angles = angles_of(step.positions, layout.rotary_dim, 1.25f, schedule);
  launch((std::string("rope_kv_store_") + type_name<T>()).c_str(), {dim3(rows, layout.num_kv_heads), 128}, schedule, qkv.data(),
         angles.data(), step.slots.data(), static_cast<void*>(cache.bytes.data()), rows, layout.num_heads, layout.num_kv_heads,
         layout.head_dim, layout.rotary_dim, kind);
  return qkv;
}

std::vector<double> turned_head(const float* head, int position, Layout layout, int kind) {
  const auto inv_freq = frequencies(layout.rotary_dim);
  std::vector<double> out(head, head + layout.head_dim);
  for (size_t pair = 0; pair < inv_freq.size(); pair++) {
    const size_t i = kind == ADJACENT_PAIRS ? 2 * pair : pair, j = kind == ADJACENT_PAIRS ? i + 1 : i + inv_freq.size();
    const double cos = 1.25 * std::cos(position * inv_freq[pair]), sin = 1.25 * std::sin(position * inv_freq[pair]);
    out[i] = head[i] * cos - head[j] * sin;
    out[j] = head[i] * sin + head[j] * cos;
  }
  return out;
}

TEST(angles_are_rounded_once) {
  const std::vector<int> positions = {0, 1, 63, 1000, 131071};
  for (int rotary_dim : {2, 6, 64, 128, 258}) {
    const auto inv_freq = frequencies(rotary_dim);
    const Row out = angles_of(positions, rotary_dim, 0.75f, sim::Schedule::numbered(rotary_dim % 8));
    for (size_t row = 0; row < positions.size(); row++)
      for (int pair = 0; pair < rotary_dim / 2; pair++) {
        const double angle = positions[row] * inv_freq[pair];
        CHECK(out[row * rotary_dim + pair] == float(std::cos(angle) * 0.75), "cosine");
        CHECK(out[row * rotary_dim + rotary_dim / 2 + pair] == float(std::sin(angle) * 0.75), "sine");
      }
  }
}

template <class T> void rows_are_turned_and_stored(Layout layout, int kind, const sim::Schedule& schedule) {
  const std::string what = layout.name() + ", kind " + std::to_string(kind) + ", " + type_name<T>() + " under " + schedule.name();
  Random random(5);
  // Blocks that lie one after the other, too: then the slots go on over a border.
  const std::vector<std::vector<int>> tables = {{6, 2}, {0}, {3, 4, 5}};
  Cache<T> cache(8, layout.num_kv_heads, layout.head_dim);
  Step step;
  // From the middle of a block over a border, a single row, and a whole block and its neighbours.
  step.add(tables[0], 60, 70);
  step.add(tables[1], 0, 1);
  step.pad();
  step.add(tables[2], 40, 130);
  // What earlier steps left.
  for (int slot = 0; slot < 8 * BLOCK_SIZE; slot++)
    for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head++) cache.key_length(slot, kv_head) = 3.0f;
  const Cache<T> initial = cache;
  const Row before = uniform(random, size_t(step.rows()) * layout.width(), 2);
  const Row after = store(before, step, layout, kind, cache, schedule);

  std::vector<char> untouched(cache.bytes.size(), 1);
  const auto touch = [&](const void* from, size_t bytes) {
    std::fill_n(untouched.begin() + (static_cast<const char*>(from) - cache.bytes.data()), bytes, 0);
  };
  for (int row = 0; row < step.rows(); row++)
    for (int head = 0; head < layout.heads(); head++) {
      const size_t at = (size_t(row) * layout.heads() + head) * layout.head_dim;
      const Row now = part(after, at, layout.head_dim), was = part(before, at, layout.head_dim);
      const int kv_head = (head - layout.num_heads) % layout.num_kv_heads, slot = step.slots[row];
      const bool is_key = head >= layout.num_heads && head < layout.num_heads + layout.num_kv_heads;
      if (slot < 0 || head >= layout.num_heads + layout.num_kv_heads) {
        CHECK(same_bits(was, now), what + ": left alone");
      } else {
        compare(now, turned_head(was.data(), step.positions[row], layout, kind), 1e-6, 1e-6, what);
      }
      if (slot < 0 || head < layout.num_heads) continue;
      const T* const stored = is_key ? cache.key(slot, kv_head) : cache.value(slot, kv_head);
      Row rounded(now);
      std::vector<T> expected_head(layout.head_dim);
      __nv_bfloat16 scale = __float2bfloat16(1.0f);
      store_head(rounded.data(), layout.head_dim, expected_head.data(), &scale);
      for (int d = 0; d < layout.head_dim; d++) CHECK(widened(stored[d]) == widened(expected_head[d]), what + ": stored");
      touch(stored, layout.head_dim * sizeof(T));
      if (SCALED<T>) {
        __nv_bfloat16* const its_scale = cache.scales(slot, kv_head) + (is_key ? 0 : 1);
        CHECK(its_scale->bits == scale.bits, what + ": the scale");
        touch(its_scale, sizeof *its_scale);
      }
      if (!is_key) continue;
      double squares = 0;
      for (float x : rounded) squares += double(x) * x;
      const float length = cache.key_length(slot, kv_head);
      const float so_far = slot % BLOCK_SIZE == 0 ? 0.0f : cache.key_length(slot - 1, kv_head);
      const float expected = std::fmax(float(std::sqrt(squares)), so_far);
      CHECK(std::fabs(length - expected) <= 1e-6f * expected, what + ": the longest key so far");
      touch(&cache.key_length(slot, kv_head), sizeof(float));
    }
  for (size_t i = 0; i < untouched.size(); i++) {
    if (!untouched[i] || cache.bytes[i] == initial.bytes[i]) continue;
    CHECK(false, what + ": a byte that is no row's was written");
    break;
  }
}

TEST(rows_of_all_layouts_are_turned_and_stored) {
  const Layout layouts[] = {{3, 1, 64, 64}, {4, 2, 80, 32}, {2, 2, 18, 6}, {1, 1, 2, 0},
                            {5, 1, 33, 20}, {8, 2, 128, 128}, {1, 1, 256, 256}};
  int number = 0;
  for (const Layout& layout : layouts)
    for (int kind : {ADJACENT_PAIRS, HALF_SPLIT}) {
      rows_are_turned_and_stored<__nv_bfloat16>(layout, kind, sim::Schedule::numbered(number++ % 8));
      rows_are_turned_and_stored<__half>(layout, kind, sim::Schedule::numbered(number++ % 8));
      rows_are_turned_and_stored<float>(layout, kind, sim::Schedule::numbered(number++ % 8));
      if (layout.head_dim % 32 == 0) rows_are_turned_and_stored<__nv_fp8_e4m3>(layout, kind, sim::Schedule::numbered(number % 8));
    }
}

// Largest elements around the borders of scales, and what is not finite.
TEST(a_head_of_e4m3_fills_its_range_and_keeps_what_is_not_a_number) {
  const Layout layout{1, 1, 64, 0};
  for (float largest : {1.0f, 1.75f, 1.7500001f, 1.9999999f, 448.0f, 449.0f, 1e-30f, 0x1p-116f, 0x1p-120f, 0x1p-149f, 0.0f, 1e30f, 3e38f}) {
    for (float odd : {0.0f, NOT_A_NUMBER, INF, -INF}) {
      Cache<__nv_fp8_e4m3> cache(1, 1, 64);
      Step step;
      step.positions = {5}, step.slots = {5}, step.table_starts = {0};
      Row row(3 * 64, largest / 3);
      for (int head : {1, 2}) row[head * 64 + 17] = -largest, row[head * 64 + 40] = odd;
      store(row, step, layout, HALF_SPLIT, cache, {});
      for (int head : {1, 2}) {
        Row expected = part(row, head * 64, 64);
        std::vector<__nv_fp8_e4m3> bytes(64);
        __nv_bfloat16 scale;
        store_head(expected.data(), 64, bytes.data(), &scale);
        const __nv_fp8_e4m3* const stored = head == 1 ? cache.key(5, 0) : cache.value(5, 0);
        const std::string what = "largest " + std::to_string(largest) + ", odd " + std::to_string(odd);
        CHECK(cache.scales(5, 0)[head - 1].bits == scale.bits, what);
        CHECK(std::memcmp(stored, bytes.data(), 64) == 0, what);
        CHECK(std::isnan(float(stored[40])) == (odd != 0), what);
        const float scaled = std::fabs(float(stored[17]));
        CHECK(largest < 0x1p-110f || (scaled >= 224 && scaled <= 448), what);
      }
    }
  }
}

TEST(a_sequence_has_the_same_bits_however_it_is_cut_into_steps_and_in_every_schedule) {
  Random random(6);
  const Layout layout{6, 2, 24, 16};
  const int len = 150;
  const auto tables = block_tables(random, {len, 40});
  const Row qkv = uniform(random, len * layout.width()), other = uniform(random, 40 * layout.width());
  const auto run = [&](const std::vector<int>& cuts, bool batched, const sim::Schedule& schedule) {
    Cache<__nv_bfloat16> cache(8, layout.num_kv_heads, layout.head_dim);
    Row all;
    int begin = 0;
    for (int end : cuts) {
      Step step;
      Row rows;
      if (batched) {
        step.add(tables[1], 0, 40);
        rows = other;
      }
      step.add(tables[0], begin, end);
      rows.insert(rows.end(), qkv.begin() + begin * layout.width(), qkv.begin() + end * layout.width());
      const Row out = store(rows, step, layout, HALF_SPLIT, cache, schedule);
      all.insert(all.end(), out.end() - (end - begin) * layout.width(), out.end());
      begin = end;
    }
    Row bits;
    for (int position = 0; position < len; position++)
      for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head++) {
        const int slot = tables[0][position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE;
        for (int d = 0; d < layout.head_dim; d++) {
          bits.push_back(widened(cache.key(slot, kv_head)[d]));
          bits.push_back(widened(cache.value(slot, kv_head)[d]));
        }
        bits.push_back(cache.key_length(slot, kv_head));
      }
    bits.insert(bits.end(), all.begin(), all.end());
    return bits;
  };
  const Row whole = run({len}, false, {});
  for (bool batched : {false, true})
    for (const std::vector<int>& cuts : std::vector<std::vector<int>>{{len}, {100, 101, len}, {7, 64, 65, 128, 149, len}})
      CHECK(same_bits(run(cuts, batched, {}), whole), std::to_string(cuts.size()) + " steps");
  for_each_schedule([&](const sim::Schedule& schedule) {
    CHECK(same_bits(run({70, len}, true, schedule), whole), schedule.name());
  });
}

TEST(lengths_are_those_of_the_last_owner_up_to_a_place_and_of_numbers_alone) {
  const Layout layout{1, 1, 32, 0};
  Cache<__half> cache(2, 1, 32);
  const auto stored = [&](int slot, float x) {
    Step step;
    step.positions = {slot % BLOCK_SIZE}, step.slots = {slot}, step.table_starts = {0};
    store(Row(3 * 32, x), step, layout, HALF_SPLIT, cache, {});
    return cache.key_length(slot, 0);
  };
  const auto length = [](float x) { return float(std::sqrt(32 * std::pow(double(rounded<__half>(x)), 2))); };
  const auto near = [](float a, float b) { return std::fabs(a - b) <= 1e-6f * b; };
  CHECK(near(stored(64, 1.0003f), length(1.0003f)), "as it was rounded");
  CHECK(near(stored(65, 7.0f), length(7.0f)), "longer");
  CHECK(near(stored(66, 2.0f), length(7.0f)), "the longest so far");
  CHECK(near(stored(65, 3.0f), length(3.0f)), "a place is written anew, after speculation that failed");
  CHECK(near(stored(66, NOT_A_NUMBER), length(3.0f)), "not a number bounds nothing");
  CHECK(near(stored(64, 0.5f), length(0.5f)), "another owner");
  CHECK(stored(65, 1e6f) == INF, "beyond the largest number of float16");
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
