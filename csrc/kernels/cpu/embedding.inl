// One row of the table for each token. A row is a column of a panel, so this reads a few bytes of
// each of the panel's lines. Results are exact or rounded once, and the same in every table.
#pragma once

// Element `row` of sixteen float16, as float32.
SINKSTREAM_INLINE float half_at(const std::byte* halves, int64_t row) {
  const auto* lanes = reinterpret_cast<const f16*>(halves) + row / kLanes * kLanes;
  float values[kLanes];
  store(values, load_f16(lanes));
  return values[row % kLanes];
}

void embed_float32(const std::byte* panel, int64_t row, int64_t cols, float* out) {
  const auto* weights = reinterpret_cast<const float*>(panel);
  for (int64_t col = 0; col < cols; ++col) out[col] = weights[col * kPanelRows + row];
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

void embed_int8(const std::byte* panel, int64_t row, int64_t cols, float* out) {
  for (int64_t group = 0; group < cols / kGroup; ++group) {
    const std::byte* block = panel + group * block_bytes(WeightType::kInt8);
    const float scale = half_at(block + kPanelRows * kGroup, row);
    for (int64_t col = 0; col < kGroup; ++col) {
      const auto code = static_cast<int8_t>(block[(col / 4 * kPanelRows + row) * 4 + col % 4]);
      out[group * kGroup + col] = scale * static_cast<float>(code);
    }
  }
}

void embed_int4(const std::byte* panel, int64_t row, int64_t cols, bool has_minimum, float* out) {
  const int64_t bytes = block_bytes(has_minimum ? WeightType::kInt4Minimum : WeightType::kInt4);
  for (int64_t group = 0; group < cols / kGroup; ++group) {
    const std::byte* block = panel + group * bytes;
    const std::byte* scales = block + kPanelRows * kGroup / 2;
    const float scale = half_at(scales, row);
    const float minimum = has_minimum ? half_at(scales + kPanelRows * 2, row) : 0.0f;
    const int offset = has_minimum ? 0 : 8;
    for (int64_t col = 0; col < kGroup; ++col) {
      const auto word = reinterpret_cast<const uint32_t*>(block)[col / 8 * kPanelRows + row];
      const int code = (word >> (4 * (col % 8 / 2 + col % 2 * 4))) & 15;
      const float product = scale * static_cast<float>(code - offset);  // exact
      out[group * kGroup + col] = has_minimum ? product + minimum : product;
    }
  }
}

void embedding(const EmbeddingArgs& args, const Launch& launch) {
  launch.pool->run(args.tokens, [&](int64_t token, int) {
    const int64_t cols = args.table.cols;
    const std::byte* panel = args.table.panel(args.ids[token] / kPanelRows);
    const int64_t row = args.ids[token] % kPanelRows;
    float* out = args.out + token * cols;
    switch (args.table.type) {
      case WeightType::kFloat32: return embed_float32(panel, row, cols, out);
      case WeightType::kFloat16: return embed_float16(panel, row, cols, out);
      case WeightType::kBFloat16: return embed_bfloat16(panel, row, cols, out);
      case WeightType::kInt8: return embed_int8(panel, row, cols, out);
      case WeightType::kInt4: return embed_int4(panel, row, cols, false, out);
      case WeightType::kInt4Minimum: return embed_int4(panel, row, cols, true, out);
    }
  });
}
