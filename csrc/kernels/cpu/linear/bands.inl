// linear's inputs for the tile unit, in bands of tokens: a token is a row of a register, and a
// group of 32 columns is as wide as a register.
#pragma once

// Tokens in a band. A call uses the smallest size that holds all its tokens, or bands of kTileRows;
// the last band is padded with zeros.
constexpr int kBandSizes[] = {1, 2, 4, 8, kTileRows};

// The inputs of one call in LinearArgs::scratch.
struct Bands {
  int64_t size;  // tokens in each, padding included
  int64_t count;
  int64_t groups;  // of kGroup columns, the last one padded
  bf16* inputs;    // [count][groups][size][kGroup]
  float* sums;     // [count][groups][size]: Σx of each group, if a part's codes have minima
  float* floats;   // [groups][kGroup]: the inputs of a single token as floats
  bool has_sums;
};

int band_size(int64_t tokens) {
  for (const int size : kBandSizes) {
    if (size >= tokens) return size;
  }
  return kTileRows;
}

// The scratch of a token holds its inputs twice, and its sums.
static_assert(linear_token_bytes(kGroup) >= kGroup * 2 + kGroup * 4 + 4);

// `copy`: a single token has one per thread.
Bands bands_in_scratch(const LinearArgs& args, int64_t copy) {
  const int64_t size = band_size(args.tokens);
  const int64_t count = divide_up(args.tokens, size);
  const int64_t groups = divide_up(args.cols, kGroup);
  const int64_t entries = count * groups * size;
  auto* inputs = reinterpret_cast<bf16*>(args.scratch + copy * linear_token_bytes(args.cols));
  auto* sums = reinterpret_cast<float*>(inputs + entries * kGroup);
  bool has_sums = false;
  for (int64_t i = 0; i < args.part_count; ++i) {
    has_sums |= args.parts[i].weights.type == WeightType::kInt4Minimum;
  }
  return {.size = size,
          .count = count,
          .groups = groups,
          .inputs = inputs,
          .sums = sums,
          .floats = sums + entries,
          .has_sums = has_sums};
}

// Rounds group `entry` of the inputs. `x`: its kGroup columns.
SINKSTREAM_INLINE void prepare_group(const Bands& bands, int64_t entry, const float* x) {
  Vec sum{};
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    const Vec part = round_bf16(load(x + i));
    store_bf16(bands.inputs + entry * kGroup + i, part);
    if (bands.size == 1) store(bands.floats + entry * kGroup + i, part);
    sum = sum + part;
  }
  if (bands.has_sums) bands.sums[entry] = reduce_add(sum);
}

// Rounds one token's inputs; zeros past the last token. `t` counts within the band.
void prepare_band_token(const LinearArgs& args, const Bands& bands, int64_t band, int64_t t) {
  const int64_t token = band * bands.size + t;
  const bool is_padding = token >= args.tokens;
  const float* const x = is_padding ? nullptr : args.input + token * args.input_stride;
  int64_t entry = band * bands.groups * bands.size + t;
  for (int64_t col = 0; col < args.cols; col += kGroup, entry += bands.size) {
    if (!is_padding && args.cols - col >= kGroup) {
      prepare_group(bands, entry, x + col);
    } else {
      float some[kGroup] = {};
      if (!is_padding) __builtin_memcpy(some, x + col, (args.cols - col) * 4);
      prepare_group(bands, entry, some);
    }
  }
}
