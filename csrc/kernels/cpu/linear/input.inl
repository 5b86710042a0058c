// Rounds the inputs of one call of linear, and lays them out in the order in which its kernels read
// them.
#pragma once

#include "kernels/cpu/linear/tile.inl"

// The instructions that multiply.
enum class Way {
  kFma,    // floats: linear/tile.inl
  kDots,   // pairs of bfloat16: linear/dot.inl
  kInt16,  // integers: linear/int16.inl
};

// The layout of a kernel's input.
enum class Form {
  kPlain,   // [cols / kRun][size][kRun] floats
  kScaled,  // the same in the order of a 4-bit word's codes, multiplied by 16^-n
  kPairs,   // [cols / kRun][size][kRun / 2] pairs of bfloat16, or of integers
  kQuads,   // the same of integers, in the order of an 8-bit word's codes
};

template <Way kWay>
constexpr Form form_of(const PanelFormat& format) {
  if (kWay == Way::kInt16 && is_coded(format)) {
    return format.bits == 8 ? Form::kQuads : Form::kPairs;
  }
  const bool is_wide = format.number == Number::kFloat32 || format.number == Number::kFloat16;
  if (kWay == Way::kDots && !is_wide) return Form::kPairs;
  return is_in_place(format) ? Form::kScaled : Form::kPlain;
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
  float* sums;
  float* half_sums;  // over 16 columns; null if no part wants them
  float* scales;     // for kInt16 only

  const float* sums_of(const PanelFormat& format) const {
    return needs_half_sums(format) ? half_sums : sums;
  }
};

// Two regions of inputs, then sums, scales and sums of halves.
static_assert(linear_token_bytes(2 * kUnit) >= (2 * 2 * kUnit + 2 * 4) * 4);

template <Way kWay>
Inputs inputs_in_scratch(const LinearArgs& args, int64_t copy) {
  const int64_t cols = divide_up(args.cols, kUnit) * kUnit;
  const int64_t region = args.tokens == 1 ? cols : (args.tokens + kMaxTile) * cols;
  auto* scratch = reinterpret_cast<float*>(args.scratch + copy * linear_token_bytes(args.cols));
  Inputs inputs{};
  inputs.cols = cols;
  inputs.sums = scratch + 2 * region;
  inputs.scales = inputs.sums + region / kUnit;
  for (int64_t i = 0; i < args.part_count; ++i) {
    const PanelFormat format = format_of(args.parts[i].weights.type);
    if (needs_half_sums(format)) {
      inputs.half_sums = inputs.scales + region / kUnit;
    }
    switch (form_of<kWay>(format)) {
      case Form::kPlain: inputs.plain = scratch; break;
      case Form::kScaled: inputs.scaled = scratch + region; break;
      case Form::kPairs: inputs.pairs = reinterpret_cast<uint32_t*>(scratch + region); break;
      case Form::kQuads:
        inputs.quads = reinterpret_cast<uint32_t*>(scratch + region + region / 2);
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

// Note: [Inputs in 16 bits]. Returns the group's scale; sets `halves` to the sums of the rounded
// inputs over 16 columns, in units of the scale.
SINKSTREAM_INLINE float write_int16(const float (&x)[kUnit], const Inputs& inputs, RunLayout layout,
                                    int32_t (&halves)[2]) {
  const float largest = largest_magnitude(x, kUnit);
  const bool is_finite = largest < __builtin_inff();
  float factor = 0, scale = is_finite ? 0 : __builtin_nanf("");
  if (is_finite && largest >= kMinGroupMagnitude) {
    factor = kMaxInt16 / largest;
    scale = largest / kMaxInt16;
  }
  alignas(64) uint16_t pairs[kUnit] = {};
  alignas(64) uint16_t quads[kUnit] = {};
  IntVec total[2] = {};
  for (int64_t i = 0; i < kUnit && factor > 0; i += kLanes) {
    const IntVec rounded = round_to_int(load(x + i) * factor);
    const HalfwordVec halves = low_halves(reinterpret_cast<UintVec>(rounded));
    store_halfwords(pairs + i, halves);
    if (inputs.quads != nullptr) store_halfwords(quads + i, as_quads(halves));
    total[i / kHalfCols] += rounded;
  }
  for (int half = 0; half < 2; ++half) halves[half] = reduce_add(total[half]);
  copy_runs(pairs, halves_of(inputs.pairs), layout);
  copy_runs(quads, halves_of(inputs.quads), layout);
  return scale;
}

// Rounds and lays out one token's inputs, and their sums. `t` counts within the tile.
template <Way kWay>
void prepare_token(const LinearArgs& args, const Inputs& inputs, int64_t tile, int64_t size,
                   int64_t t) {
  const int64_t first = tile * kMaxTile;
  const int64_t units = inputs.cols / kUnit;
  const float* input = args.input + (first + t) * args.input_stride;
  for (int64_t unit = 0; unit < units; ++unit) {
    alignas(64) float x[kUnit];
    const int64_t left = args.cols - unit * kUnit;
    if (first + t < args.tokens && left >= kUnit) {
      __builtin_memcpy(x, input + unit * kUnit, sizeof x);
    } else {
      __builtin_memset(x, 0, sizeof x);
      if (first + t < args.tokens) __builtin_memcpy(x, input + unit * kUnit, left * 4);
    }
    const int64_t entry = first * units + unit * size + t;
    // Of the unit's first half; the second one's follows `size` later.
    const int64_t half_entry = 2 * (first * units + unit * size) + t;
    const RunLayout layout = {first * inputs.cols + (unit * (kUnit / kRun) * size + t) * kRun,
                              size * kRun};
    if constexpr (kWay == Way::kInt16) {
      write_floats(x, inputs, layout);
      int32_t halves[2];
      const float scale = write_int16(x, inputs, layout, halves);
      inputs.scales[entry] = scale;
      inputs.sums[entry] = scale * static_cast<float>(halves[0] + halves[1]);
      for (int half = 0; inputs.half_sums != nullptr && half < 2; ++half) {
        inputs.half_sums[half_entry + half * size] = scale * static_cast<float>(halves[half]);
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
