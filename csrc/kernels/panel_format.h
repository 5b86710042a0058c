// How panels store numbers, as data: each format is a row of a table, and kernels are compiled per
// row. Note: [Panels], packed_matrix.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace sinkstream {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kUnit = 32;  // columns that a kernel takes at a time

enum class Number : uint8_t { kFloat32, kFloat16, kBFloat16, kCode };

// What a code stands for, before it is scaled.
enum class CodeValues : uint8_t {
  kInteger,  // code − offset; of 8 bits, two's complement
  kIq4Nl,    // kIq4NlValues
  kFp4,      // kFp4Values: twice the numbers of FP4 (E2M1), so that all are integers
  kE4m3,     // FP8: a sign, four bits of exponent, three of fraction; no infinity, 0x7f is NaN
};

// How a block stores the scale and the minimum of each of its groups; see `scale_bytes`.
enum class Scales : uint8_t {
  kNone,
  kHalf,             // float16 scale
  kHalfMinimum,      // float16 scale, float16 minimum
  kTwoLevel,         // int8 per group × float16 per block
  kTwoLevelMinimum,  // the same for the scale and, subtracted, the minimum
  kNibbles,          // the same in four bits each: the scale is the low half of a byte
  kPower,            // the power of two 2^(byte − 128)
  kFloat,            // float32 scale
  kZeroPoint24,      // 24 bits: the upper 19 of a float32 scale, then a zero point of 5
  kZeroPoint32,      // 32 bits: the same with a zero point of 13
};

// The upper 19 bits of a float32 hold every float16 and every bfloat16.
constexpr uint32_t kScaleBits = 0xffffe000;
constexpr int kMaxZeroPoint24 = 31, kMaxZeroPoint32 = 8191;

// A weight is scale · value + minimum, or scale · (value − zero point).
struct PanelFormat {
  Number number = Number::kFloat32;
  int bits = 0;  // of a code
  CodeValues values = CodeValues::kInteger;
  int offset = 0;
  Scales scales = Scales::kNone;
  int group = int{kUnit};  // columns that share a scale: 16 or kUnit
  int block = int{kUnit};  // columns that are stored together: a multiple of kUnit, or kOpen
};

// The block of a format that leaves it to each matrix (PackedMatrix::block). All its columns share
// a scale; kernels repeat it for every unit, so that the length of a block changes no bit.
constexpr int kOpen = 0;

enum class WeightType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt4,
  kInt4Minimum,
  kInt5,
  kInt5Minimum,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
  kInt4Zero,
  kInt8Zero,
  kE4m3,
};

struct WeightTypeRow {
  WeightType type;
  const char* name;
  PanelFormat format;
};

constexpr PanelFormat code_format(int bits, CodeValues values, int offset, Scales scales,
                                  int group = int{kUnit}, int block = int{kUnit}) {
  return {.number = Number::kCode,
          .bits = bits,
          .values = values,
          .offset = offset,
          .scales = scales,
          .group = group,
          .block = block};
}

// In the order of WeightType. The arrays of this file are not `inline`: tables with wide
// instructions must leave no symbol that the linker could pick for the rest of the program.
constexpr WeightTypeRow kWeightTypes[] = {
    {WeightType::kFloat32, "float32", {.number = Number::kFloat32}},
    {WeightType::kFloat16, "float16", {.number = Number::kFloat16}},
    {WeightType::kBFloat16, "bfloat16", {.number = Number::kBFloat16}},
    {WeightType::kInt8, "int8", code_format(8, CodeValues::kInteger, 0, Scales::kHalf)},
    {WeightType::kInt4, "int4", code_format(4, CodeValues::kInteger, 8, Scales::kHalf)},
    {WeightType::kInt4Minimum, "int4_minimum",
     code_format(4, CodeValues::kInteger, 0, Scales::kHalfMinimum)},
    {WeightType::kInt5, "int5", code_format(5, CodeValues::kInteger, 16, Scales::kHalf)},
    {WeightType::kInt5Minimum, "int5_minimum",
     code_format(5, CodeValues::kInteger, 0, Scales::kHalfMinimum)},
    {WeightType::kQ2K, "q2_k", code_format(2, CodeValues::kInteger, 0, Scales::kNibbles, 16, 256)},
    {WeightType::kQ3K, "q3_k", code_format(3, CodeValues::kInteger, 4, Scales::kTwoLevel, 16, 256)},
    {WeightType::kQ4K, "q4_k",
     code_format(4, CodeValues::kInteger, 0, Scales::kTwoLevelMinimum, 32, 256)},
    {WeightType::kQ5K, "q5_k",
     code_format(5, CodeValues::kInteger, 0, Scales::kTwoLevelMinimum, 32, 256)},
    {WeightType::kQ6K, "q6_k",
     code_format(6, CodeValues::kInteger, 32, Scales::kTwoLevel, 16, 256)},
    {WeightType::kIq4Nl, "iq4_nl", code_format(4, CodeValues::kIq4Nl, 0, Scales::kHalf)},
    {WeightType::kIq4Xs, "iq4_xs",
     code_format(4, CodeValues::kIq4Nl, 0, Scales::kTwoLevel, 32, 256)},
    {WeightType::kMxfp4, "mxfp4", code_format(4, CodeValues::kFp4, 0, Scales::kPower)},
    {WeightType::kInt4Zero, "int4_zero",
     code_format(4, CodeValues::kInteger, 0, Scales::kZeroPoint24, int{kUnit}, kOpen)},
    {WeightType::kInt8Zero, "int8_zero",
     code_format(8, CodeValues::kInteger, 0, Scales::kZeroPoint32, int{kUnit}, kOpen)},
    {WeightType::kE4m3, "e4m3",
     code_format(8, CodeValues::kE4m3, 0, Scales::kFloat, int{kUnit}, kOpen)},
};

static_assert([] {
  for (const WeightTypeRow& row : kWeightTypes) {
    if (row.format.group != 16 && row.format.group != kUnit) return false;
    if (row.format.block % kUnit != 0) return false;
    if (&row != &kWeightTypes[static_cast<size_t>(row.type)]) return false;
  }
  return true;
}());

constexpr PanelFormat format_of(WeightType type) {
  return kWeightTypes[static_cast<size_t>(type)].format;
}

constexpr const char* name_of(WeightType type) {
  return kWeightTypes[static_cast<size_t>(type)].name;
}

constexpr bool is_coded(const PanelFormat& format) { return format.number == Number::kCode; }
constexpr bool is_quantized(WeightType type) { return is_coded(format_of(type)); }

// Of which a multiple of the scale is subtracted, the same for all columns of a group.
constexpr bool has_zero_point(const PanelFormat& format) {
  return format.scales == Scales::kZeroPoint24 || format.scales == Scales::kZeroPoint32;
}

constexpr bool has_minimum(const PanelFormat& format) {
  return format.scales == Scales::kHalfMinimum || format.scales == Scales::kTwoLevelMinimum ||
         format.scales == Scales::kNibbles || has_zero_point(format);
}

// Whether codes stand for integers, which inputs that are integers can be multiplied by.
constexpr bool has_integers(const PanelFormat& format) {
  return is_coded(format) && format.values != CodeValues::kE4m3;
}

constexpr bool are_integers(WeightType type) { return has_integers(format_of(type)); }

// Groups of half a unit have their own sums of inputs.
constexpr bool has_half_groups(const PanelFormat& format) { return format.group < kUnit; }

constexpr bool needs_half_sums(const PanelFormat& format) {
  return has_minimum(format) && has_half_groups(format);
}

// Bytes of the numbers or codes of one unit.
constexpr int64_t unit_bytes(const PanelFormat& format) {
  switch (format.number) {
    case Number::kFloat32: return kPanelRows * kUnit * 4;
    case Number::kFloat16:
    case Number::kBFloat16: return kPanelRows * kUnit * 2;
    case Number::kCode: break;
  }
  return kPanelRows * kUnit * format.bits / 8;
}

// Bytes of a block's scales. They follow its codes; values of 16 rows are next to each other:
//
//   kHalf                [16] float16
//   kHalfMinimum         [16] float16 scales, [16] float16 minima
//   kTwoLevel            [16] float16; for each group, [16] int8
//   kTwoLevelMinimum     [16] float16 for scales, [16] for minima; for each group, [16] int8 of
//                        the scales, [16] int8 of the minima
//   kNibbles             the same float16; for each group, [16] bytes
//   kPower               [16] bytes
//   kFloat               [16] float32
//   kZeroPoint24         [16] the upper 16 of the 24 bits; [16] bytes: the lower 8
//   kZeroPoint32         [16] words
constexpr int64_t scale_bytes(const PanelFormat& format) {
  const int64_t groups = format.block / format.group;
  switch (format.scales) {
    case Scales::kNone: return 0;
    case Scales::kHalf: return kPanelRows * 2;
    case Scales::kHalfMinimum: return kPanelRows * 4;
    case Scales::kTwoLevel: return kPanelRows * (2 + groups);
    case Scales::kTwoLevelMinimum: return kPanelRows * (4 + 2 * groups);
    case Scales::kNibbles: return kPanelRows * (4 + groups);
    case Scales::kPower: return kPanelRows;
    case Scales::kFloat:
    case Scales::kZeroPoint32: return kPanelRows * 4;
    case Scales::kZeroPoint24: return kPanelRows * 3;
  }
  return 0;
}

constexpr bool is_open(const PanelFormat& format) { return format.block == kOpen; }

// Columns of a block. `open`: those of the matrix, if the format leaves them to it.
constexpr int64_t block_cols(const PanelFormat& format, int64_t open) {
  return is_open(format) ? open : format.block;
}

constexpr int64_t block_code_bytes(const PanelFormat& format, int64_t open = kUnit) {
  return block_cols(format, open) / kUnit * unit_bytes(format);
}

constexpr int64_t block_bytes(const PanelFormat& format, int64_t open = kUnit) {
  return block_code_bytes(format, open) + scale_bytes(format);
}

constexpr int kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
constexpr int kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The integer that a code of at most six bits stands for.
constexpr int value_of(const PanelFormat& format, int code) {
  switch (format.values) {
    case CodeValues::kInteger: return code - format.offset;
    case CodeValues::kIq4Nl: return kIq4NlValues[code];
    case CodeValues::kFp4: return kFp4Values[code];
    case CodeValues::kE4m3: break;  // no integer
  }
  return 0;
}

// A function per weight type: element i is make.operator()<format of type i>().
template <typename Function, typename Make>
constexpr auto per_format(const Make& make) {
  constexpr size_t kCount = std::size(kWeightTypes);
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<Function, kCount> {
      make.template operator()<kWeightTypes[kIndex].format>()...
    };
  }(std::make_index_sequence<kCount>());
}

}  // namespace sinkstream
