// Calls GPU attention on the streams of the CPU's tests, and the reference on the same numbers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "cuda/device_pages.h"
#include "kernels/attention_fixture.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/seen_pages.h"

namespace sinkstream::cuda {

inline constexpr DType kGpuTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kInt8};

// bfloat16, as stored.
using Bits = std::vector<uint16_t>;

inline std::vector<float> floats_of(const Bits& bits) {
  std::vector<float> numbers;
  for (const uint16_t x : bits) numbers.push_back(to_float(sinkstream::bf16{x}));
  return numbers;
}

// Feeds the tokens [begin, end).
inline void feed(TestStream* stream, int64_t begin, int64_t end, ThreadPool* pool) {
  for (int64_t t = begin, count; t < end; t += count) {
    count = stream->spec().window.piece(t, end - t);
    stream->append(t, count, pool);
  }
}

// One call over pieces of one or several streams, already appended, which share heads, shape and
// scale. Their pages are those of layer 1. The scratch is NaN.
class AttentionCall {
 public:
  // `idle`: idle rows after each piece.
  AttentionCall(const std::vector<Piece>& pieces, ThreadPool* pool, int idle = 0)
      : pieces_(pieces), pool_(pool), spec_(pieces[0].stream->spec()), gpu_(layers_of(pieces)) {
    for (const Piece& piece : pieces) add(piece, idle);
    for (const TokenRow& row : rows_) {
      const int32_t count =
          row.sequence < 0 ? 0
                           : seen_pages(gpu_.sequence(row.sequence), row.first, row.index).count();
      page_begins_.push_back(page_begins_.back() + count);
    }
  }

  // [rows, heads, head_dim]; idle rows keep 0xFFFF, a NaN.
  Bits decode() { return run(attention_decode, 0); }
  // In spans of `span_rows` rows.
  Bits prefill(int32_t span_rows) { return run(attention_prefill, span_rows); }

  // Moves blocks [block, end) of the first piece's stream from the ring to scratch pages.
  void move_to_scratch(int64_t block, int64_t end) { gpu_.move_to_scratch(0, 1, block, end); }

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t row_size() const { return spec_.heads * spec_.shape.head_dim; }
  bool is_idle(int64_t row) const { return rows_[row].sequence < 0; }

  // One row by the reference, with the same queries as the GPU.
  std::vector<float> expected(int64_t row) const {
    const TokenRow& at = rows_[row];
    const AttentionSpan span = pieces_[at.sequence].stream->span(0, at.index, 1);
    std::vector<float> out(row_size());
    reference_kernels().attention(
        {.query_window = window_.numbers.data() + row * row_size(),
         .query_sink = sink_.numbers.data() + row * row_size(),
         .out = out.data(),
         .first = &at.first,
         .rank = &at.rank,
         .spans = &span,
         .span_count = 1,
         .rows = 1,
         .heads = spec_.heads,
         .shape = spec_.shape,
         .sink_type = spec_.shape.type,
         .scale = spec_.scale,
         .soft_cap = spec_.soft_cap,
         .slopes = spec_.slopes.empty() ? nullptr : spec_.slopes.data(),
         .sink_logits = spec_.sink_logits.empty() ? nullptr : spec_.sink_logits.data()},
        {pool_});
    return out;
  }

 private:
  // Queries in 16 bits, and as floats.
  struct Queries {
    Bits bits;
    std::vector<float> numbers;

    void add(float x, DType cache) {
      if (cache == DType::kFloat16) {
        const sinkstream::f16 rounded = to_f16(x);
        bits.push_back(rounded.bits);
        numbers.push_back(to_float(rounded));
      } else {
        const sinkstream::bf16 rounded = to_bf16(x);
        bits.push_back(rounded.bits);
        numbers.push_back(to_float(rounded));
      }
    }
  };

  // Layer 0 is unused.
  static std::vector<std::vector<const TestStream*>> layers_of(const std::vector<Piece>& pieces) {
    std::vector<std::vector<const TestStream*>> layers;
    for (const Piece& piece : pieces) layers.push_back({nullptr, piece.stream});
    return layers;
  }

  void add(const Piece& piece, int idle) {
    const TestStream& stream = *piece.stream;
    for (int64_t t = piece.index; t < piece.index + piece.count; ++t) {
      rows_.push_back({.index = t,
                       .first = stream.spec().window.first(t),
                       .rank = stream.spec().window.rank(t),
                       .sequence = sequences_});
    }
    const DType type = spec_.shape.type;
    for (const float x : stream.queries(piece.index, piece.count, false, pool_)) {
      window_.add(x, type);
    }
    for (const float x : stream.queries(piece.index, piece.count, true, pool_)) sink_.add(x, type);
    for (int64_t i = 0; i < idle; ++i) {
      rows_.push_back({.index = int64_t{1} << 60, .first = -7, .rank = -7, .sequence = -1});
      for (int64_t d = 0; d < row_size(); ++d) {
        window_.add(NAN, type);
        sink_.add(NAN, type);
      }
    }
    ++sequences_;
  }

  template <typename Op>
  Bits run(const Op& op, int32_t span_rows) {
    constexpr uint16_t kCanary = 0x4321;
    constexpr int64_t kGuard = 64;
    const int64_t count = rows() * row_size();
    Bits out(count + 2 * kGuard, kCanary);
    std::fill(out.begin() + kGuard, out.end() - kGuard, 0xFFFF);
    const int32_t pages = page_begins_.back() - page_begins_.front();
    const int64_t scratch_bytes =
        4 * attention_scratch_floats(spec_.heads, spec_.shape.head_dim, pages);
    const Bytes scratch = nan_bytes(scratch_bytes + kGuard);
    const AttentionArgs args = {
        .query_window = window_.bits.data(),
        .query_sink = sink_.bits.data(),
        .out = out.data() + kGuard,
        .rows = rows_.data(),
        .row_count = static_cast<int32_t>(rows()),
        .heads = static_cast<int32_t>(spec_.heads),
        .pages = gpu_.pages(1),
        .scale = spec_.scale,
        .soft_cap = spec_.soft_cap,
        .slopes = spec_.slopes.empty() ? nullptr : spec_.slopes.data(),
        .sink_logits = spec_.sink_logits.empty() ? nullptr : spec_.sink_logits.data(),
        .span_rows = span_rows,
        .page_begins = page_begins_.data(),
        .page_capacity = pages,
        .scratch = reinterpret_cast<float*>(scratch.get())};
    EXPECT_EQ(op(args, Stream{}), kSuccess);
    for (int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(out[i], kCanary);
      EXPECT_EQ(out[kGuard + count + i], kCanary);
      EXPECT_EQ(scratch[scratch_bytes + i], std::byte{0xff}) << "scratch is overrun";
    }
    return {out.begin() + kGuard, out.end() - kGuard};
  }

  std::vector<Piece> pieces_;
  ThreadPool* pool_;
  StreamSpec spec_;
  std::vector<TokenRow> rows_;
  Queries window_, sink_;
  GpuPool gpu_;
  int32_t sequences_ = 0;
  std::vector<int32_t> page_begins_ = {1000};  // those before belong to other launches
};

}  // namespace sinkstream::cuda
