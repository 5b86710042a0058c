// A call of `linear` on synthetic weights, for benchmarks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/table.h"

namespace sinkstream {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
using Memory = std::unique_ptr<T[], Free>;

template <typename T>
Memory<T> allocate(int64_t count) {
  return Memory<T>(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)));
}

constexpr int64_t kOpenBlock = 128;  // columns of a block, where the format leaves it open

// Fills panels with small, finite numbers: one block's pattern, repeated.
inline void fill_panels(WeightType type, int64_t bytes, std::byte* panels) {
  constexpr int64_t kPattern = 1 << 16;
  std::vector<std::byte> pattern(kPattern);
  uint32_t state = 1;
  for (int64_t i = 0; i < kPattern; ++i) {
    state = state * 1664525 + 1013904223;
    pattern[i] = static_cast<std::byte>(state >> 24);
  }
  const int64_t width = type == WeightType::kFloat32 ? 4 : 2;
  if (!is_quantized(type)) {
    for (int64_t i = width - 1; i < kPattern; i += width) {
      pattern[i] = (pattern[i] & std::byte{0x81}) | std::byte{0x38};  // exponents near zero
    }
  }
  for (int64_t at = 0; at < bytes; at += kPattern) {
    std::copy_n(pattern.data(), std::min(kPattern, bytes - at), panels + at);
  }
  if (!is_quantized(type)) return;
  const PanelFormat format = format_of(type);
  const int64_t block = block_bytes(format, kOpenBlock);
  const int64_t halves = format.scales == Scales::kPower ? 0 : has_minimum(format) ? 2 : 1;
  for (int64_t at = block_code_bytes(format, kOpenBlock); at < bytes; at += block) {
    if (is_open(format)) {  // scales near one
      const int64_t width = format.scales == Scales::kZeroPoint24 ? 2 : 4;
      for (int64_t i = 0; i < kPanelRows; ++i) {
        panels[at + width * i + width - 1] = std::byte{0x3f};
      }
      continue;
    }
    for (int64_t i = 0; i < halves * kPanelRows; ++i) panels[at + 2 * i + 1] = std::byte{0x20};
    for (int64_t i = 0; halves == 0 && i < kPanelRows; ++i) panels[at + i] = std::byte{0x7c};
  }
}

struct Call {
  LinearArgs args;
  LinearPart part;
  Memory<float> input;
  Memory<float> out;
  Memory<std::byte> scratch;

  Call(const PackedMatrix& weights, int64_t tokens, InputType input_type, int threads)
      : input(allocate<float>(tokens * weights.cols)),
        out(allocate<float>(tokens * weights.rows)),
        scratch(allocate<std::byte>(linear_scratch_bytes(tokens, weights.cols, threads))) {
    for (int64_t i = 0; i < tokens * weights.cols; ++i) input[i] = static_cast<float>(i % 17 - 8);
    part = {.weights = weights, .out = out.get(), .out_stride = weights.rows};
    args = {.input = input.get(),
            .input_stride = weights.cols,
            .tokens = tokens,
            .cols = weights.cols,
            .input_type = input_type,
            .part_count = 1,
            .scratch = scratch.get()};
  }

  double seconds(const Kernels& kernels, ThreadPool* pool) {
    args.parts = &part;
    const double start = now_s();
    kernels.linear(args, {pool});
    return now_s() - start;
  }
};

}  // namespace sinkstream
