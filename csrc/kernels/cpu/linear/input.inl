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
  kScaled,  // the same in the order of an int4 word's codes, multiplied by 16^-n
  kPairs,   // [cols / kRun][size][kRun / 2] pairs of bfloat16, or of integers for int4 codes
  kQuads,   // the same of integers, in the order of an int8 word's codes
};

template <Way kWay>
constexpr Form form_of(WeightType type) {
  if (kWay == Way::kInt16 && is_quantized(type)) {
    return type == WeightType::kInt8 ? Form::kQuads : Form::kPairs;
  }
  const bool is_wide = type == WeightType::kFloat32 || type == WeightType::kFloat16;
  if (kWay == Way::kDots && !is_wide) return Form::kPairs;
  return type >= WeightType::kInt4 ? Form::kScaled : Form::kPlain;
}

// The inputs of one call in LinearArgs::scratch. Tile i holds the tokens from i · kMaxTile on; the
// last one may be smaller. All regions are indexed by first token, then as in Tile. A single token
// has one copy per thread.
struct Inputs {
  int64_t cols;     // padded to kGroup
  float* plain;     // null if no part wants this form
  float* scaled;    // likewise
  uint32_t* pairs;  // half as long: a pair has the size of one float
  uint32_t* quads;
  float* sums;
  float* scales;  // for kInt16 only
};

template <Way kWay>
Inputs inputs_in_scratch(const LinearArgs& args, int64_t copy) {
  const int64_t cols = divide_up(args.cols, kGroup) * kGroup;
  const int64_t region = args.tokens == 1 ? cols : (args.tokens + kMaxTile) * cols;
  auto* scratch = reinterpret_cast<float*>(args.scratch + copy * linear_token_bytes(args.cols));
  Inputs inputs{};
  inputs.cols = cols;
  inputs.sums = scratch + 2 * region;
  inputs.scales = inputs.sums + region / kGroup;
  for (int64_t i = 0; i < args.part_count; ++i) {
    switch (form_of<kWay>(args.parts[i].weights.type)) {
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

// The first run of a group is at `first` in a form, in elements; the next ones follow at `stride`.
struct RunLayout {
  int64_t first;
  int64_t stride;
};

// Copies one group into `region`, unless that form is not wanted.
template <typename Number>
SINKSTREAM_INLINE void copy_runs(const Number* group, Number* region, RunLayout layout) {
  if (region == nullptr) return;
  for (int run = 0; run < kGroup / kRun; ++run) {
    __builtin_memcpy(region + layout.first + run * layout.stride, group + run * kRun,
                     kRun * sizeof(Number));
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
SINKSTREAM_INLINE void write_floats(const float (&x)[kGroup], const Inputs& inputs,
                                    RunLayout layout) {
  copy_runs(x, inputs.plain, layout);
  if (inputs.scaled == nullptr) return;
  constexpr float kScales[kRun] = {1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1};
  alignas(64) float scaled[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    const int n = i % kRun;
    scaled[i] = x[i - n + n % 4 * 2 + n / 4] * kScales[n];
  }
  copy_runs(scaled, inputs.scaled, layout);
}

// Writes pairs of bfloat16, from inputs that are already rounded.
SINKSTREAM_INLINE void write_bf16_pairs(const float (&x)[kGroup], const Inputs& inputs,
                                        RunLayout layout) {
  alignas(64) uint16_t rounded[kGroup];
  for (int64_t i = 0; i < kGroup; i += kLanes) {
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

// Note: [Inputs in 16 bits]. Returns the group's scale; sets `sum` to the sum of the rounded
// inputs.
SINKSTREAM_INLINE float write_int16(const float (&x)[kGroup], const Inputs& inputs,
                                    RunLayout layout, float* sum) {
  const float largest = largest_magnitude(x, kGroup);
  const bool is_finite = largest < __builtin_inff();
  float factor = 0, scale = is_finite ? 0 : __builtin_nanf("");
  if (is_finite && largest >= kMinGroupMagnitude) {
    factor = kMaxInt16 / largest;
    scale = largest / kMaxInt16;
  }
  alignas(64) uint16_t pairs[kGroup] = {};
  alignas(64) uint16_t quads[kGroup] = {};
  IntVec total{};
  for (int64_t i = 0; i < kGroup && factor > 0; i += kLanes) {
    const IntVec rounded = round_to_int(load(x + i) * factor);
    const HalfwordVec halves = low_halves(reinterpret_cast<UintVec>(rounded));
    store_halfwords(pairs + i, halves);
    if (inputs.quads != nullptr) store_halfwords(quads + i, as_quads(halves));
    total += rounded;
  }
  *sum = scale * static_cast<float>(reduce_add(total));
  copy_runs(pairs, halves_of(inputs.pairs), layout);
  copy_runs(quads, halves_of(inputs.quads), layout);
  return scale;
}

// Rounds and lays out one token's inputs, and their sums over groups. `t` counts within the tile.
template <Way kWay>
void prepare_token(const LinearArgs& args, const Inputs& inputs, int64_t tile, int64_t size,
                   int64_t t) {
  const int64_t first = tile * kMaxTile;
  const int64_t groups = inputs.cols / kGroup;
  const float* input = args.input + (first + t) * args.input_stride;
  for (int64_t group = 0; group < groups; ++group) {
    alignas(64) float x[kGroup];
    const int64_t left = args.cols - group * kGroup;
    if (first + t < args.tokens && left >= kGroup) {
      __builtin_memcpy(x, input + group * kGroup, sizeof x);
    } else {
      __builtin_memset(x, 0, sizeof x);
      if (first + t < args.tokens) __builtin_memcpy(x, input + group * kGroup, left * 4);
    }
    const int64_t entry = first * groups + group * size + t;
    const RunLayout layout = {first * inputs.cols + (group * (kGroup / kRun) * size + t) * kRun,
                              size * kRun};
    if constexpr (kWay == Way::kInt16) {
      write_floats(x, inputs, layout);
      inputs.scales[entry] = write_int16(x, inputs, layout, &inputs.sums[entry]);
    } else {
      Vec sum{};
      for (int64_t i = 0; i < kGroup; i += kLanes) {
        Vec part = load(x + i);
        if (args.input_type == InputType::kBFloat16) {
          part = round_bf16(part);
          store(x + i, part);
        }
        sum = sum + part;
      }
      inputs.sums[entry] = reduce_add(sum);
      write_floats(x, inputs, layout);
      if (inputs.pairs != nullptr) write_bf16_pairs(x, inputs, layout);
    }
  }
}
