// rows.cu: rows of every weight type that is left in rows decoded to the bit, gathered rows, SwiGLU's middle against float64, sums,
// and copies of blocks that touch nothing else.
#include "weights.h"

using namespace check;

namespace {

TEST(embedding_rows_are_decoded_to_the_bit) {
  Random random(1);
  int number = 0;
  for (const WeightType& type : row_types())
    for (int cols : {256, 512, 2304, type.block_len == 1 ? 50 : 768, type.block_len == 1 ? 1 : 256}) {
      const Matrix table(random, type, 37, cols);
      const std::vector<int> tokens = {36, 0, 5, 5, 16, 15};
      Row out(tokens.size() * cols, NOT_A_NUMBER);
      launch((std::string("embed_") + type.name).c_str(), {dim3(divided_up(cols, 2048), unsigned(tokens.size())), 256},
             sim::Schedule::numbered(number++ % 8), table.bytes.data(), tokens.data(), out.data(), cols, 0, 37);
      for (size_t i = 0; i < tokens.size(); i++)
        CHECK(same_bits(part(out, i * cols, cols), table.row(tokens[i])), type.name + (", columns " + std::to_string(cols)));
    }
}

TEST(parts_of_a_table_write_the_rows_of_their_own_tokens) {
  Random random(2);
  const int cols = 64;
  const Matrix top(random, weight_types()[0], 5, cols), bottom(random, weight_types()[2], 4, cols);
  const std::vector<int> tokens = {8, 0, 4, 5};
  Row out(4 * cols, NOT_A_NUMBER);
  launch("embed_bf16", {dim3(1, 4), 256}, {}, bottom.bytes.data(), tokens.data(), out.data(), cols, 5, 4);
  launch("embed_f32", {dim3(1, 4), 256}, {}, top.bytes.data(), tokens.data(), out.data(), cols, 0, 5);
  const Row expected[] = {bottom.row(3), top.row(0), top.row(4), bottom.row(0)};
  for (int i = 0; i < 4; i++) CHECK(same_bits(part(out, i * cols, cols), expected[i]), "token " + std::to_string(tokens[i]));
}

TEST(picked_rows_are_copied) {
  Random random(3);
  for (int cols : {1, 50, 256, 1000}) {
    const Row x = uniform(random, 9 * cols);
    const std::vector<int> picked = {8, 0, 3, 3, -1};
    Row out(5 * cols, NOT_A_NUMBER);
    const auto schedule = sim::Schedule::numbered(cols % 8);
    launch("gather_rows", {dim3(divided_up(cols, 256), 5), 256}, schedule, x.data(), picked.data(), out.data(), cols);
    CHECK(std::isnan(out[4 * cols]), "nobody's row is left alone");
    for (int i = 0; i < 4; i++) CHECK(same_bits(part(out, i * cols, cols), part(x, picked[i] * cols, cols)), "row");
  }
}

TEST(gates_agree_with_float64_up_to_those_that_are_hard) {
  Random random(4);
  for (int cols : {7, 256, 1536}) {
    Row gate_up = uniform(random, 3 * 2 * cols, 20), out(3 * cols, NOT_A_NUMBER);
    const float hard[] = {-300, 300, 0, -88.5f, 88.5f, 1e-20f};
    std::copy(hard, hard + 6, gate_up.begin());
    launch("silu_mul", {dim3(divided_up(cols, 256), 3), 256}, sim::Schedule::numbered(cols % 8), gate_up.data(), out.data(), cols);
    std::vector<double> expected;
    for (int row = 0; row < 3; row++)
      for (int i = 0; i < cols; i++) {
        const double gate = gate_up[row * 2 * cols + i], up = gate_up[row * 2 * cols + cols + i];
        expected.push_back(gate / (1 + std::exp(-gate)) * up);
      }
    compare(out, expected, 1e-30, 5e-6, std::to_string(cols) + " columns");
  }
}

TEST(sums_are_rounded_once) {
  Random random(5);
  for (int cols : {1, 300}) {
    Row residual = uniform(random, 4 * cols);
    const Row delta = uniform(random, 4 * cols);
    Row expected(residual);
    for (size_t i = 0; i < expected.size(); i++) expected[i] += delta[i];
    launch("add", {dim3(divided_up(cols, 256), 4), 256}, {}, residual.data(), delta.data(), cols);
    CHECK(same_bits(residual, expected), "sum");
  }
}

TEST(a_block_is_copied_in_every_layer_and_no_other_is_touched) {
  Random random(6);
  const unsigned block_units = 300, blocks = 5, layers = 3, layer_units = blocks * block_units;
  std::vector<uint4> cache(layers * layer_units);
  for (uint4& unit : cache)
    for (unsigned* word : {&unit.x, &unit.y, &unit.z, &unit.w}) *word = unsigned(random.next());
  std::vector<uint4> expected(cache);
  for (unsigned layer = 0; layer < layers; layer++)
    std::copy_n(cache.begin() + layer * layer_units + 3 * block_units, block_units,
                expected.begin() + layer * layer_units + block_units);
  for_each_schedule([&](const sim::Schedule& schedule) {
    std::vector<uint4> copied(cache);
    launch("copy_kv_block", {dim3(1 + schedule.seed % 2, layers), 256}, schedule, copied.data(), block_units, layer_units, 3, 1);
    CHECK(std::memcmp(copied.data(), expected.data(), copied.size() * sizeof(uint4)) == 0, schedule.name());
  });
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
