// One row of the table for each token. A row is a column of a panel, so this reads a few bytes of
// each of the panel's lines. Results are exact or rounded once, and the same in every table;
// denormals are flushed, as in all ops of a pool.
#pragma once

#include "kernels/cpu/linear/codes.inl"

// Row `id` is row `id % kPanelRows` of this panel.
SINKSTREAM_INLINE const std::byte* panel_of(const PackedMatrix& table, int64_t id) {
  return table.panel(id / kPanelRows);
}

void embed_float32(const PackedMatrix& table, int64_t id, float* out) {
  const auto* weights = reinterpret_cast<const float*>(panel_of(table, id)) + id % kPanelRows;
  for (int64_t col = 0; col < table.cols; ++col) out[col] = weights[col * kPanelRows];
}

// Element `row` of sixteen float16, as float32.
SINKSTREAM_INLINE float half_at(const std::byte* halves, int64_t row) {
  const auto* lanes = reinterpret_cast<const f16*>(halves) + row / kLanes * kLanes;
  float values[kLanes];
  store(values, load_f16(lanes));
  return values[row % kLanes];
}

void embed_float16(const PackedMatrix& table, int64_t id, float* out) {
  const std::byte* const panel = panel_of(table, id);
  for (int64_t col = 0; col < table.cols; ++col) {
    out[col] = half_at(panel + col * kPanelRows * 2, id % kPanelRows);
  }
}

void embed_bfloat16(const PackedMatrix& table, int64_t id, float* out) {
  const auto* const numbers = reinterpret_cast<const bf16*>(panel_of(table, id));
  for (int64_t col = 0; col < table.cols; ++col) {
    const uint32_t bits = numbers[(col / 2 * kPanelRows + id % kPanelRows) * 2 + col % 2].bits;
    out[col] = __builtin_bit_cast(float, bits << 16);
  }
}

// What the code of `row` in column `col` of a unit stands for.
template <PanelFormat kFormat>
SINKSTREAM_INLINE float value_at(const std::byte* codes, int64_t row, int col) {
  const int v = static_cast<int>(row / kLanes);
  if constexpr (kFormat.values == CodeValues::kE4m3) {
    return e4m3_of_byte(code_word(codes, col / 4, v), col % 4)[row % kLanes];
  } else if constexpr (kFormat.bits == 8) {
    return static_cast<float>(
        static_cast<int8_t>(codes[(col / 4 * kPanelRows + row) * 4 + col % 4]));
  } else {
    return values_at<kFormat>(codes, col, v)[row % kLanes];
  }
}

template <PanelFormat kFormat>
void embed_codes(const PackedMatrix& table, int64_t id, float* out) {
  const int64_t row = id % kPanelRows;
  const int v = static_cast<int>(row / kLanes);
  const int64_t lane = row % kLanes;
  for_each_unit<kFormat>(panel_of(table, id), table.cols, table.block, [&](const Unit& unit) {
    const std::byte* const scales = unit.scales;
#pragma GCC unroll 32
    for (int col = 0; col < kUnit; ++col, ++out) {
      const int64_t group = (unit.index * kUnit + col) / kFormat.group;
      const float scale = scales_of<kFormat>(scales, group, v)[lane];
      float value = value_at<kFormat>(codes_of<kFormat>(unit), row, col);
      if constexpr (has_zero_point(kFormat)) {
        value -= zero_points_of<kFormat>(scales, v)[lane];
      }
      *out = scale * value;  // exact, but for FP8
      if constexpr (has_minimum(kFormat) && !has_zero_point(kFormat)) {
        *out += minima_of<kFormat>(scales, group, v)[lane];
      }
    }
  });
}

using EmbedRow = void(const PackedMatrix& table, int64_t id, float* out);

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
    float* const out = args.out + token * args.table.cols;
    embed(args.table, args.ids[token], out);
    if (args.scale == 1) return;
    for (int64_t col = 0; col < args.table.cols; ++col) out[col] *= args.scale;
  });
}
