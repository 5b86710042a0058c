// Lays out the inputs of one call of linear as its kernels walk through them.

// How a kernel wants its input laid out.
enum class Form {
  kPlain,   // [cols / kRun][size][kRun] floats
  kScaled,  // the same in the order of an int4 word's codes, multiplied by 16^-n
  kPairs,   // [cols / kRun][size][kRun / 2] pairs of bfloat16
};

template <bool kDots>
constexpr Form form_of(WeightType type) {
  const bool is_wide = type == WeightType::kFloat32 || type == WeightType::kFloat16;
  if (kDots && !is_wide) return Form::kPairs;
  return type >= WeightType::kInt4 ? Form::kScaled : Form::kPlain;
}

// The inputs of one call in LinearArgs::scratch. Tile i holds the tokens from i · kMaxTile on;
// the last one may be smaller. All regions are indexed by first token, then as in Tile.
struct Inputs {
  int64_t cols;  // padded to kGroup
  float* plain;  // null if no part wants it
  float* other;  // kScaled or kPairs, null likewise
  float* sums;
};

template <bool kDots>
Inputs place_inputs(const LinearArgs& args) {
  const int64_t cols = (args.cols + kGroup - 1) / kGroup * kGroup;
  const int64_t region = (args.tokens + kMaxTile) * cols;
  float* scratch = reinterpret_cast<float*>(args.scratch);
  Inputs inputs = {cols, nullptr, nullptr, scratch + 2 * region};
  for (int64_t i = 0; i < args.part_count; ++i) {
    if (form_of<kDots>(args.parts[i].weights.type) == Form::kPlain) {
      inputs.plain = scratch;
    } else {
      inputs.other = scratch + region;
    }
  }
  return inputs;
}

int tile_size(int64_t tokens) {
  for (const int size : kTileSizes) {
    if (size >= tokens || size == kMaxTile) return size;
  }
  return kMaxTile;
}

// One group of 32 inputs of one token, rounded and laid out. `first` is where its first run lies
// in a form, `step` the distance to the next one; both in floats.
template <bool kDots>
void prepare_group(const float (&x)[kGroup], const Inputs& inputs, int64_t first, int64_t step) {
  constexpr float kScales[kRun] = {1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1};
  for (int run = 0; run < kGroup / kRun; ++run) {
    const float* from = x + run * kRun;
    if (inputs.plain != nullptr) {
      float* to = inputs.plain + first + run * step;
      for (int n = 0; n < kRun; ++n) to[n] = from[n];
    }
    if (inputs.other == nullptr) continue;
    if constexpr (kDots) {
      // Half as long: a pair of bfloat16 takes the room of one float. The inputs are rounded.
      float* to = inputs.other + (first + run * step) / 2;
      for (int n = 0; n < kRun / 2; ++n) {
        const uint32_t even = __builtin_bit_cast(uint32_t, from[2 * n]) >> 16;
        const uint32_t odd = __builtin_bit_cast(uint32_t, from[2 * n + 1]);
        to[n] = __builtin_bit_cast(float, even | odd);
      }
    } else {
      float* to = inputs.other + first + run * step;
      for (int n = 0; n < kRun; ++n) to[n] = from[n % 4 * 2 + n / 4] * kScales[n];
    }
  }
}

template <bool kDots>
void prepare_token(const LinearArgs& args, const Inputs& inputs, int64_t tile, int64_t size,
                   int64_t t) {
  const int64_t first = tile * kMaxTile;
  const int64_t groups = inputs.cols / kGroup;
  const float* input = args.input + (first + t) * args.input_stride;
  for (int64_t group = 0; group < groups; ++group) {
    float x[kGroup] = {};
    const int64_t left = args.cols - group * kGroup;
    if (first + t < args.tokens) {
      __builtin_memcpy(x, input + group * kGroup, (left < kGroup ? left : kGroup) * 4);
    }
    Vec sum{};
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      Vec part = load(x + i);
      if (args.input_type == DType::kBFloat16) {
        part = round_bf16(part);
        store(x + i, part);
      }
      sum = sum + part;
    }
    inputs.sums[first * groups + group * size + t] = reduce_add(sum);
    const int64_t run = first * inputs.cols + (group * (kGroup / kRun) * size + t) * kRun;
    prepare_group<kDots>(x, inputs, run, size * kRun);
  }
}
