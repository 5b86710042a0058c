// Lays out the inputs of one call of linear as its kernels walk through them.

// What multiplies.
enum class Way {
  kFma,    // floats: linear_tile.inl
  kDots,   // pairs of bfloat16: linear_dot.inl
  kInt16,  // whole numbers: linear_int16.inl
};

// How a kernel wants its input laid out.
enum class Form {
  kPlain,   // [cols / kRun][size][kRun] floats
  kScaled,  // the same in the order of an int4 word's codes, multiplied by 16^-n
  kPairs,   // [cols / kRun][size][kRun / 2] pairs of bfloat16, or of 16-bit numbers beside int4
  kQuads,   // the same of 16-bit numbers in the order of an int8 word's codes
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

// The inputs of one call in LinearArgs::scratch. Tile i holds the tokens from i · kMaxTile on;
// the last one may be smaller. All regions are indexed by first token, then as in Tile.
struct Inputs {
  int64_t cols;     // padded to kGroup
  float* plain;     // of a form that no part wants: null
  float* scaled;    // likewise, and so on
  uint32_t* pairs;  // half as long: a pair takes the room of one float
  uint32_t* quads;
  float* sums;
  float* scales;  // of kInt16 alone
};

template <Way kWay>
Inputs place_inputs(const LinearArgs& args) {
  const int64_t cols = (args.cols + kGroup - 1) / kGroup * kGroup;
  const int64_t region = (args.tokens + kMaxTile) * cols;
  auto* scratch = reinterpret_cast<float*>(args.scratch);
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

int tile_size(int64_t tokens) {
  for (const int size : kTileSizes) {
    if (size >= tokens || size == kMaxTile) return size;
  }
  return kMaxTile;
}

// The first run of a group lies at `first` in a form, in numbers; the next ones `step` further
// each.
struct Place {
  int64_t first;
  int64_t step;
};

uint32_t pair_of(uint32_t even, uint32_t odd) { return (even & 0xffff) | odd << 16; }

// Floats, for kPlain and kScaled.
void write_floats(const float (&x)[kGroup], const Inputs& inputs, Place place) {
  constexpr float kScales[kRun] = {1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1};
  for (int run = 0; run < kGroup / kRun; ++run) {
    const float* from = x + run * kRun;
    const int64_t at = place.first + run * place.step;
    for (int n = 0; n < kRun && inputs.plain != nullptr; ++n) inputs.plain[at + n] = from[n];
    for (int n = 0; n < kRun && inputs.scaled != nullptr; ++n) {
      inputs.scaled[at + n] = from[n % 4 * 2 + n / 4] * kScales[n];
    }
  }
}

// Pairs of bfloat16, out of inputs that are rounded already.
void write_bf16_pairs(const float (&x)[kGroup], const Inputs& inputs, Place place) {
  for (int run = 0; run < kGroup / kRun; ++run) {
    uint32_t* to = inputs.pairs + (place.first + run * place.step) / 2;
    for (int n = 0; n < kRun / 2; ++n) {
      const float* from = x + run * kRun + 2 * n;
      to[n] = pair_of(__builtin_bit_cast(uint32_t, from[0]) >> 16,
                      __builtin_bit_cast(uint32_t, from[1]) >> 16);
    }
  }
}

// Note: [Inputs in 16 bits]. Returns the group's scale; `sum` becomes the sum of what is written.
float write_int16(const float (&x)[kGroup], const Inputs& inputs, Place place, float* sum) {
  const float largest = largest_magnitude(x, kGroup);
  const bool is_finite = largest < __builtin_inff();
  float factor = 0, scale = is_finite ? 0 : __builtin_nanf("");
  if (is_finite && largest >= kLeastLargest) {
    factor = kMostInt16 / largest;
    scale = largest / kMostInt16;
  }
  alignas(64) int32_t whole[kGroup] = {};
  IntVec total{};
  for (int64_t i = 0; i < kGroup && factor > 0; i += kLanes) {
    const IntVec rounded = round_to_int(load(x + i) * factor);
    store_words(whole + i, reinterpret_cast<UintVec>(rounded));
    total += rounded;
  }
  int32_t sum_of_whole = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum_of_whole += total[lane];
  *sum = scale * static_cast<float>(sum_of_whole);

  for (int run = 0; run < kGroup / kRun; ++run) {
    const int64_t at = (place.first + run * place.step) / 2;
    const int32_t* from = whole + run * kRun;
    for (int n = 0; n < kRun / 2 && inputs.pairs != nullptr; ++n) {
      inputs.pairs[at + n] = pair_of(from[2 * n], from[2 * n + 1]);
    }
    for (int n = 0; n < kRun / 2 && inputs.quads != nullptr; ++n) {
      const int32_t* quad = from + n / 2 * 4 + n % 2;
      inputs.quads[at + n] = pair_of(quad[0], quad[2]);
    }
  }
  return scale;
}

// One token's inputs, rounded and laid out, and their sums over groups. `t` counts within the tile.
template <Way kWay>
void prepare_token(const LinearArgs& args, const Inputs& inputs, int64_t tile, int64_t size,
                   int64_t t) {
  const int64_t first = tile * kMaxTile;
  const int64_t groups = inputs.cols / kGroup;
  const float* input = args.input + (first + t) * args.input_stride;
  for (int64_t group = 0; group < groups; ++group) {
    alignas(64) float x[kGroup] = {};
    const int64_t left = args.cols - group * kGroup;
    if (first + t < args.tokens) {
      __builtin_memcpy(x, input + group * kGroup, (left < kGroup ? left : kGroup) * 4);
    }
    const int64_t entry = first * groups + group * size + t;
    const Place place = {first * inputs.cols + (group * (kGroup / kRun) * size + t) * kRun,
                         size * kRun};
    if constexpr (kWay == Way::kInt16) {
      write_floats(x, inputs, place);
      inputs.scales[entry] = write_int16(x, inputs, place, &inputs.sums[entry]);
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
      write_floats(x, inputs, place);
      if (inputs.pairs != nullptr) write_bf16_pairs(x, inputs, place);
    }
  }
}
