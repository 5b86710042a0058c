// Rounds the inputs of one call of linear, and lays them out in the order in which its kernels read
// them.
#pragma once

#include "kernels/cpu/linear/panels.inl"
#include "kernels/cpu/linear/tile.inl"

constexpr InputType integers_of(Way way) {
  return way == Way::kInt16 ? InputType::kInt16 : InputType::kInt8;
}

// The layout of a kernel's input.
enum class Form {
  kPlain,   // [cols / kRun][size][kRun] floats
  kScaled,  // the same in the order of a 4-bit word's codes, multiplied by 16^-n
  kPairs,   // [cols / kRun][size][kRun / 2] pairs of bfloat16, or of integers
  kQuads,   // the same of integers, in the order of an 8-bit word's codes
  kBytes,   // [cols / kRun][size][kRun] bytes
  // The same in the order of two pairs of codes. Of a run's pairs 0 to 3, one word holds 0 and 2,
  // the next one 1 and 3; its low half has their even columns.
  kPairedBytes,
};

// Of a format in a call whose way is `way`.
constexpr Form form_of(Way way, const PanelFormat& format) {
  const bool is_byte = format.bits == 8;
  switch (way_of(way, format)) {
    case Way::kFma: return is_in_place(format) ? Form::kScaled : Form::kPlain;
    case Way::kSplitDots: return Form::kPlain;
    case Way::kDots: return Form::kPairs;
    case Way::kInt16: return is_byte ? Form::kQuads : Form::kPairs;
    case Way::kInt8: return is_byte ? Form::kBytes : Form::kPairedBytes;
  }
  return Form::kPlain;
}

// The inputs of one call in LinearArgs::scratch. Tile i holds the tokens from i · kMaxTile on; the
// last one may be smaller. All regions are indexed by first token, then as in Tile. A single token
// has one copy per thread.
struct Inputs {
  int64_t cols;     // padded to kUnit
  float* plain;     // null if no part wants this form
  float* scaled;    // likewise
  uint32_t* pairs;  // half as long: a pair has the size of one float
  uint32_t* quads;
  int8_t* bytes;
  int8_t* paired_bytes;
  float* sums;
  float* half_sums;  // over 16 columns; null if no part wants them
  float* scales;     // of integers
  int32_t* counts;   // sums of integers over 16 columns, for kInt8 only
  bool has_sums;     // with kInt8; otherwise there are always sums

  const float* sums_of(const PanelFormat& format) const {
    return needs_half_sums(format) ? half_sums : sums;
  }
};

// Two regions of inputs, then sums, scales, sums of halves and counts.
static_assert(linear_token_bytes(2 * kUnit) >= (2 * 2 * kUnit + 2 * 6) * 4);

// `kTile`: the most tokens in a tile.
template <Way kWay, int64_t kTile = kMaxTile>
Inputs inputs_in_scratch(const LinearArgs& args, int64_t copy) {
  const int64_t cols = divide_up(args.cols, kUnit) * kUnit;
  const int64_t region = args.tokens == 1 ? cols : (args.tokens + kTile) * cols;
  auto* scratch = reinterpret_cast<float*>(args.scratch + copy * linear_token_bytes(args.cols));
  Inputs inputs{};
  inputs.cols = cols;
  inputs.sums = scratch + 2 * region;
  inputs.scales = inputs.sums + region / kUnit;
  inputs.counts = reinterpret_cast<int32_t*>(inputs.scales + 3 * region / kUnit);
  for (int64_t i = 0; i < args.part_count; ++i) {
    const PanelFormat format = format_of(args.parts[i].weights.type);
    if (needs_half_sums(format)) {
      inputs.half_sums = inputs.scales + region / kUnit;
    }
    inputs.has_sums |= has_minimum(format);
    switch (form_of(kWay, format)) {
      case Form::kPlain: inputs.plain = scratch; break;
      case Form::kScaled: inputs.scaled = scratch + region; break;
      case Form::kPairs: inputs.pairs = reinterpret_cast<uint32_t*>(scratch + region); break;
      case Form::kQuads:
        inputs.quads = reinterpret_cast<uint32_t*>(scratch + region + region / 2);
        break;
      case Form::kBytes: inputs.bytes = reinterpret_cast<int8_t*>(scratch); break;
      case Form::kPairedBytes:
        inputs.paired_bytes = reinterpret_cast<int8_t*>(scratch + region);
        break;
    }
  }
  return inputs;
}

constexpr int64_t kHalfCols = kUnit / 2;

// The first run of a unit is at `first` in a form, in elements; the next ones follow at `stride`.
struct RunLayout {
  int64_t first;
  int64_t stride;
};

// Copies one unit into `region`, unless that form is not wanted.
template <typename T>
SINKSTREAM_INLINE void copy_runs(const T* unit, T* region, RunLayout layout) {
  if (region == nullptr) return;
  for (int run = 0; run < kUnit / kRun; ++run) {
    __builtin_memcpy(region + layout.first + run * layout.stride, unit + run * kRun,
                     kRun * sizeof(T));
  }
}

// A region of pairs as 16-bit elements, the even one of each pair first.
SINKSTREAM_INLINE uint16_t* halves_of(uint32_t* pairs) {
  return reinterpret_cast<uint16_t*>(pairs);
}

// The low half of each word.
SINKSTREAM_INLINE HalfwordVec low_halves(UintVec words) {
  return __builtin_convertvector(words, HalfwordVec);
}

// Writes floats, for kPlain and kScaled.
SINKSTREAM_INLINE void write_floats(const float (&x)[kUnit], const Inputs& inputs,
                                    RunLayout layout) {
  copy_runs(x, inputs.plain, layout);
  if (inputs.scaled == nullptr) return;
  constexpr float kScales[kRun] = {1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1};
  alignas(64) float scaled[kUnit];
  for (int i = 0; i < kUnit; ++i) {
    const int n = i % kRun;
    scaled[i] = x[i - n + n % 4 * 2 + n / 4] * kScales[n];
  }
  copy_runs(scaled, inputs.scaled, layout);
}

// Writes pairs of bfloat16, from inputs that are already rounded.
SINKSTREAM_INLINE void write_bf16_pairs(const float (&x)[kUnit], const Inputs& inputs,
                                        RunLayout layout) {
  alignas(64) uint16_t rounded[kUnit];
  for (int64_t i = 0; i < kUnit; i += kLanes) {
    store_halfwords(rounded + i, low_halves(as_words(load(x + i)) >> 16));
  }
  copy_runs(rounded, halves_of(inputs.pairs), layout);
}

// Swaps the second and third of every four lanes.
SINKSTREAM_INLINE HalfwordVec as_quads(HalfwordVec x) {
  HalfwordVec source{};
  for (int lane = 0; lane < kLanes; ++lane) {
    source[lane] = lane % 4 == 1 ? lane + 1 : lane % 4 == 2 ? lane - 1 : lane;
  }
  return __builtin_shuffle(x, source);
}

// Note: [Inputs as integers], one unit.
struct Integers {
  float scale;
  IntVec numbers[kUnit / kLanes];
};

SINKSTREAM_INLINE Integers round_to_integers(const float (&x)[kUnit], float most) {
  const float largest = largest_magnitude(x, kUnit);
  const bool is_finite = largest < __builtin_inff();
  Integers integers{};
  if (!is_finite) integers.scale = __builtin_nanf("");
  if (!is_finite || largest < kMinGroupMagnitude) return integers;
  const float factor = most / largest;
  integers.scale = largest / most;
  for (int i = 0; i < kUnit; i += kLanes) {
    integers.numbers[i / kLanes] = round_to_int(load(x + i) * factor);
  }
  return integers;
}

// Over one half of the unit.
SINKSTREAM_INLINE int32_t sum_of_half(const Integers& integers, int half) {
  IntVec sum{};
  for (int i = 0; i < kHalfCols / kLanes; ++i) {
    sum += integers.numbers[half * (kHalfCols / kLanes) + i];
  }
  return reduce_add(sum);
}

SINKSTREAM_INLINE void write_int16(const Integers& integers, const Inputs& inputs,
                                   RunLayout layout) {
  alignas(64) uint16_t pairs[kUnit];
  alignas(64) uint16_t quads[kUnit] = {};
  for (int i = 0; i < kUnit; i += kLanes) {
    const auto words = reinterpret_cast<UintVec>(integers.numbers[i / kLanes]);
    const HalfwordVec halves = low_halves(words);
    store_halfwords(pairs + i, halves);
    if (inputs.quads != nullptr) store_halfwords(quads + i, as_quads(halves));
  }
  copy_runs(pairs, halves_of(inputs.pairs), layout);
  copy_runs(quads, halves_of(inputs.quads), layout);
}

SINKSTREAM_INLINE void write_int8(const Integers& integers, const Inputs& inputs,
                                  RunLayout layout) {
  using Runs = int8_t __attribute__((vector_size(2 * kRun)));
  const Runs kPaired = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
  alignas(64) int8_t bytes[kUnit];
  alignas(64) int8_t paired[kUnit];
  for (int i = 0; i < kUnit; i += kLanes) store_codes(bytes + i, integers.numbers[i / kLanes]);
  copy_runs(bytes, inputs.bytes, layout);
  if (inputs.paired_bytes == nullptr) return;
  for (int i = 0; i < kUnit; i += 2 * kRun) {
    Runs runs;
    __builtin_memcpy(&runs, bytes + i, sizeof(runs));
    runs = __builtin_shuffle(runs, kPaired);
    __builtin_memcpy(paired + i, &runs, sizeof(runs));
  }
  copy_runs(paired, inputs.paired_bytes, layout);
}

// Rounds and lays out one token's inputs, and their sums. `t` counts within the tile; `kRunCols`:
// columns of a token that stay together, kRun or kUnit.
template <Way kWay, int64_t kTile = kMaxTile, int64_t kRunCols = kRun>
void prepare_token(const LinearArgs& args, const Inputs& inputs, int64_t tile, int64_t size,
                   int64_t t) {
  // Other tiles read codes with their sign.
  constexpr bool kHasCounts = kWay == Way::kInt8 && kTile == kMaxTile;
  const int64_t first = tile * kTile;
  const int64_t units = inputs.cols / kUnit;
  const float* input = first + t < args.tokens ? input_of_token(args, first + t) : nullptr;
  for (int64_t unit = 0; unit < units; ++unit) {
    alignas(64) float x[kUnit];
    const int64_t left = args.cols - unit * kUnit;
    if (input != nullptr && left >= kUnit) {
      __builtin_memcpy(x, input + unit * kUnit, sizeof x);
    } else {
      __builtin_memset(x, 0, sizeof x);
      if (input != nullptr) __builtin_memcpy(x, input + unit * kUnit, left * 4);
    }
    const int64_t entry = first * units + unit * size + t;
    // Of the unit's first half; the second one's follows `size` later.
    const int64_t half_entry = 2 * (first * units + unit * size) + t;
    const RunLayout layout = {
        first * inputs.cols + (unit * (kUnit / kRunCols) * size + t) * kRunCols,
        kRunCols == kRun ? size * kRun : int64_t{kRun}};
    if constexpr (kWay == Way::kInt16 || kWay == Way::kInt8) {
      const Integers integers = round_to_integers(x, most_of(integers_of(kWay)));
      const float scale = integers.scale;
      inputs.scales[entry] = scale;
      if (kWay == Way::kInt16 || kHasCounts || inputs.has_sums) {
        const int32_t halves[2] = {sum_of_half(integers, 0), sum_of_half(integers, 1)};
        inputs.sums[entry] = scale * static_cast<float>(halves[0] + halves[1]);
        for (int half = 0; half < 2; ++half) {
          const int64_t at = half_entry + half * size;
          if (inputs.half_sums != nullptr) {
            inputs.half_sums[at] = scale * static_cast<float>(halves[half]);
          }
          if constexpr (kHasCounts) inputs.counts[at] = halves[half];
        }
      }
      if constexpr (kWay == Way::kInt16) {
        write_floats(x, inputs, layout);
        write_int16(integers, inputs, layout);
      } else {
        write_int8(integers, inputs, layout);
      }
    } else {
      Vec sum{}, half_sums[2] = {};
      for (int64_t i = 0; i < kUnit; i += kLanes) {
        Vec part = load(x + i);
        if (args.input_type == InputType::kBFloat16) {
          part = round_bf16(part);
          store(x + i, part);
        }
        sum = sum + part;
        half_sums[i / kHalfCols] = half_sums[i / kHalfCols] + part;
      }
      inputs.sums[entry] = reduce_add(sum);
      for (int half = 0; inputs.half_sums != nullptr && half < 2; ++half) {
        inputs.half_sums[half_entry + half * size] = reduce_add(half_sums[half]);
      }
      write_floats(x, inputs, layout);
      if (inputs.pairs != nullptr) write_bf16_pairs(x, inputs, layout);
    }
  }
}
