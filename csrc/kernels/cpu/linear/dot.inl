// linear with bfloat16 inputs and dot instructions, or what equals them: bfloat16 weights, and
// codes, whose values bfloat16 represents exactly. float32 and float16 weights use
// linear/floats.inl.
//
// The order along K, for every output: a unit of 32 columns is 16 pairs, in two chains of dot
// products that are then added; the sum is added to acc as in Note: [One order along K]. One chain
// takes the even pairs and the other the odd ones, so that with few tokens consecutive dot products
// are independent. With codes of 8 bits, one chain takes the first eight pairs, which is up to 3 %
// faster for many tokens. Groups of 16 columns have two chains each. A dot product adds the odd
// column's product, then the even one's.
//
// Note: [Split dots]
// The product of two bfloat16 is exact in a float, so a dot product is two fma, bit for bit, where
// both flush denormals, as the threads of a pool do. Some processors run two fma faster than a dot
// product (kDotsAreSlow). But their inputs are floats, and the weights' halves must be separated;
// so from kLeastSplit tokens on, and only after decoding (Note: [Decode once]).
#pragma once

#include "kernels/cpu/linear/linear.inl"
#include "kernels/cpu/linear/pairs.inl"

template <>
struct Multiplier<Way::kDots> : AnyMultiplier {
  static constexpr int kCols = 2;
  using Sum = Vec;
  template <PanelFormat kFormat>
  using Scales = PairScales<kFormat>;

  static constexpr bool is_value(const PanelFormat& format) { return !is_coded(format); }
  static constexpr bool has_signed_bytes(const PanelFormat& format) { return format.bits == 8; }
  template <PanelFormat kFormat>
  SINKSTREAM_INLINE static ValueTable table() {
    return value_table<kFormat>();
  }
  template <typename Weights, int kSums>
  static constexpr int chains() {
    return 2;
  }
  template <typename Weights, int kSums>
  static constexpr Step order(int n) {
    return {.index = n, .chain = Weights::kSignedBytes ? n / (Weights::kGroup / 4) : n % 2};
  }
  template <PanelFormat kFormat, bool kInPlace>
  SINKSTREAM_INLINE static UintVec weights_at(const std::byte* codes, int step, int,
                                              const ValueTable& table) {
    return pairs_at<kFormat>(codes, step, table);
  }
  template <typename Weights>
  SINKSTREAM_INLINE static Vec multiply(Vec sum, UintVec weights, UintVec input, bool) {
    return dot_bf16(sum, weights, input);
  }
  template <typename Weights, int kTokens>
  SINKSTREAM_INLINE static void add(const Weights& weights, const TileInputs& inputs, int part,
                                    const Vec (&chains)[2][kTokens][kVectors],
                                    Vec (&acc)[kTokens][kVectors]) {
    Vec sum[kTokens][kVectors];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) sum[t][0] = chains[0][t][0] + chains[1][t][0];
    add_group(weights.scales, part, inputs.sums + part * kTokens, sum, acc);
  }
};

// Note: [Split dots].
template <>
struct Multiplier<Way::kSplitDots> : Multiplier<Way::kDots> {
  static constexpr int kWords = 2;
  struct Pair {
    Vec even, odd;
  };

  SINKSTREAM_INLINE static Pair broadcast_input(const uint32_t* words) {
    return {broadcast(__builtin_bit_cast(float, words[0])),
            broadcast(__builtin_bit_cast(float, words[1]))};
  }
  template <typename Weights>
  SINKSTREAM_INLINE static Vec multiply(Vec sum, UintVec weights, const Pair& input, bool) {
    sum = fma(as_float(weights & 0xffff0000), input.odd, sum);
    return fma(as_float(weights << 16), input.even, sum);
  }
};

// Two tokens are faster with dots: 0.7 to 1.1 times the time, by the format, on a Sapphire Rapids.
constexpr int64_t kLeastSplit = 3;

void linear_dot(const LinearArgs& args, const Launch& launch) {
  for_each_input(args, [&](const LinearArgs& run) {
    if (run.input_type == InputType::kBFloat16) {
      const bool splits = run.tokens >= kLeastSplit && dots_are_slow();
      if (splits) return run_linear<Way::kSplitDots>(run, launch);
      return run_linear<Way::kDots>(run, launch);
    }
    if (run.input_type == InputType::kInt8) return linear_int8(run, launch, linear_dot);
    linear_fma(run, launch);
  });
}
