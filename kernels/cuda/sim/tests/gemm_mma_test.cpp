// shuffle.cu, embed_tiles.cu, expand.cu and gemm_mma.cu; products against float64: every tiled weight type, outputs, columns and rows that are no multiple of anything,
// x staged whole and in pieces, all epilogues, and bits that depend on no schedule, no grid, no piece and no other row.
#include "weights.h"

using namespace check;

namespace {

// As rms_norm; norm.cu is linked for the comparison.
constexpr float EPS = 1e-5f;

bool is_tiled(const WeightType& type) {
  for (const char* other : {"f32", "q2_k", "q3_k"})
    if (std::string(type.name) == other) return false;
  return true;
}

const WeightType& type_named(const std::string& name) {
  for (const WeightType& type : weight_types())
    if (type.name == name) return type;
  sim::fault("no type " + name);
}

int steps_of(int cols) { return (cols + 31) / 32; }

bool has_kernel(const WeightType& type, int rows_of_block) { return type.name != std::string("f8") || rows_of_block != 32; }

// Bytes of a panel, from the bytes of a file's block: tiles are as large.
size_t panel_bytes(const WeightType& type, int cols) {
  if (type.block_len == 1) return size_t(divided_up(cols, 16)) * 512;
  return size_t(16) * cols / type.block_len * type.block_bytes;
}

// Aligned as a device's memory is.
struct alignas(16) Unit {
  uint8_t bytes[16];
};
using Units = std::vector<Unit>;

// A matrix as a kernel reads it. Every byte must be written, and what lies behind must not.
Units shuffled(const Matrix& matrix, const sim::Schedule& schedule = {}) {
  const WeightType& type = matrix.type;
  const size_t bytes = divided_up(matrix.rows, 16) * panel_bytes(type, matrix.cols);
  Units tiles[2];
  for (int filler : {0x5a, 0xa5}) {
    Units& to = tiles[filler == 0xa5];
    to.resize(bytes / 16 + 1);
    std::memset(to.data(), filler, 16 * to.size());
    // Blocks of bytes lie alike.
    const std::string name = type.name == std::string("f8") ? "q8_0" : type.name;
    launch(("shuffle_" + name).c_str(), {dim3(steps_of(matrix.cols), divided_up(matrix.rows, 16)), 32}, schedule,
           matrix.bytes.data(), to.data(), matrix.rows, matrix.cols);
    for (uint8_t byte : to.back().bytes) CHECK(byte == filler, "shuffle writes behind its tiles");
  }
  CHECK(std::memcmp(tiles[0].data(), tiles[1].data(), bytes) == 0, std::string("shuffle leaves bytes out: ") + type.name);
  return tiles[0];
}

// How a product is launched.
struct Product {
  const Matrix& matrix;
  const Units& tiles;
  const Units* up = nullptr;
  const Row *bias = nullptr, *norm = nullptr;
  const Row* residual = nullptr;
  int rows_of_block = 0;  // 0: as many as are needed
  int grid = 0;           // 0: a block for each panel
  bool in_pieces = false;
  sim::Schedule schedule = {};
  int stride = 0, first = 0;

  Row of(const Row& x) const {
    const int cols = matrix.cols, rows = int(x.size()) / cols, steps = steps_of(cols);
    int in_block = 8;
    while (in_block < 64 && (in_block < rows || !has_kernel(matrix.type, in_block))) in_block *= 2;
    if (rows_of_block) in_block = rows_of_block;
    const bool fits = size_t(steps) * in_block * 68 <= 200000;
    const int piece = in_pieces || !fits ? (in_block == 8 ? 64 : in_block == 16 ? 32 : 16) : steps;
    const unsigned panels = divided_up(matrix.rows, 16), width = !up && in_block > 16 ? 2 : 1;
    const unsigned blocks = grid ? grid : divided_up(panels, width);
    const std::string name = std::string("gemm_mma_") + matrix.type.name + "_r" + std::to_string(in_block);
    const int out_stride = stride ? stride : matrix.rows;
    Row out(size_t(rows) * out_stride, NOT_A_NUMBER);
    if (residual) out = *residual;
    const Row aligned_x = x;
    launch(name.c_str(), {dim3(blocks, divided_up(rows, in_block)), 256, size_t(std::min(piece, steps)) * in_block * 68}, schedule,
           aligned_x.data(), tiles.data(), up ? up->data() : nullptr, bias ? bias->data() : nullptr, norm ? norm->data() : nullptr,
           out.data() + first, rows, matrix.rows, cols, out_stride, int(residual != nullptr), piece, EPS);
    return out;
  }
};

float bf16(float x) { return __bfloat162float(__float2bfloat16(x)); }

// Activations as the kernel rounds them: bfloat16, or float16 with the row's largest magnitude in [2^13, 2^14).
Row rounded(const Matrix& matrix, const Row& x) {
  Row to = x;
  for (size_t row = 0; row < x.size(); row += matrix.cols) {
    float largest = 0;
    for (int i = 0; i < matrix.cols; i++) largest = std::max(largest, std::fabs(x[row + i]));
    int exponent = 0;
    std::frexp(largest, &exponent);
    for (int i = 0; i < matrix.cols; i++) {
      float& value = to[row + i];
      value = std::string(matrix.type.name) != "f16" ? bf16(value)
              : std::ldexp(__half2float(__float2half(std::ldexp(value, 14 - exponent))), exponent - 14);
    }
  }
  return to;
}

struct Expected {
  double sum, magnitude;
};
Expected expected(const Row& x, int row, const Row& weights) {
  Expected of = {0, 0};
  for (size_t i = 0; i < weights.size(); i++) {
    const double product = double(x[row * weights.size() + i]) * weights[i];
    of.sum += product;
    of.magnitude += std::fabs(product);
  }
  return of;
}

// The error as a share of the sum of magnitudes. Blocks with a minimum have larger sums than their values show.
void compare_products(const Row& out, const Row& x, const Matrix& matrix, double allowed, const std::string& what) {
  const size_t rows = x.size() / matrix.cols;
  for (int output = 0; output < matrix.rows; output++) {
    const Row weights = matrix.row(output);
    for (size_t row = 0; row < rows; row++) {
      const Expected of = expected(x, int(row), weights);
      const double error = std::fabs(out[row * matrix.rows + output] - of.sum);
      if (error <= allowed * of.magnitude + 1e-30) continue;
      CHECK(error <= allowed * of.magnitude, what + ", row " + std::to_string(row) + ", output " + std::to_string(output) +
                                                 ": off by " + std::to_string(error / of.magnitude / allowed) + " of what is allowed");
      return;
    }
  }
}

TEST(embedding_rows_are_decoded_from_tiles_to_the_bit) {
  Random random(8);
  int number = 0;
  const std::vector<int> tokens = {36, 0, 5, 5, 16, 15, 12, 40};
  for (const WeightType& type : weight_types()) {
    if (!is_tiled(type)) continue;
    for (int cols : {256, 2304, type.block_len == 1 ? 50 : 768, type.block_len == 1 ? 2 : 256}) {
      const Matrix table(random, type, 37, cols);
      const Units tiles = shuffled(table);
      // Rows 3 to 39 of a larger table: the tokens of others are left alone.
      Row out(tokens.size() * cols, NOT_A_NUMBER);
      launch((std::string("embed_tiles_") + type.name).c_str(), {dim3(divided_up(cols, 256), unsigned(tokens.size())), 256},
             sim::Schedule::numbered(number++ % 8), tiles.data(), tokens.data(), out.data(), cols, 3, 37);
      for (size_t i = 0; i < tokens.size(); i++) {
        const int row = tokens[i] - 3;
        const Row expected = row < 0 || row >= 37 ? Row(cols, NOT_A_NUMBER) : table.row(row);
        CHECK(same_bits(part(out, i * cols, cols), expected), type.name + (", columns " + std::to_string(cols)));
      }
    }
  }
}

TEST(tiles_are_expanded_to_rows_of_bfloat16) {
  Random random(9);
  int number = 0;
  for (const WeightType& type : weight_types()) {
    if (!is_tiled(type) || std::string(type.name) == "f16") continue;
    for (int cols : {256, 2304, type.block_len == 1 ? 40 : 768, type.block_len == 1 ? 8 : 256}) {
      const Matrix matrix(random, type, 37, cols);
      const Units tiles = shuffled(matrix);
      // From the second panel on, and nothing behind the last row.
      const int first = 16, rows = 21;
      std::vector<uint16_t> out(size_t(rows) * cols + 8, 0x5a5a);
      launch((std::string("expand_") + type.name).c_str(), {dim3(divided_up(cols, 256), divided_up(rows, 16)), 256},
             sim::Schedule::numbered(number++ % 8), tiles.data() + panel_bytes(type, cols) / sizeof(Unit), out.data(), rows, cols);
      bool is_equal = true;
      for (int row = 0; row < rows; row++) {
        const Row expected = matrix.row(first + row);
        for (int col = 0; col < cols; col++) is_equal &= out[size_t(row) * cols + col] == __float2bfloat16(expected[col]).bits;
      }
      CHECK(is_equal, type.name + (", columns " + std::to_string(cols)));
      for (size_t i = size_t(rows) * cols; i < out.size(); i++) CHECK(out[i] == 0x5a5a, "expand writes behind its rows");
    }
  }
  const Row x = uniform(random, 8 * 333, 100.0f);
  std::vector<uint16_t> out(x.size() + 8, 0x5a5a);
  launch("round_bf16", {dim3(divided_up(int(x.size()), 2048)), 256}, {}, x.data(), out.data(), int(x.size()));
  for (size_t i = 0; i < x.size(); i++) CHECK(out[i] == __float2bfloat16(x[i]).bits, "rounded as everywhere");
  CHECK(out[x.size()] == 0x5a5a, "round_bf16 writes behind its elements");
}

TEST(every_code_of_e4m3_is_its_number_in_products_and_in_tables) {
  // A block for each 32 codes; those of no number are left out.
  const WeightType& type = type_named("f8");
  Random random(9);
  Matrix matrix(random, type, 16, 256);
  for (int row = 0; row < 16; row++)
    for (int code = 0; code < 256; code++) {
      uint8_t* const block = &matrix.bytes[row * matrix.row_bytes() + code / 32 * 34];
      const uint16_t scale = __float2half(std::ldexp(1.0f + row / 1024.0f, 2 * row - 24)).bits;
      std::memcpy(block, &scale, 2);
      block[2 + code % 32] = (code & 0x7f) == 0x7f ? 0 : uint8_t(code);
    }
  const Units tiles = shuffled(matrix);
  std::vector<int> tokens(16);
  for (int row = 0; row < 16; row++) tokens[row] = row;
  Row table(16 * 256, NOT_A_NUMBER);
  launch("embed_tiles_f8", {dim3(1, 16), 256}, sim::Schedule{}, tiles.data(), tokens.data(), table.data(), 256, 0, 16);
  for (int row = 0; row < 16; row++)
    CHECK(same_bits(part(table, row * 256, 256), matrix.row(row)), "table, row " + std::to_string(row));
  // A row of x for each column: a one and zeros.
  Row x(256 * 256, 0.0f);
  for (int i = 0; i < 256; i++) x[i * 256 + i] = 1.0f;
  const Row out = Product{matrix, tiles}.of(x);
  for (int i = 0; i < 256; i++)
    for (int row = 0; row < 16; row++)
      CHECK(out[i * 16 + row] == matrix.at(row, i), "code " + std::to_string(i) + ", output " + std::to_string(row));
}

TEST(products_of_every_type_agree_with_float64) {
  Random random(1);
  int number = 0;
  struct Shape {
    int rows, outputs, cols;
  };
  for (const WeightType& type : weight_types()) {
    if (!is_tiled(type)) continue;
    std::vector<Shape> shapes = {{1, 16, 256}, {2, 48, 512}, {9, 100, 768}, {33, 48, 1536}};
    if (type.block_len < 256) shapes.insert(shapes.end(), {{3, 16, 32}, {8, 48, 64}, {16, 100, 576}, {64, 40, 96}, {70, 16, 64}});
    if (type.block_len == 1) shapes.insert(shapes.end(), {{1, 3, 2}, {4, 17, 50}, {10, 20, 6}, {2, 16, 16}, {8, 33, 560}});
    if (quick) shapes.resize(3);
    for (auto [rows, outputs, cols] : shapes) {
      const Matrix matrix(random, type, outputs, cols);
      const Row x = uniform(random, size_t(rows) * cols, number % 3 ? 1.0f : 1e-3f);
      const auto schedule = sim::Schedule::numbered(number++ % 8);
      const Units tiles = shuffled(matrix, schedule);
      Product product{matrix, tiles};
      product.schedule = schedule;
      const Row out = product.of(x);
      const std::string what = std::string(type.name) + ", " + std::to_string(rows) + " rows, " + std::to_string(outputs) +
                               " outputs of " + std::to_string(cols);
      const bool has_minimum = type.scales.size() == 2;
      compare_products(out, rounded(matrix, x), matrix, has_minimum ? 3e-6 : 6e-7, what);
      compare_products(out, x, matrix, 4e-3, what + ", x in float32");
    }
  }
}

TEST(rows_have_the_bits_they_have_alone_in_every_kernel_grid_piece_and_schedule) {
  Random random(2);
  for (const WeightType& type : weight_types()) {
    if (!is_tiled(type)) continue;
    const int cols = type.block_len == 1 ? 2096 : 2304, outputs = 40;
    const Matrix matrix(random, type, outputs, cols);
    const Units tiles = shuffled(matrix);
    const Row all = uniform(random, size_t(64) * cols);
    const Row whole = Product{matrix, tiles}.of(all);
    const auto agree = [&](const Product& product, int first, int rows, const std::string& what) {
      const Row out = product.of(part(all, size_t(first) * cols, size_t(rows) * cols));
      CHECK(same_bits(out, part(whole, size_t(first) * outputs, size_t(rows) * outputs)),
            std::string(type.name) + ", " + std::to_string(rows) + " rows from " + std::to_string(first) + what);
    };
    for (int first : {0, 7, 63}) agree({matrix, tiles}, first, 1, "");
    for (int rows : {2, 3, 8, 9, 16, 33}) agree({matrix, tiles}, 64 - rows, rows, "");
    for (int in_block : {8, 16, 32, 64})
      for (bool in_pieces : {false, true})
        for (int grid : {1, 2, 5}) {
          if ((quick && grid != 2) || !has_kernel(type, in_block)) continue;
          Product product{matrix, tiles};
          product.rows_of_block = in_block;
          product.in_pieces = in_pieces;
          product.grid = grid;
          agree(product, 3, 20, ", " + std::to_string(in_block) + " a block, " + std::to_string(grid) + " blocks");
        }
    for_each_schedule([&](const sim::Schedule& schedule) {
      if (quick && schedule.order == sim::Order::Forward) return;
      Product product{matrix, tiles};
      product.in_pieces = true;
      product.schedule = schedule;
      product.grid = 2;
      agree(product, 0, 5, schedule.name());
    });
  }
}

TEST(a_norm_before_has_the_bits_of_rms_norm) {
  Random random(3);
  for (const char* name : {"bf16", "f16", "q4_1"})
    for (int rows : {1, 5, 20}) {
      const int cols = 2112;
      const Matrix matrix(random, type_named(name), 24, cols);
      const Units tiles = shuffled(matrix);
      const Row x = uniform(random, size_t(rows) * cols, 3.0f), norm = uniform(random, cols);
      Row y(x.size());
      launch("rms_norm", {unsigned(rows), 256}, sim::Schedule{}, x.data(), norm.data(), y.data(), cols, EPS);
      Product product{matrix, tiles};
      const Row apart = product.of(y);
      product.norm = &norm;
      product.in_pieces = rows == 20;
      CHECK(same_bits(product.of(x), apart), std::string(name) + ", " + std::to_string(rows) + " rows");
    }
}

TEST(epilogues_are_the_kernels_they_stand_for) {
  Random random(4);
  for (const char* name : {"bf16", "f16", "q8_0", "f8"})
    for (int rows : {3, 12, 33})
      for (int grid : {0, 1, 2}) {
        const int cols = 320, n = 40;
        const Matrix gate(random, type_named(name), n, cols), up(random, type_named(name), n, cols);
        const Units gate_tiles = shuffled(gate), up_tiles = shuffled(up);
        const Row x = uniform(random, size_t(rows) * cols), bias = uniform(random, n), residual = uniform(random, size_t(rows) * n);
        const Row gates = Product{gate, gate_tiles}.of(x), ups = Product{up, up_tiles}.of(x);
        const std::string what = std::string(name) + ", " + std::to_string(rows) + " rows, grid " + std::to_string(grid);

        Product product{gate, gate_tiles};
        product.grid = grid;
        product.in_pieces = grid == 1;
        Row sums = gates, silu(gates.size());
        product.bias = &bias;
        for (size_t i = 0; i < sums.size(); i++) sums[i] += bias[i % n];
        CHECK(same_bits(product.of(x), sums), "bias, " + what);

        product.residual = &residual;
        for (size_t i = 0; i < sums.size(); i++) sums[i] = residual[i] + sums[i];
        CHECK(same_bits(product.of(x), sums), "bias and addition, " + what);

        product.bias = product.residual = nullptr;
        product.up = &up_tiles;
        Row gate_up;
        for (int row = 0; row < rows; row++)
          for (const Row* half : {&gates, &ups}) gate_up.insert(gate_up.end(), half->begin() + row * n, half->begin() + (row + 1) * n);
        launch("silu_mul", {dim3(1, rows), 256}, sim::Schedule{}, gate_up.data(), silu.data(), n);
        CHECK(same_bits(product.of(x), silu), "silu, " + what);
      }
}

TEST(a_part_of_a_matrix_writes_its_own_outputs) {
  Random random(5);
  const Matrix matrix(random, type_named("q4_0"), 20, 64);
  const Units tiles = shuffled(matrix);
  for (int rows : {3, 40}) {
    const Row x = uniform(random, size_t(rows) * 64);
    Product product{matrix, tiles};
    const Row alone = product.of(x);
    product.stride = 50;
    product.first = 7;
    const Row among = product.of(x);
    for (int row = 0; row < rows; row++)
      for (int output = 0; output < 50; output++) {
        const float value = among[row * 50 + output];
        if (row == rows - 1 && output >= 43) break;  // the row begins at 7
        const bool mine = output >= 7 && output < 27;
        CHECK(mine ? value == alone[row * 20 + output - 7] : std::isnan(value), "output " + std::to_string(output));
      }
  }
}

TEST(not_a_number_stays_in_its_row) {
  Random random(6);
  for (const char* name : {"bf16", "f16", "q4_1"}) {
    const Matrix matrix(random, type_named(name), 18, 96);
    const Units tiles = shuffled(matrix);
    for (float bad : {NOT_A_NUMBER, INF}) {
      Row x = uniform(random, 6 * 96);
      const Row before = Product{matrix, tiles}.of(x);
      x[2 * 96 + 95] = bad;
      const Row out = Product{matrix, tiles}.of(x);
      for (int row = 0; row < 6; row++)
        for (int output = 0; output < 18; output++) {
          const size_t at = row * 18 + output;
          CHECK(row == 2 ? !std::isfinite(out[at]) : out[at] == before[at], std::string(name) + ", row " + std::to_string(row));
        }
    }
  }
}

TEST(rows_of_any_magnitude_meet_float16_weights) {
  Random random(7);
  const Matrix matrix(random, type_named("f16"), 16, 64);
  const Units tiles = shuffled(matrix);
  for (float scale : {0.0f, 1e-30f, 1e-6f, 70000.0f, 1e30f}) {
    const Row x = uniform(random, 2 * 64, scale);
    compare_products(Product{matrix, tiles}.of(x), x, matrix, 1e-3, "f16, scale " + std::to_string(scale));
  }
}

}  // namespace

int main(int count, char** arguments) { return check::run_all(count, arguments); }
