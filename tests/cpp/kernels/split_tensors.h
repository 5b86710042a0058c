// Random tensors of a quantized Hugging Face folder, and the matrix that they are packed into.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/matrix.h"
#include "kernels/pack_split.h"

namespace sinkstream {

inline constexpr int64_t kTensorRows = 40, kTensorCols = 256;

struct SplitTensors {
  SplitFormat format;
  std::vector<std::byte> parts[kSplitTensors];

  // A whole matrix is packed in pieces of about `bytes` bytes.
  Panels pack(const int32_t* order, int64_t bytes) const {
    const WeightType type = weight_type_of(format.storage);
    Panels panels =
        make_panels(packed_bytes(type, kTensorRows, kTensorCols, split_block(format, kTensorCols)));
    for (const SplitPiece& piece :
         split_pieces(format, kTensorRows, kTensorCols, order != nullptr, bytes)) {
      std::vector<std::byte> source;
      for (int i = 0; i < kSplitTensors; ++i) {
        const auto begin = parts[i].begin() + piece.spans[i].offset;
        source.insert(source.end(), begin, begin + piece.spans[i].bytes);
      }
      EXPECT_TRUE(
          pack_split(format, kTensorRows, kTensorCols, order, piece, source.data(), panels.get()));
    }
    return panels;
  }

  PackedMatrix matrix(const Panels& panels) const {
    return {.type = weight_type_of(format.storage),
            .rows = kTensorRows,
            .cols = kTensorCols,
            .panels = panels.get(),
            .block = split_block(format, kTensorCols)};
  }
};

inline std::vector<std::byte> random_bytes(int64_t count, std::mt19937* random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((*random)() % 127);  // no NaN of FP8
  return bytes;
}

// Scales of 16 bits, each for `group` columns, of `rows` rows or, in columns, of all.
inline SplitTensors random_split_tensors(SplitLayout layout, Storage storage, int64_t group,
                                         uint32_t seed) {
  std::mt19937 random(seed);
  SplitTensors found = {.format = {.layout = layout,
                                   .storage = storage,
                                   .scale_type = Storage::kF16,
                                   .group = group,
                                   .has_zero_points = storage != Storage::kFp8},
                        .parts = {}};
  const int64_t bits = storage == Storage::kInt4 ? 4 : 8, groups = kTensorCols / group;
  found.parts[0] = random_bytes(kTensorRows * kTensorCols * bits / 8, &random);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < kTensorRows * groups; ++i) {
    const f16 scale = to_f16(normal(random));
    const auto* bytes = reinterpret_cast<const std::byte*>(&scale);
    found.parts[1].insert(found.parts[1].end(), bytes, bytes + 2);
  }
  if (found.format.has_zero_points) {
    found.parts[2] = random_bytes(kTensorRows * bits / 8 * groups, &random);
  }
  return found;
}

// The same numbers with groups of a quarter of the length, in rows.
inline SplitTensors with_short_groups(const SplitTensors& tensors) {
  const auto repeat = [&](const std::vector<std::byte>& from, int64_t width) {
    std::vector<std::byte> to;
    for (auto at = from.begin(); at != from.end(); at += width) {
      for (int i = 0; i < 4; ++i) to.insert(to.end(), at, at + width);
    }
    return to;
  };
  SplitTensors found = tensors;
  found.format.group /= 4;
  found.parts[1] = repeat(tensors.parts[1], 2);
  found.parts[2] = repeat(tensors.parts[2], 4);
  return found;
}

}  // namespace sinkstream
