#include "kernels/cuda/attention/rope_append.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cache/window.h"
#include "common/errors.h"
#include "cuda_emulator/orders.h"
#include "kernels/table.h"

namespace sinkstream::cuda {
namespace {

constexpr std::byte kPoison{0xff};  // NaN in every type of floats

struct Shape {
  int32_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t rotary_dim;
  Pairing pairing;
  DType type;
  bool has_norm;
  bool has_bias;
  int splits;
  // What only some families have.
  NormKind norm_kind = NormKind::kRms;
  bool has_norm_bias = false;
  NormExtent extent = NormExtent::kHead;
  float clip = 0;
  float temperature = 0;
};

std::string text_of(const Shape& s) {
  return cat("heads ", s.heads, "/", s.kv_heads, " of ", s.head_dim, ", rotary ", s.rotary_dim,
             s.pairing == Pairing::kHalf ? " half, " : " interleaved, ", name_of(s.type),
             s.has_norm ? ", norm" : "", s.norm_kind == NormKind::kLayer ? " layer" : "",
             s.has_norm_bias ? " bias" : "",
             s.extent == NormExtent::kAllHeads ? " of all heads" : "", s.has_bias ? ", bias" : "",
             ", clip ", s.clip, ", temperature ", s.temperature, ", splits ", s.splits);
}

// The sequence and token of a row.
struct RowSpec {
  int32_t sequence;  // −1: idle
  int64_t index;
};

// Sequence s has sinks and a window of its own.
constexpr Window kWindows[] = {{.sinks = 4, .window = 100},
                               {.sinks = 130, .window = 64},
                               {.sinks = 0, .window = 1},
                               {.sinks = 2, .window = 64}};
constexpr int kLayers = 3, kLayer = 1;
constexpr int64_t kTemperatureLength = 7;
// In the last sequence, blocks from this one on are in scratch pages.
constexpr int64_t kScratchBlock = 3, kScratchPages = 2;

// Sinks, both ends of pages, a wrapped ring, idle rows in between, and scratch pages.
const std::vector<RowSpec> kRows = {
    {0, 3},   {-1, 0},         {1, 129},     {0, 5},       {1, 130},     {2, 63},
    {1, 64},  {-1, 9},         {0, 4 + 191}, {3, 1},       {0, 4 + 192}, {2, 64},
    {1, 128}, {0, 10'000'000}, {3, 2 + 191}, {3, 2 + 192}, {3, 2 + 256}};

std::vector<float> random_numbers(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) x = normal(random) * (random() % 50 == 0 ? 20.0f : 1.0f);
  return numbers;
}

// A row's numbers depend only on its token, so that rows can be reordered.
uint32_t seed_of(const RowSpec& row) {
  return static_cast<uint32_t>(row.index * 3 + row.sequence + 1);
}

struct Output {
  std::vector<std::byte> pool;
  std::vector<SequencePages> sequences;            // whose pages are in `pool`
  std::vector<uint16_t> query_window, query_sink;  // [rows][heads · head_dim]
};

// The inputs of a step, poisoned where nothing may be read.
struct Step {
  Shape shape;
  std::vector<RowSpec> rows;
  PageShape page_shape;
  int64_t width, stride;
  std::vector<float> qkv, bias, query_norm, key_norm, query_norm_bias, key_norm_bias;
  mutable std::vector<double> scratch;
  std::vector<float> angles[4];  // cos and sin by index, cos and sin by rank
  std::vector<TokenRow> tokens;
  std::vector<SequencePages> sequences;
  std::vector<int32_t> ids;
  int64_t pages = 0;

  Step(const Shape& s, const std::vector<RowSpec>& specs)
      : shape(s),
        rows(specs),
        page_shape{s.kv_heads, s.head_dim, s.type},
        width((s.heads + 2 * s.kv_heads) * s.head_dim),
        stride(width + 4) {
    const auto count = static_cast<int64_t>(rows.size());
    const int64_t room = count + 1;  // the capacity of Partials is larger
    qkv.assign(s.splits * room * stride, NAN);
    if (s.has_bias) bias = random_numbers(width, 91);
    const bool is_full = s.extent == NormExtent::kAllHeads;
    if (s.has_norm) {
      query_norm = random_numbers(s.head_dim * (is_full ? s.heads : 1), 92);
      key_norm = random_numbers(s.head_dim * (is_full ? s.kv_heads : 1), 93);
      if (s.has_norm_bias) {
        query_norm_bias = random_numbers(std::ssize(query_norm), 94);
        key_norm_bias = random_numbers(std::ssize(key_norm), 95);
      }
    }
    if (is_full) scratch.assign(rope_append_scratch_doubles(count), NAN);
    const int64_t pairs = s.rotary_dim / 2;
    for (std::vector<float>& table : angles) table.assign(count * pairs, NAN);
    for (int64_t r = 0; r < count; ++r) {
      tokens.push_back({.index = rows[r].index, .rank = -7, .sequence = rows[r].sequence});
      if (rows[r].sequence < 0) continue;
      tokens.back().rank = kWindows[rows[r].sequence].rank(rows[r].index);
      const std::vector<float> numbers = random_numbers(s.splits * width, seed_of(rows[r]));
      for (int k = 0; k < s.splits; ++k) {
        std::copy_n(numbers.data() + k * width, width, qkv.data() + (k * room + r) * stride);
      }
      for (int64_t d = 0; d < pairs; ++d) {
        const double angle = static_cast<double>(seed_of(rows[r])) * (d + 1);
        angles[0][r * pairs + d] = static_cast<float>(std::cos(angle));
        angles[1][r * pairs + d] = static_cast<float>(std::sin(angle));
        angles[2][r * pairs + d] = static_cast<float>(std::cos(angle / 3));
        angles[3][r * pairs + d] = static_cast<float>(std::sin(angle / 3));
      }
    }
    for (const Window& window : kWindows) {
      const auto sink_pages = static_cast<int32_t>(window.sink_pages());
      const auto window_pages = static_cast<int32_t>(window.window_pages());
      sequences.push_back({.offset = static_cast<int64_t>(ids.size()),
                           .sinks = static_cast<int32_t>(window.sinks),
                           .sink_pages = sink_pages,
                           .window_pages = window_pages});
      for (int i = 0; i < kLayers * (sink_pages + window_pages); ++i) ids.push_back(0);
    }
    sequences.back().scratch_block = kScratchBlock;
    // Pages are in shuffled order.
    pages = static_cast<int64_t>(ids.size());
    for (int64_t i = 0; i < pages; ++i) ids[i] = static_cast<int32_t>(i * 5 % pages);
    EXPECT_NE(pages % 5, 0);
  }

  RopeAppendArgs args(Output& out) const {
    const auto count = static_cast<int64_t>(rows.size());
    out.pool.assign((pages + kScratchPages) * page_shape.bytes(), kPoison);
    out.sequences = sequences;
    for (SequencePages& sequence : out.sequences) sequence.pool = out.pool.data();
    out.sequences.back().scratch = out.pool.data() + pages * page_shape.bytes();
    out.query_window.assign(count * shape.heads * shape.head_dim, 0xffff);
    out.query_sink = out.query_window;
    RopeAppendArgs args;
    args.qkv = {qkv.data(), shape.splits, count + 1, stride};
    args.bias = shape.has_bias ? bias.data() : nullptr;
    if (shape.has_norm) {
      args.query_norm = {query_norm.data(), bias_of(query_norm_bias)};
      args.key_norm = {key_norm.data(), bias_of(key_norm_bias)};
    }
    args.norm_kind = shape.norm_kind;
    args.norm_extent = shape.extent;
    args.scratch = scratch.data();
    args.clip = shape.clip;
    args.temperature = shape.temperature;
    args.temperature_length = kTemperatureLength;
    args.norm_eps = shape.has_norm ? 1e-6f : 0;
    args.rows = count;
    args.heads = shape.heads;
    args.tokens = tokens.data();
    args.by_index = {angles[0].data(), angles[1].data(), shape.rotary_dim, shape.pairing};
    args.by_rank = {angles[2].data(), angles[3].data(), shape.rotary_dim, shape.pairing};
    args.pages = {ids.data(), out.sequences.data(), kLayer, page_shape};
    args.query_window = out.query_window.data();
    args.query_sink = out.query_sink.data();
    return args;
  }

  static const float* bias_of(const std::vector<float>& numbers) {
    return numbers.empty() ? nullptr : numbers.data();
  }
};

Output run_on_gpu(const Shape& shape, const std::vector<RowSpec>& rows) {
  const Step step(shape, rows);
  Output out;
  EXPECT_EQ(rope_append(step.args(out), {}), kSuccess);
  return out;
}

uint16_t rounded_bits(DType page_type, float x) {
  return page_type == DType::kFloat16 ? to_f16(x).bits : to_bf16(x).bits;
}

// Copies one row of a page from the CPU's layout to the GPU's.
void copy_row(const PageShape& shape, const std::byte* from, int64_t row, std::byte* to) {
  const int64_t bytes = bytes_of(shape.type);
  for (int64_t h = 0; h < shape.kv_heads; ++h) {
    for (const bool is_key : {true, false}) {
      const int64_t half = is_key ? shape.key_offset(h) : shape.value_offset(h);
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        const int64_t element = is_key ? shape.key_element(row, d) : shape.value_element(row, d);
        std::memcpy(to + half + (row * shape.head_dim + d) * bytes, from + half + element * bytes,
                    bytes);
      }
      if (!shape.has_scales()) continue;
      std::memcpy(to + half + shape.scale_offset(row), from + half + shape.scale_offset(row), 4);
    }
  }
}

// The same with the reference's ops, one by one; slots from cache/window.h.
Output run_reference(const Shape& shape, const std::vector<RowSpec>& rows) {
  const Step step(shape, rows);
  Output out;
  const RopeAppendArgs args = step.args(out);
  const Kernels& reference = reference_kernels();
  ThreadPool pool(1);
  const Launch launch{&pool};
  const int64_t query_width = shape.heads * shape.head_dim;
  const int64_t key_width = shape.kv_heads * shape.head_dim;
  const int64_t pairs = shape.rotary_dim / 2;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].sequence < 0) continue;
    std::vector<float> row(step.width);
    for (int64_t i = 0; i < step.width; ++i) {
      for (int k = 0; k < shape.splits; ++k) {
        const float part = step.qkv[(k * args.qkv.rows + r) * step.stride + i];
        row[i] = k == 0 ? part : row[i] + part;
      }
      if (shape.has_bias) row[i] += step.bias[i];
      if (shape.clip > 0) row[i] = std::clamp(row[i], -shape.clip, shape.clip);
    }
    const auto norm = [&](float* heads, const NormWeights& weights, int64_t count) {
      if (!shape.has_norm) return;
      const bool is_full = shape.extent == NormExtent::kAllHeads;
      const int64_t dim = shape.head_dim * (is_full ? count : 1);
      reference.norm({.input = heads,
                      .input_stride = dim,
                      .weight = weights.weight,
                      .bias = weights.bias,
                      .out = heads,
                      .out_stride = dim,
                      .rows = is_full ? 1 : count,
                      .dim = dim,
                      .eps = args.norm_eps,
                      .kind = shape.norm_kind},
                     launch);
    };
    norm(row.data(), args.query_norm, shape.heads);
    norm(row.data() + query_width, args.key_norm, shape.kv_heads);
    const int64_t times = step.tokens[r].rank / kTemperatureLength;
    const auto factor = static_cast<float>(1 + double{shape.temperature} *
                                                   std::log(1 + static_cast<double>(times)));
    const Rotation by_index = {args.by_index.cos + r * pairs, args.by_index.sin + r * pairs,
                               shape.rotary_dim, shape.pairing};
    const Rotation by_rank = {args.by_rank.cos + r * pairs, args.by_rank.sin + r * pairs,
                              shape.rotary_dim, shape.pairing};
    std::vector<float> turned(query_width);
    const auto turn = [&](const Rotation& rotation, std::vector<uint16_t>& to) {
      reference.rope({.input = row.data(),
                      .input_stride = step.width,
                      .out = turned.data(),
                      .rows = 1,
                      .heads = shape.heads,
                      .head_dim = shape.head_dim,
                      .rotation = rotation},
                     launch);
      for (int64_t i = 0; i < query_width; ++i) {
        to[r * query_width + i] = rounded_bits(shape.type, turned[i] * factor);
      }
    };
    turn(by_index, out.query_window);
    turn(by_rank, out.query_sink);

    const Window& window = kWindows[rows[r].sequence];
    const SequencePages& pages = step.sequences[rows[r].sequence];
    const int64_t t = rows[r].index;
    const int64_t page =
        window.is_sink(t) ? t / 64 : window.sink_pages() + window.block(t) % window.window_pages();
    const int64_t row_of_page = window.is_sink(t) ? t % 64 : window.row(t);
    const int64_t layer_pages = pages.sink_pages + pages.window_pages;
    int64_t id = step.ids[pages.offset + kLayer * layer_pages + page];
    if (!window.is_sink(t) && window.block(t) >= pages.scratch_block) {
      id = step.pages + window.block(t) - kScratchBlock;
    }
    std::vector<std::byte> plain(step.page_shape.bytes());
    const Slot slot = {plain.data(), row_of_page};
    reference.append({.keys = row.data() + query_width,
                      .values = row.data() + query_width + key_width,
                      .key_stride = step.width,
                      .value_stride = step.width,
                      .slots = &slot,
                      .rows = 1,
                      .shape = step.page_shape,
                      .rotation = by_index},
                     launch);
    copy_row(step.page_shape, plain.data(), row_of_page,
             out.pool.data() + id * step.page_shape.bytes());
  }
  return out;
}

std::vector<Shape> shapes() {
  std::vector<Shape> shapes;
  int turn = 0;
  for (const int64_t head_dim : {16, 32, 64, 80, 96, 128, 256, 512}) {
    for (const DType type : {DType::kFloat16, DType::kBFloat16, DType::kInt8}) {
      ++turn;
      const int32_t kv_heads = 1 + turn % 3;
      shapes.push_back({.heads = kv_heads * (1 + turn % 4),
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .rotary_dim = turn % 4 == 0 ? head_dim / 4 * 2 - 2 : head_dim,
                        .pairing = turn % 2 == 0 ? Pairing::kHalf : Pairing::kInterleaved,
                        .type = type,
                        .has_norm = turn % 3 == 0,
                        .has_bias = turn % 5 < 2,
                        .splits = 1 + turn % 3});
    }
  }
  return shapes;
}

// With norms of all heads together, layer norms, clips and temperatures; some do not rotate.
std::vector<Shape> special_shapes() {
  std::vector<Shape> shapes;
  int turn = 0;
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const NormExtent extent : {NormExtent::kHead, NormExtent::kAllHeads}) {
      for (const bool has_norm_bias : {false, true}) {
        for (const DType type : {DType::kFloat16, DType::kBFloat16, DType::kInt8}) {
          ++turn;
          const int32_t kv_heads = 1 + turn % 2;
          const int64_t head_dim = turn % 5 == 0 ? 304 : 16 * (1 + turn % 6);
          shapes.push_back({.heads = kv_heads * (1 + turn % 5),
                            .kv_heads = kv_heads,
                            .head_dim = head_dim,
                            .rotary_dim = turn % 4 == 0 ? 0 : head_dim,
                            .pairing = Pairing::kHalf,
                            .type = type,
                            .has_norm = turn % 7 != 0,
                            .has_bias = turn % 2 == 0,
                            .splits = 1 + turn % 3,
                            .norm_kind = kind,
                            .has_norm_bias = has_norm_bias,
                            .extent = extent,
                            .clip = turn % 3 == 0 ? 0 : 1.25f,
                            .temperature = turn % 4 == 1 ? 0 : 0.1f});
        }
      }
    }
  }
  return shapes;
}

void expect_reference(const Shape& shape) {
  const Output expected = run_reference(shape, kRows);
  const Output found = run_on_gpu(shape, kRows);
  EXPECT_EQ(found.query_window, expected.query_window);
  EXPECT_EQ(found.query_sink, expected.query_sink);
  ASSERT_EQ(found.pool.size(), expected.pool.size());
  EXPECT_EQ(std::memcmp(found.pool.data(), expected.pool.data(), found.pool.size()), 0);
}

TEST(CudaRopeAppend, EqualsTheReferenceBitForBitAndWritesNothingElse) {
  emulator::in_orders_of_run([](const emulator::Order& order) {
    for (const Shape& shape : shapes()) {
      SCOPED_TRACE(cat(order.name, ", ", text_of(shape)));
      expect_reference(shape);
    }
  });
}

TEST(CudaRopeAppend, EqualsTheReferenceForWhatOnlySomeFamiliesHave) {
  emulator::in_orders_of_run([](const emulator::Order& order) {
    for (const Shape& shape : special_shapes()) {
      SCOPED_TRACE(cat(order.name, ", ", text_of(shape)));
      expect_reference(shape);
    }
  });
}

TEST(CudaRopeAppend, AClipKeepsNan) {
  const Shape shape = {.heads = 1,
                       .kv_heads = 1,
                       .head_dim = 16,
                       .rotary_dim = 0,
                       .pairing = Pairing::kHalf,
                       .type = DType::kBFloat16,
                       .has_norm = false,
                       .has_bias = false,
                       .splits = 1,
                       .clip = 2};
  Step step(shape, {{2, 41}});
  const float numbers[] = {NAN, 3, -3, INFINITY, -INFINITY, 1.5f, 2, -2};
  const float expected[] = {NAN, 2, -2, 2, -2, 1.5f, 2, -2};
  std::copy(std::begin(numbers), std::end(numbers), step.qkv.begin());
  Output out;
  ASSERT_EQ(rope_append(step.args(out), {}), kSuccess);
  for (size_t i = 0; i < std::size(numbers); ++i) {
    const float found = to_float(sinkstream::bf16{out.query_window[i]});
    EXPECT_TRUE(found == expected[i] || (std::isnan(found) && std::isnan(expected[i]))) << i;
  }
}

TEST(CudaRopeAppend, ARowDependsOnNoOther) {  // no tsan
  std::vector<Shape> all = shapes();
  const std::vector<Shape> special = special_shapes();
  all.insert(all.end(), special.begin(), special.end());
  for (const Shape& shape : all) {
    const Output together = run_on_gpu(shape, kRows);
    const int64_t width = shape.heads * shape.head_dim;
    Output alone;
    for (size_t r = 0; r < kRows.size(); ++r) {
      if (kRows[r].sequence < 0) continue;
      // After an idle row, so at a different row.
      const Output one = run_on_gpu(shape, {{-1, 0}, kRows[r]});
      for (int64_t i = 0; i < width; ++i) {
        ASSERT_EQ(one.query_window[width + i], together.query_window[r * width + i]);
        ASSERT_EQ(one.query_sink[width + i], together.query_sink[r * width + i]);
      }
      if (alone.pool.empty()) alone.pool = one.pool;
      for (size_t i = 0; i < one.pool.size(); ++i) alone.pool[i] &= one.pool[i];  // poison is ones
    }
    EXPECT_TRUE(alone.pool == together.pool) << text_of(shape);
  }
}

// Numbers of a value head, and their int8 form: Note [Int8].
struct Quantized {
  std::vector<float> numbers;
  float scale;
  std::vector<int> codes;
};

TEST(CudaRopeAppend, GivesEachTokenAndHeadAScaleAndCodesOfItsOwn) {
  constexpr float kTiny = std::numeric_limits<float>::min();
  const std::vector<Quantized> heads = {
      {{127, 0.5f, 1.5f, 2.5f, -0.5f, -126.5f}, 1, {127, 0, 2, 2, 0, -126}},
      {{-254, 3, 5, 1, -1, 253}, 2, {-127, 2, 2, 0, 0, 126}},
      {{3.4e38f, -3.4e38f, 1, -0.0f, 0, 1.7e38f}, 3.4e38f / 127, {127, -127, 0, 0, 0, 64}},
      {{0, -0.0f, 0, 0, 0, 0}, 0, {}},
      {{126 * kTiny, kTiny, 0, 0, 0, 0}, 0, {}},  // a scale that would be denormal
      {{1, 2, INFINITY, 3, 4, 5}, NAN, {}},
      {{1, 2, 3, 4, 5, -INFINITY}, NAN, {}},
      {{NAN, 2, 3, 4, 5, 6}, NAN, {}},
  };
  const auto count = static_cast<int64_t>(heads.size());
  const Shape shape = {1, count, 16, 0, Pairing::kHalf, DType::kInt8, false, false, 1};
  Step step(shape, {{2, 41}});
  std::fill(step.qkv.begin(), step.qkv.end(), 0.0f);
  for (int64_t h = 0; h < count; ++h) {
    for (const int64_t part : {1 + h, 1 + count + h}) {  // the key's, not rotated, and the value's
      std::copy(heads[h].numbers.begin(), heads[h].numbers.end(),
                step.qkv.begin() + part * 16 + 10);
    }
  }
  Output out;
  ASSERT_EQ(rope_append(step.args(out), {}), kSuccess);
  const SequencePages& pages = step.sequences[2];
  const int32_t id = step.ids[pages.offset + kLayer * (pages.sink_pages + pages.window_pages)];
  const std::byte* page = out.pool.data() + id * step.page_shape.bytes();
  for (int64_t h = 0; h < count; ++h) {
    for (const int64_t half : {step.page_shape.key_offset(h), step.page_shape.value_offset(h)}) {
      float scale;
      std::memcpy(&scale, page + half + step.page_shape.scale_offset(41), sizeof(scale));
      EXPECT_TRUE(scale == heads[h].scale || (std::isnan(scale) && std::isnan(heads[h].scale)))
          << "head " << h << " has the scale " << scale;
      for (size_t d = 0; d < 6; ++d) {
        const int expected = heads[h].codes.empty() ? 0 : heads[h].codes[d];
        EXPECT_EQ(static_cast<int8_t>(page[half + 41 * 16 + 10 + d]), expected)
            << "head " << h << " number " << heads[h].numbers[d];
      }
    }
  }
}

}  // namespace
}  // namespace sinkstream::cuda
