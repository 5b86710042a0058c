// linear's inner loop: a unit of a panel times a tile of tokens, sums in registers. It is written
// once, for every way of multiplying (`Multiplier`) and for weights of two kinds: codes that are
// decoded as they are multiplied, or values that lie in memory.
//
// Note: [Decode once]
// A few tokens decode a unit as they multiply it, with a kernel for each format (multiply_few).
// More of them would decode the same codes once per tile. So some units at a time become values in
// L1 (decode_units, for each format), which all tiles are multiplied by (add_units, for no format),
// and sums are kept in memory in between. This changes no bit: values, scales and the order of sums
// are the same.
//
// Note: [One order along K]
// A unit is 32 columns, in two chains of 16. For every output, regardless of its token's tile:
//
//   chain = weight · x of its first column, then one fma for each of the other fifteen;
//   sum   = 0 + chain 0 + chain 1, from the left;
//   acc   = acc + sum; with codes: fma(scale, sum, acc), then fma(minimum, Σx of the same columns,
//           acc).
//
// Where groups of 16 columns have scales of their own, each chain is a `sum`. This is the order of
// floats; that of another way is in its file.
#pragma once

#include "kernels/cpu/linear/tile.inl"

// How a way multiplies, unless it says otherwise. A step is the columns of a unit that one word of
// an input holds (kCols), and a word of each row's weights. Each way also has:
//
//   Sum                      vectors of sums: Vec or IntVec
//   Scales<kFormat>          UnitScales
//   chains<Weights, kSums>() chains of a group, with kSums vectors of outputs
//   order<Weights, kSums>(n) the n-th step of a group
//   weights_at<kFormat, kInPlace>(codes, step, v, table)  the step's words; see UnitCodes
//   multiply<Weights>(sum, words, input, is_first)   `input`: what broadcast_input returns
//   add<Weights, kTokens>(weights, inputs, part, chains, acc)
struct AnyMultiplier {
  struct NoTable {};
  static constexpr int kWords = 1;  // of an input for each step
  // A word of an input in all lanes.
  SINKSTREAM_INLINE static UintVec broadcast_input(const uint32_t* word) {
    return broadcast_word(*word);
  }
  // What weights_at looks up.
  template <PanelFormat kFormat>
  SINKSTREAM_INLINE static NoTable table() {
    return {};
  }
  // Whether the panel itself holds values, as weights_at gives them.
  static constexpr bool is_value(const PanelFormat& format) { return false; }
  // Whether values are signed bytes and therefore multiplied in another way than others.
  static constexpr bool has_signed_bytes(const PanelFormat& format) { return false; }
  // What values are more than what they stand for.
  static constexpr int offset_of(const PanelFormat& format) { return 0; }
  // Sets chain 0 before the first step; zeros until then.
  template <typename Weights, int kTokens>
  SINKSTREAM_INLINE static void start(const Weights&, const TileInputs&, int64_t, auto*) {}
};

// The ways, each in its own file.
template <Way kWay>
struct Multiplier;

// A step of a unit, and the chain that its products are added to.
struct Step {
  int index;  // within the group
  int chain;
  bool is_first = false;  // of the chain
};

// The weights of one unit as codes, which are decoded where they are read. kInPlace: Note: [Middle
// codes in place].
template <Way kWay, PanelFormat kFormat, bool kIsAlone>
struct UnitCodes {
  using By = Multiplier<kWay>;
  static constexpr int kGroup = static_cast<int>(sum_cols(kFormat));
  static constexpr bool kSignedBytes = By::has_signed_bytes(kFormat);
  static constexpr bool kInPlace = is_in_place(kFormat) && kIsAlone && kVectors <= 2;
  static constexpr int offset = By::offset_of(kFormat);

  const std::byte* codes;
  typename By::template Scales<kFormat> scales;
  decltype(By::template table<kFormat>()) table;

  SINKSTREAM_INLINE UintVec at(int step, int v) const {
    return By::template weights_at<kFormat, kInPlace>(codes, step, v, table);
  }
};

// The same as values, a word for each step and row.
template <int kGroupCols, bool kHasSignedBytes>
struct UnitValues {
  static constexpr int kGroup = kGroupCols;
  static constexpr bool kSignedBytes = kHasSignedBytes;
  static constexpr bool kInPlace = false;

  struct Scales {
    const float* scales;  // [groups][kPanelRows]; null if weights are not codes
    const float* minima;  // the same; null if there are none

    SINKSTREAM_INLINE bool is_scaled() const { return scales != nullptr; }
    SINKSTREAM_INLINE bool has_minima() const { return minima != nullptr; }
    SINKSTREAM_INLINE Vec scale(int64_t part, int v) const {
      return load(scales + part * kPanelRows + v * kLanes);
    }
    SINKSTREAM_INLINE Vec minimum(int64_t part, int v) const {
      return load(minima + part * kPanelRows + v * kLanes);
    }
  };

  const std::byte* values;
  Scales scales;
  int offset;

  SINKSTREAM_INLINE UintVec at(int step, int v) const {
    return load_words(values + (step * kPanelRows + v * kLanes) * 4);
  }
};

// Adds Σ weights · x over one unit to acc[t][v].
template <Way kWay, int kTokens, typename Weights>
SINKSTREAM_INLINE void add_unit(const Weights& weights, const TileInputs& inputs,
                                Vec (&acc)[kTokens][kVectors]) {
  using By = Multiplier<kWay>;
  constexpr int kSums = kTokens * kVectors;
  constexpr int kSteps = Weights::kGroup / By::kCols;  // that are summed together
  constexpr int kRunSteps = kRun / By::kCols;
  const auto* const x = static_cast<const uint32_t*>(inputs.x);
#pragma GCC unroll 2
  for (int part = 0; part < kUnit / Weights::kGroup; ++part) {
    typename By::Sum chains[By::template chains<Weights, kSums>()][kTokens][kVectors] = {};
    By::template start<Weights, kTokens>(weights, inputs, part, chains);
#pragma GCC unroll 32
    for (int n = 0; n < kSteps; ++n) {
      const Step step = By::template order<Weights, kSums>(n);
      const int index = part * kSteps + step.index;
      UintVec words[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) words[v] = weights.at(index, v);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const int at = (index / kRunSteps * kTokens + t) * kRunSteps + index % kRunSteps;
        const auto input = By::broadcast_input(x + at * By::kWords);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          auto& sum = chains[step.chain][t][v];
          sum = By::template multiply<Weights>(sum, words[v], input, step.is_first);
        }
      }
    }
    By::template add<Weights, kTokens>(weights, inputs, part, chains, acc);
  }
}

// The inputs `units` later, of a tile of `size` tokens. `group`: sum_cols(format).
template <Way kWay>
SINKSTREAM_INLINE TileInputs inputs_after(const TileInputs& inputs, int64_t units, int64_t size,
                                          int64_t group) {
  using By = Multiplier<kWay>;
  const int64_t entry = units * size;
  return {.x = static_cast<const uint32_t*>(inputs.x) + entry * (kUnit / By::kCols * By::kWords),
          .sums = inputs.sums + entry * (kUnit / group),
          .scales = inputs.scales + entry,
          .counts = inputs.counts + entry * 2};
}

// The columns of a panel after its last whole unit, of weights that are not codes, as a unit padded
// with zeros.
template <PanelFormat kFormat>
struct LastUnit {
  alignas(64) std::byte weights[unit_bytes(kFormat)] = {};

  LastUnit(const std::byte* panel, int64_t cols) {
    __builtin_memcpy(weights, panel + cols / kUnit * unit_bytes(kFormat),
                     panel_bytes(kFormat, cols % kUnit));
  }
};

// A panel times one tile, decoding as it multiplies.
template <Way kWay, PanelFormat kFormat, int kTokens>
void multiply_few(const Tile& tile) {
  using Codes = UnitCodes<kWay, kFormat, kTokens == 1>;
  const auto table = Multiplier<kWay>::template table<kFormat>();
  TileInputs inputs = tile.inputs;
  Vec acc[kTokens][kVectors] = {};
  for_each_unit<kFormat>(tile.panel, tile.cols, tile.block, [&](const Unit& unit) {
    if (tile.prefetches_panel) prefetch_unit<kFormat, kTokens == 1>(unit);
    add_unit<kWay, kTokens>(Codes{codes_of<kFormat>(unit), {unit}, table}, inputs, acc);
    inputs = inputs_after<kWay>(inputs, 1, kTokens, Codes::kGroup);
  });
  if constexpr (!is_coded(kFormat)) {
    if (tile.cols % kUnit != 0) {
      const LastUnit<kFormat> last(tile.panel, tile.cols);
      add_unit<kWay, kTokens>(Codes{last.weights, {}, table}, inputs, acc);
    }
  }
  Tile token = tile;
  for (int t = 0; t < kTokens && t < tile.tokens; ++t, token.out += tile.out_stride) {
    write_outputs(token, acc[t]);
  }
}

// Memory for some units as values, in L1: Note: [Decode once].
constexpr int64_t kValueBytes = 8192;
constexpr int64_t kMostUnits = kValueBytes / (kUnit * kPanelRows);  // of bytes
struct ValueMemory {
  alignas(64) std::byte values[kValueBytes];             // [units][steps][kPanelRows] words
  alignas(64) float scales[2 * kMostUnits][kPanelRows];  // of each group
  alignas(64) float minima[2 * kMostUnits][kPanelRows];
};

// Makes values of `count` units of a panel, from unit `first` on. Returns where they are: in `to`,
// or in the panel itself.
using DecodeUnits = const std::byte*(const Tile& tile, int64_t first, int64_t count,
                                     ValueMemory* to);

template <Way kWay, PanelFormat kFormat>
const std::byte* decode_units(const Tile& tile, int64_t first, int64_t count, ValueMemory* to) {
  using By = Multiplier<kWay>;
  constexpr int kSteps = static_cast<int>(kUnit) / By::kCols;
  constexpr int kParts = static_cast<int>(kUnit / sum_cols(kFormat));
  const bool has_last = !is_coded(kFormat) && (first + count) * kUnit > tile.cols;
  const bool is_in_panel = By::is_value(kFormat) && !has_last;
  const auto table = By::template table<kFormat>();
  const int64_t block_units = block_cols(kFormat, tile.block) / kUnit;
  Unit unit = unit_at<kFormat>(tile.panel, tile.block, first);
  const std::byte* const begin = codes_of<kFormat>(unit);
  const auto decode = [&](const std::byte* codes, int64_t n) __attribute__((always_inline)) {
#pragma GCC unroll 32
    for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        store_words(to->values + (((n * kSteps) + step) * kPanelRows + v * kLanes) * 4,
                    By::template weights_at<kFormat, false>(codes, step, v, table));
      }
    }
  };
  for (int64_t n = 0; n < count; ++n) {
    if constexpr (is_coded(kFormat)) {
      decode(codes_of<kFormat>(unit), n);
      const typename By::template Scales<kFormat> scales{unit};
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          store(to->scales[n * kParts + part] + v * kLanes, scales.scale(part, v));
          if constexpr (scales.has_minima()) {
            store(to->minima[n * kParts + part] + v * kLanes, scales.minimum(part, v));
          }
        }
      }
    } else if (!is_in_panel) {
      if (has_last && n + 1 == count) {
        decode(LastUnit<kFormat>(tile.panel, tile.cols).weights, n);
      } else {
        decode(codes_of<kFormat>(unit), n);
      }
    }
    if (++unit.index == block_units) {
      unit = {unit.block + block_bytes(kFormat, tile.block), 0,
              unit.scales + block_bytes(kFormat, tile.block)};
    }
  }
  return is_in_panel ? begin : to->values;
}

// Some units as values, and where their scales are: null if they have none, or no minima.
struct Values {
  const std::byte* words;
  const float* scales;
  const float* minima;
  int offset;  // what values are more than what they stand for
  int64_t count;
};

// Adds their products with a tile of tokens to sums[tokens][kPanelRows].
using AddUnits = void(const Values& values, TileInputs inputs, PrefetchLines prefetch,
                      float (*sums)[kPanelRows]);

template <Way kWay, int kGroup, bool kSignedBytes, int kTokens>
void add_units(const Values& values, TileInputs inputs, PrefetchLines prefetch,
               float (*sums)[kPanelRows]) {
  constexpr int64_t kUnitBytes = kUnit / Multiplier<kWay>::kCols * kPanelRows * 4;
  constexpr int64_t kUnitScales = kUnit / kGroup * kPanelRows;
  UnitValues<kGroup, kSignedBytes> unit = {
      .values = values.words, .scales = {values.scales, values.minima}, .offset = values.offset};
  Vec acc[kTokens][kVectors];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[t][v] = load(sums[t] + v * kLanes);
  }
  for (int64_t n = 0; n < values.count; ++n) {
    prefetch.step();
    add_unit<kWay, kTokens>(unit, inputs, acc);
    inputs = inputs_after<kWay>(inputs, 1, kTokens, kGroup);
    unit.values += kUnitBytes;
    if (unit.scales.is_scaled()) unit.scales.scales += kUnitScales;
    if (unit.scales.has_minima()) unit.scales.minima += kUnitScales;
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(sums[t] + v * kLanes, acc[t][v]);
  }
}

// How one format is multiplied.
struct FormatKernels {
  int64_t few_tokens;                       // calls of more tokens decode first
  std::array<TileKernel*, kSizeCount> few;  // for each of kTileSizes up to few_tokens
  DecodeUnits* decode;
  std::array<AddUnits*, kSizeCount> add;  // for each of kTileSizes
  int64_t group;                          // sum_cols
  bool is_scaled, has_minima;
  int offset;
  void (*many)(const Tile& tile, const FormatKernels& kernels);
};

// Tokens that values are multiplied by before the next units are decoded. Their sums are in L1,
// too.
constexpr int64_t kMostTokens = 128 / kMaxTile * kMaxTile;

// A panel times up to kMostTokens tokens. All tiles share the prefetching of the units to come, so
// that memory is busy all the time.
template <Way kWay>
void multiply_many(const Tile& tile, const FormatKernels& kernels) {
  constexpr int64_t kUnits = kValueBytes / (kUnit / Multiplier<kWay>::kCols * kPanelRows * 4);
  const int64_t units = divide_up(tile.cols, kUnit);
  const int64_t tiles = divide_up(tile.tokens, kMaxTile);
  const auto bytes_before = [&](int64_t unit) { return tile.panel_bytes * unit / units; };
  const int64_t together = bytes_before(units < kUnits ? units : kUnits);
  const int64_t distance =
      tile.prefetch_distance > together ? tile.prefetch_distance : together;  // at least the next
  ValueMemory memory;
  alignas(64) float sums[kMostTokens][kPanelRows];
  __builtin_memset(sums, 0, tiles * kMaxTile * sizeof(sums[0]));
  Values values = {.words = nullptr,
                   .scales = kernels.is_scaled ? memory.scales[0] : nullptr,
                   .minima = kernels.has_minima ? memory.minima[0] : nullptr,
                   .offset = kernels.offset,
                   .count = 0};
  for (int64_t first = 0; first < units; first += kUnits) {
    values.count = units - first < kUnits ? units - first : kUnits;
    values.words = kernels.decode(tile, first, values.count, &memory);
    PrefetchParts prefetch;
    if (tile.prefetches_panel) {
      const int64_t begin = bytes_before(first);
      const int64_t bytes = bytes_before(first + values.count) - begin;
      prefetch = prefetch_parts(tile.panel + begin + distance, bytes, tiles, values.count);
    }
    for (int64_t n = 0; n < tiles; ++n) {
      const int64_t token = n * kMaxTile;
      const int index = size_index(tile.tokens - token);
      const TileInputs inputs = inputs_after<kWay>(tile.inputs, units, token, kernels.group);
      kernels.add[index](values,
                         inputs_after<kWay>(inputs, first, kTileSizes[index], kernels.group),
                         prefetch.part(n), sums + token);
    }
  }
  write_rows(tile, sums);
}

// A call of up to as many tokens decodes as it multiplies. With one tile that is faster: decoding
// first is 0.75 to 0.95 times as fast (benchmarks/linear_duel.py on a Sapphire Rapids, for all
// tables). But such kernels are slow to compile. So there are some for several tokens only where
// they are used most: for a table's default inputs and for inputs of 8 bits, and floats and codes
// of 4, 6 and 8 bits; and where vectors are short, for no inputs but the default.
constexpr Way kDefaultWay = kLanes == 16 ? Way::kDots : kLanes == 8 ? Way::kInt16 : Way::kFma;

constexpr int few_tokens(Way way, const PanelFormat& format) {
  if (way == Way::kSplitDots) return 0;
  const bool is_common =
      !is_coded(format) || (has_integers(format) && format.values == CodeValues::kInteger &&
                            format.bits >= 4 && format.bits % 2 == 0);
  const bool is_default = way == way_of(kDefaultWay, format) || way == Way::kInt8;
  if (kLanes == 4) return way != Way::kFma ? 0 : is_common ? kMaxTile : 1;
  if (!is_common || !is_default) return 1;
  // To decode these is at most one operation, and as floats they would take up to twice the memory.
  if (kLanes == 8 && !is_coded(format)) return 1 << 30;
  return kLanes == 16 && way == Way::kDots && is_coded(format) ? 4 : 8;
}

template <Way kWay, PanelFormat kFormat, int kIndex>
constexpr void add_kernels(FormatKernels* kernels) {
  constexpr int kTokens = kTileSizes[kIndex];
  if constexpr (kTokens <= few_tokens(kWay, kFormat)) {
    kernels->few[kIndex] = multiply_few<kWay, kFormat, kTokens>;
  }
  kernels->add[kIndex] = add_units<kWay, static_cast<int>(sum_cols(kFormat)),
                                   Multiplier<kWay>::has_signed_bytes(kFormat), kTokens>;
  if constexpr (kIndex + 1 < kSizeCount) add_kernels<kWay, kFormat, kIndex + 1>(kernels);
}

// The way whose values another one multiplies by.
constexpr Way decoder_of(Way way) { return way == Way::kSplitDots ? Way::kDots : way; }

template <Way kWay, PanelFormat kFormat>
constexpr FormatKernels kernels_of_format() {
  using Scales = typename Multiplier<kWay>::template Scales<kFormat>;
  FormatKernels kernels = {.few_tokens = few_tokens(kWay, kFormat),
                           .few = {},
                           .decode = decode_units<decoder_of(kWay), kFormat>,
                           .add = {},
                           .group = sum_cols(kFormat),
                           .is_scaled = Scales::is_scaled(),
                           .has_minima = Scales::has_minima(),
                           .offset = Multiplier<kWay>::offset_of(kFormat),
                           .many = multiply_many<kWay>};
  add_kernels<kWay, kFormat, 0>(&kernels);
  return kernels;
}
