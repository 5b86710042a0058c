// An endless stream for the attention tests: random queries, keys and values of any token, the
// pages of a sequence, and a ring in which everything that is not live is NaN.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "cache/angles.h"
#include "cache/window.h"
#include "kernels/guarded.h"
#include "kernels/reference/page_element.h"
#include "kernels/table.h"

namespace sinkstream {

using reference::Half;

struct FreeBytes {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Bytes = std::unique_ptr<std::byte[], FreeBytes>;

inline constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                   DType::kInt8};

// All floats of any type in it are NaN, and so are the scales of int8.
inline Bytes nan_bytes(int64_t count) {
  Bytes memory(static_cast<std::byte*>(std::aligned_alloc(64, (count + 63) / 64 * 64)));
  std::memset(memory.get(), 0xff, count);
  return memory;
}

// A token's key or value, as stored.
inline std::vector<float> stored_row(const Slot& slot, const PageShape& shape, Half half,
                                     int64_t head) {
  std::vector<float> numbers;
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    numbers.push_back(reference::read_element(slot.page, shape, half, head, slot.row, d));
  }
  return numbers;
}

// The parameters of a stream.
struct StreamSpec {
  Window window;
  int64_t heads = 1;
  PageShape shape;
  int64_t rotary_dim = 0;
  Pairing pairing = Pairing::kHalf;
  double base = 10000;
  double attention_factor = 1;
  float scale = 0.3f;
  uint64_t seed = 1;
  std::optional<DType> sink_type = std::nullopt;  // if different from the window
  float soft_cap = 0;
  std::vector<float> slopes = {};       // [heads], or none
  std::vector<float> sink_logits = {};  // [heads], or none

  PageShape sink_shape() const {
    return {.kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .type = sink_type.value_or(shape.type)};
  }

  std::vector<double> frequencies() const {
    std::vector<double> found;
    for (int64_t d = 0; d < rotary_dim; d += 2) {
      found.push_back(std::pow(base, -static_cast<double>(d) / rotary_dim));
    }
    return found;
  }
};

enum class Part : uint64_t { kQuery, kKey, kValue };

// Numbers that depend only on the token: about ±1, with outliers.
inline std::vector<float> random_part(const StreamSpec& spec, Part part, int64_t token) {
  const int64_t heads = part == Part::kQuery ? spec.heads : spec.shape.kv_heads;
  uint64_t state = (spec.seed * 3 + static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15 +
                   static_cast<uint64_t>(token) * 0xd1342543de82ef95;
  std::vector<float> numbers(heads * spec.shape.head_dim);
  for (float& number : numbers) {
    state += 0x9e3779b97f4a7c15;  // splitmix64
    uint64_t x = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
    number = static_cast<float>(static_cast<int64_t>(x) >> 11) * 0x1p-52f;
    if (x % 64 == 0) number *= 6;
  }
  return numbers;
}

class TestStream {
 public:
  // The ops rope and append come from `kernels`.
  TestStream(const StreamSpec& spec, const Kernels& kernels)
      : spec_(spec),
        kernels_(kernels),
        angles_(spec.frequencies(), spec.attention_factor),
        memory_(nan_bytes(spec.window.sink_pages() * spec.sink_shape().bytes() +
                          spec.window.window_pages() * spec.shape.bytes())) {
    std::byte* page = memory_.get();
    for (int64_t p = 0; p < spec.window.sink_pages(); ++p) {
      pages_.push_back(page);
      page += spec.sink_shape().bytes();
    }
    for (int64_t p = 0; p < spec.window.window_pages(); ++p) {
      pages_.push_back(page);
      page += spec.shape.bytes();
    }
  }

  const StreamSpec& spec() const { return spec_; }
  int64_t page_count() const { return static_cast<int64_t>(pages_.size()); }

  // The slot of token i.
  Slot slot(int64_t i) const {
    const Window& window = spec_.window;
    if (window.is_sink(i)) return {pages_[i / kPageRows], i % kPageRows};
    return {pages_[window.sink_pages() + window.block(i) % window.window_pages()], window.row(i)};
  }

  // Sets everything that the query of t no longer sees to NaN, then writes the tokens [t, t +
  // count).
  void append(int64_t t, int64_t count, ThreadPool* pool) {
    const Window& window = spec_.window;
    // Older ones were overwritten: the ring is that long.
    forgotten_ = std::max({forgotten_, window.sinks, t - window.window_pages() * kPageRows});
    for (; forgotten_ < std::min(window.first(t), t); ++forgotten_) poison(forgotten_);
    const int64_t sinks = std::clamp<int64_t>(window.sinks - t, 0, count);
    if (sinks > 0) write(t, sinks, spec_.sink_shape(), pool);
    if (count > sinks) write(t + sinks, count - sinks, spec_.shape, pool);
  }

  // The queries of [t, t + count), rotated by the tokens' indices or by their ranks.
  std::vector<float> queries(int64_t t, int64_t count, bool by_rank, ThreadPool* pool) const {
    std::vector<float> plain;
    std::vector<int64_t> positions;
    for (int64_t i = t; i < t + count; ++i) {
      const std::vector<float> query = random_part(spec_, Part::kQuery, i);
      plain.insert(plain.end(), query.begin(), query.end());
      positions.push_back(by_rank ? spec_.window.rank(i) : i);
    }
    std::vector<float> rotated(plain.size());
    const PositionAngles angles(*this, positions);
    kernels_.rope({.input = plain.data(),
                   .input_stride = spec_.heads * spec_.shape.head_dim,
                   .out = rotated.data(),
                   .rows = count,
                   .heads = spec_.heads,
                   .head_dim = spec_.shape.head_dim,
                   .rotation = angles.rotation()},
                  {pool});
    return rotated;
  }

  AttentionSpan span(int64_t row, int64_t t, int64_t count) const {
    return {.row = row,
            .count = count,
            .index = t,
            .sinks = spec_.window.sinks,
            .sink_pages = pages_.data(),
            .window_pages = pages_.data() + spec_.window.sink_pages(),
            .window_page_count = spec_.window.window_pages()};
  }

  // Sets token i to NaN.
  void poison(int64_t i) {
    const PageShape shape = spec_.window.is_sink(i) ? spec_.sink_shape() : spec_.shape;
    const Slot at = slot(i);
    const std::vector<float> nothing(shape.head_dim, NAN);
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      for (const Half half : {Half::kKeys, Half::kValues}) {
        reference::write_row(at.page, shape, half, h, at.row, nothing.data());
      }
    }
  }

 private:
  // Runs the op append for tokens of one kind.
  void write(int64_t t, int64_t count, const PageShape& shape, ThreadPool* pool) {
    std::vector<float> keys, values;
    std::vector<Slot> slots;
    std::vector<int64_t> positions;
    for (int64_t i = t; i < t + count; ++i) {
      const std::vector<float> key = random_part(spec_, Part::kKey, i);
      const std::vector<float> value = random_part(spec_, Part::kValue, i);
      keys.insert(keys.end(), key.begin(), key.end());
      values.insert(values.end(), value.begin(), value.end());
      slots.push_back(slot(i));
      positions.push_back(i);
    }
    const PositionAngles angles(*this, positions);
    kernels_.append({.keys = keys.data(),
                     .values = values.data(),
                     .key_stride = spec_.shape.kv_heads * spec_.shape.head_dim,
                     .value_stride = spec_.shape.kv_heads * spec_.shape.head_dim,
                     .slots = slots.data(),
                     .rows = count,
                     .shape = shape,
                     .rotation = angles.rotation()},
                    {pool});
  }

  // Cosines and sines of some positions.
  class PositionAngles {
   public:
    PositionAngles(const TestStream& stream, const std::vector<int64_t>& positions)
        : stream_(stream), cos_(positions.size() * stream.angles_.pairs()), sin_(cos_.size()) {
      stream.angles_.fill(positions.data(), static_cast<int64_t>(positions.size()), cos_.data(),
                          sin_.data());
    }
    Rotation rotation() const {
      return {.cos = cos_.data(),
              .sin = sin_.data(),
              .rotary_dim = stream_.spec_.rotary_dim,
              .pairing = stream_.spec_.pairing};
    }

   private:
    const TestStream& stream_;
    std::vector<float> cos_, sin_;
  };

  StreamSpec spec_;
  const Kernels& kernels_;
  Angles angles_;
  Bytes memory_;
  std::vector<std::byte*> pages_;  // sink pages, then the ring
  int64_t forgotten_ = 0;          // window tokens before this one have become NaN
};

// Some tokens of one stream in a call.
struct Piece {
  TestStream* stream;
  int64_t index;
  int64_t count;
};

// One call of attention over pieces of one or several streams, whose tokens were appended before.
// All streams share heads, shape and scale.
class AttentionCall {
 public:
  AttentionCall(const std::vector<Piece>& pieces, ThreadPool* pool) : pool_(pool) {
    const StreamSpec& spec = pieces[0].stream->spec();
    int64_t pages = 0;
    for (const Piece& piece : pieces) {
      const TestStream& stream = *piece.stream;
      spans_.push_back(stream.span(rows_, piece.index, piece.count));
      const auto window = stream.queries(piece.index, piece.count, false, pool);
      const auto sink = stream.queries(piece.index, piece.count, true, pool);
      query_window_.insert(query_window_.end(), window.begin(), window.end());
      query_sink_.insert(query_sink_.end(), sink.begin(), sink.end());
      for (int64_t i = piece.index; i < piece.index + piece.count; ++i) {
        first_.push_back(stream.spec().window.first(i));
        rank_.push_back(stream.spec().window.rank(i));
      }
      rows_ += piece.count;
      pages = std::max(pages, stream.page_count());
    }
    scratch_bytes_ =
        attention_scratch_bytes(spec.heads, spec.shape.head_dim, pages, pool->threads());
    scratch_ = nan_bytes(scratch_bytes_ + kGuardBytes);
    args_ = {.query_window = query_window_.data(),
             .query_sink = query_sink_.data(),
             .first = first_.data(),
             .rank = rank_.data(),
             .spans = spans_.data(),
             .span_count = static_cast<int64_t>(spans_.size()),
             .rows = rows_,
             .heads = spec.heads,
             .shape = spec.shape,
             .sink_type = spec.sink_shape().type,
             .scale = spec.scale,
             .soft_cap = spec.soft_cap,
             .slopes = spec.slopes.empty() ? nullptr : spec.slopes.data(),
             .sink_logits = spec.sink_logits.empty() ? nullptr : spec.sink_logits.data(),
             .scratch = scratch_.get(),
             .scratch_pages = pages};
  }

  // All rows, [rows, heads, head_dim].
  std::vector<float> run(AttentionOp* op) {
    Guarded out(row_size() * rows_, 3);
    AttentionArgs args = args_;
    args.out = out.get();
    op(args, {pool_});
    EXPECT_TRUE(out.is_intact());
    for (int64_t i = 0; i < kGuardBytes; ++i) {
      EXPECT_EQ(scratch_[scratch_bytes_ + i], std::byte{0xff}) << "scratch is overrun";
    }
    return {out.get(), out.get() + out.count()};
  }

  // Makes later calls assume that the scratch has room for `pages` pages only.
  void set_scratch_pages(int64_t pages) { args_.scratch_pages = pages; }

  // One row, by the reference.
  std::vector<float> expected(int64_t row) const {
    size_t s = 0;
    while (row >= spans_[s].row + spans_[s].count) ++s;
    AttentionSpan span = spans_[s];
    span.index += row - span.row;
    span.row = 0;
    span.count = 1;
    std::vector<float> out(row_size());
    AttentionArgs args = args_;
    args.query_window += row * row_size();
    args.query_sink += row * row_size();
    args.first += row;
    args.rank += row;
    args.out = out.data();
    args.spans = &span;
    args.span_count = 1;
    args.rows = 1;
    reference_kernels().attention(args, {pool_});
    return out;
  }

  int64_t rows() const { return rows_; }
  int64_t row_size() const { return args_.heads * args_.shape.head_dim; }

 private:
  static constexpr int64_t kGuardBytes = 256;

  ThreadPool* pool_;
  int64_t rows_ = 0;
  std::vector<AttentionSpan> spans_;
  std::vector<float> query_window_, query_sink_;
  std::vector<int64_t> first_, rank_;
  int64_t scratch_bytes_ = 0;
  Bytes scratch_;
  AttentionArgs args_;
};

// One row of cosines and sines: the angles of a distance.
struct ShiftAngles {
  ShiftAngles(const StreamSpec& spec, int64_t distance) : spec(spec) {
    const Angles angles(spec.frequencies());
    cos.resize(angles.pairs());
    sin.resize(angles.pairs());
    angles.fill(&distance, 1, cos.data(), sin.data());
  }
  Rotation rotation() const {
    return {.cos = cos.data(),
            .sin = sin.data(),
            .rotary_dim = spec.rotary_dim,
            .pairing = spec.pairing};
  }

  StreamSpec spec;
  std::vector<float> cos, sin;
};

}  // namespace sinkstream
