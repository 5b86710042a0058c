// One row of the table for each token. A row is a column of a panel, so this reads a few bytes of
// each of the panel's lines. Results are exact or rounded once, and the same in every table;
// denormals are flushed, as in all ops of a pool.
#pragma once

#include "kernels/cpu/linear/codes.inl"

void embed_float32(const std::byte* panel, int64_t row, int64_t cols, float* out) {
  const auto* weights = reinterpret_cast<const float*>(panel);
  for (int64_t col = 0; col < cols; ++col) out[col] = weights[col * kPanelRows + row];
}

// Element `row` of sixteen float16, as float32.
SINKSTREAM_INLINE float half_at(const std::byte* halves, int64_t row) {
  const auto* lanes = reinterpret_cast<const f16*>(halves) + row / kLanes * kLanes;
  float values[kLanes];
  store(values, load_f16(lanes));
  return values[row % kLanes];
}

void embed_float16(const std::byte* panel, int64_t row, int64_t cols, float* out) {
  for (int64_t col = 0; col < cols; ++col) out[col] = half_at(panel + col * kPanelRows * 2, row);
}

void embed_bfloat16(const std::byte* panel, int64_t row, int64_t cols, float* out) {
  for (int64_t col = 0; col < cols; ++col) {
    const int64_t element = (col / 2 * kPanelRows + row) * 2 + col % 2;
    const uint32_t bits = reinterpret_cast<const bf16*>(panel)[element].bits;
    out[col] = __builtin_bit_cast(float, bits << 16);
  }
}

// What the code of `row` in column `col` of a unit stands for.
template <PanelFormat kFormat>
SINKSTREAM_INLINE float value_at(const std::byte* codes, int64_t row, int col) {
  if constexpr (kFormat.bits == 8) {
    return static_cast<float>(
        static_cast<int8_t>(codes[(col / 4 * kPanelRows + row) * 4 + col % 4]));
  } else {
    return values_at<kFormat>(codes, col, static_cast<int>(row / kLanes))[row % kLanes];
  }
}

template <PanelFormat kFormat>
void embed_codes(const std::byte* panel, int64_t row, int64_t cols, float* out) {
  const int v = static_cast<int>(row / kLanes);
  const int64_t lane = row % kLanes;
  for_each_unit<kFormat>(panel, cols, [&](const Unit& unit) {
    const std::byte* const scales = unit.block + block_code_bytes(kFormat);
#pragma GCC unroll 32
    for (int col = 0; col < kUnit; ++col, ++out) {
      const int64_t group = (unit.index * kUnit + col) / kFormat.group;
      const float scale = scales_of<kFormat>(scales, group, v)[lane];
      *out = scale * value_at<kFormat>(codes_of<kFormat>(unit), row, col);  // exact
      if constexpr (has_minimum(kFormat)) *out += minima_of<kFormat>(scales, group, v)[lane];
    }
  });
}

using EmbedRow = void(const std::byte* panel, int64_t row, int64_t cols, float* out);

template <PanelFormat kFormat>
constexpr EmbedRow* embed_row() {
  if constexpr (kFormat.number == Number::kFloat32) return embed_float32;
  if constexpr (kFormat.number == Number::kFloat16) return embed_float16;
  if constexpr (kFormat.number == Number::kBFloat16) return embed_bfloat16;
  if constexpr (is_coded(kFormat)) return embed_codes<kFormat>;
}

void embedding(const EmbeddingArgs& args, const Launch& launch) {
  static constexpr auto kRows =
      per_format<EmbedRow*>([]<PanelFormat kFormat>() { return embed_row<kFormat>(); });
  EmbedRow* const embed = kRows[static_cast<size_t>(args.table.type)];
  launch.pool->run(args.tokens, [&](int64_t token, int) {
    const int64_t id = args.ids[token];
    embed(args.table.panel(id / kPanelRows), id % kPanelRows, args.table.cols,
          args.out + token * args.table.cols);
  });
}
