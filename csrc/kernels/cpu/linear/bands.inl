// linear's inputs for the tile unit, in bands of tokens: a token is a row of a register, and a
// unit of 32 columns is as wide as a register.
#pragma once

// Tokens in a band. A call uses the smallest size that holds all its tokens, or bands of kTileRows;
// the last band is padded with zeros.
constexpr int kBandSizes[] = {1, 2, 4, 8, kTileRows};

// The inputs of one call in LinearArgs::scratch.
struct Bands {
  int64_t size;  // tokens in each, padding included
  int64_t count;
  int64_t units;     // of kUnit columns, the last one padded
  bf16* inputs;      // [count][units][size][kUnit]
  float* sums;       // [count][units][size]: Σx of each unit, if a part's codes have minima
  float* half_sums;  // [count][units][2][size]: of each half of it, likewise
  float* floats;     // [units][kUnit]: the inputs of a single token as floats
  bool has_sums;
  bool has_half_sums;

  const float* sums_of(const PanelFormat& format) const {
    return needs_half_sums(format) ? half_sums : sums;
  }
};

int band_size(int64_t tokens) {
  for (const int size : kBandSizes) {
    if (size >= tokens) return size;
  }
  return kTileRows;
}

// The scratch of a token holds its inputs twice, and its sums.
static_assert(linear_token_bytes(2 * kUnit) >= 2 * (kUnit * 2 + kUnit * 4 + 3 * 4));

// `copy`: a single token has one per thread.
Bands bands_in_scratch(const LinearArgs& args, int64_t copy) {
  const int64_t size = band_size(args.tokens);
  const int64_t count = divide_up(args.tokens, size);
  const int64_t units = divide_up(args.cols, kUnit);
  const int64_t entries = count * units * size;
  auto* inputs = reinterpret_cast<bf16*>(args.scratch + copy * linear_token_bytes(args.cols));
  auto* sums = reinterpret_cast<float*>(inputs + entries * kUnit);
  bool has_sums = false, has_half_sums = false;
  for (int64_t i = 0; i < args.part_count; ++i) {
    const PanelFormat format = format_of(args.parts[i].weights.type);
    has_half_sums |= needs_half_sums(format);
    has_sums |= has_minimum(format) && !has_half_groups(format);
  }
  return {.size = size,
          .count = count,
          .units = units,
          .inputs = inputs,
          .sums = sums,
          .half_sums = sums + entries,
          .floats = sums + 3 * entries,
          .has_sums = has_sums,
          .has_half_sums = has_half_sums};
}

// Rounds unit `entry` of the inputs, of token `t` of its band. `x`: its kUnit columns.
SINKSTREAM_INLINE void prepare_unit(const Bands& bands, int64_t entry, int64_t t, const float* x) {
  Vec sum{};
  for (int64_t i = 0; i < kUnit; i += kLanes) {
    const Vec part = round_bf16(load(x + i));
    store_bf16(bands.inputs + entry * kUnit + i, part);
    if (bands.size == 1) store(bands.floats + entry * kUnit + i, part);
    static_assert(kLanes == kUnit / 2);
    const int64_t half = 2 * (entry - t) + t + i / kLanes * bands.size;
    if (bands.has_half_sums) bands.half_sums[half] = reduce_add(part);
    sum = sum + part;
  }
  if (bands.has_sums) bands.sums[entry] = reduce_add(sum);
}

// Rounds one token's inputs; zeros past the last token. `t` counts within the band.
void prepare_band_token(const LinearArgs& args, const Bands& bands, int64_t band, int64_t t) {
  const int64_t token = band * bands.size + t;
  const bool is_padding = token >= args.tokens;
  const float* const x = is_padding ? nullptr : input_of_token(args, token);
  int64_t entry = band * bands.units * bands.size + t;
  for (int64_t col = 0; col < args.cols; col += kUnit, entry += bands.size) {
    if (!is_padding && args.cols - col >= kUnit) {
      prepare_unit(bands, entry, t, x + col);
    } else {
      float some[kUnit] = {};
      if (!is_padding) __builtin_memcpy(some, x + col, (args.cols - col) * 4);
      prepare_unit(bands, entry, t, some);
    }
  }
}
