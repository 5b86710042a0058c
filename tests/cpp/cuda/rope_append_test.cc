#include "kernels/cuda/attention/rope_append.h"

#include <gtest/gtest.h>

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
};

std::string text_of(const Shape& s) {
  return cat("heads ", s.heads, "/", s.kv_heads, " of ", s.head_dim, ", rotary ", s.rotary_dim,
             s.pairing == Pairing::kHalf ? " half, " : " interleaved, ", name_of(s.type),
             s.has_norm ? ", norm" : "", s.has_bias ? ", bias" : "", ", splits ", s.splits);
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
  std::vector<float> qkv, bias, query_norm, key_norm;
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
    if (s.has_norm) {
      query_norm = random_numbers(s.head_dim, 92);
      key_norm = random_numbers(s.head_dim, 93);
    }
    const int64_t pairs = s.rotary_dim / 2;
    for (std::vector<float>& table : angles) table.assign(count * pairs, NAN);
    for (int64_t r = 0; r < count; ++r) {
      tokens.push_back({.index = rows[r].index, .sequence = rows[r].sequence});
      if (rows[r].sequence < 0) continue;
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
    args.query_norm = shape.has_norm ? query_norm.data() : nullptr;
    args.key_norm = shape.has_norm ? key_norm.data() : nullptr;
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
    }
    const auto norm = [&](float* heads, int64_t count, const std::vector<float>& weight) {
      if (!shape.has_norm) return;
      reference.rms_norm({.input = heads,
                          .input_stride = shape.head_dim,
                          .weight = weight.data(),
                          .out = heads,
                          .out_stride = shape.head_dim,
                          .rows = count,
                          .dim = shape.head_dim,
                          .eps = args.norm_eps},
                         launch);
    };
    norm(row.data(), shape.heads, step.query_norm);
    norm(row.data() + query_width, shape.kv_heads, step.key_norm);
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
        to[r * query_width + i] = rounded_bits(shape.type, turned[i]);
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
  for (const int64_t head_dim : {16, 32, 64, 80, 96, 128, 256}) {
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

TEST(CudaRopeAppend, EqualsTheReferenceBitForBitAndWritesNothingElse) {
  emulator::in_every_order([](const emulator::Order& order) {
    for (const Shape& shape : shapes()) {
      SCOPED_TRACE(cat(order.name, ", ", text_of(shape)));
      const Output expected = run_reference(shape, kRows);
      const Output found = run_on_gpu(shape, kRows);
      EXPECT_EQ(found.query_window, expected.query_window);
      EXPECT_EQ(found.query_sink, expected.query_sink);
      ASSERT_EQ(found.pool.size(), expected.pool.size());
      EXPECT_EQ(std::memcmp(found.pool.data(), expected.pool.data(), found.pool.size()), 0);
    }
  });
}

TEST(CudaRopeAppend, ARowDependsOnNoOther) {  // no tsan
  for (const Shape& shape : shapes()) {
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
