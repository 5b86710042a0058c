#include "kernels/pack.h"

#include <cstring>

#include "common/check.h"
#include "common/dtype.h"
#include "kernels/file_blocks.h"
#include "kernels/pack_unit.h"

namespace sinkstream {

namespace {

template <typename T>
T read_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Weights of kBytes bytes, `pair` of them adjacent along K: 1 or 2.
template <size_t kBytes>
void pack_plain_row(const std::byte* source, int64_t cols, int64_t pair, std::byte* panel,
                    int64_t r) {
  for (int64_t col = 0; col < cols; ++col) {
    const int64_t element = (col / pair * kPanelRows + r) * pair + col % pair;
    std::memcpy(panel + element * kBytes, source + col * kBytes, kBytes);
  }
}

// `scales`: a block's, laid out as panel_format.h says.
void pack_scales(const PanelFormat& format, const FileBlock& block, std::byte* scales, int64_t r) {
  const auto put_half = [&](int64_t vector) {
    std::memcpy(scales + (vector * kPanelRows + r) * 2, block.halves + 2 * vector, 2);
  };
  const auto put_byte = [&](int64_t halves, int64_t vector, uint8_t byte) {
    scales[(2 * halves + vector) * kPanelRows + r] = std::byte{byte};
  };
  const int64_t groups = format.block / format.group;
  switch (format.scales) {
    case Scales::kNone: return;
    case Scales::kHalf: return put_half(0);
    case Scales::kHalfMinimum: put_half(0); return put_half(1);
    case Scales::kTwoLevel:
      put_half(0);
      for (int64_t group = 0; group < groups; ++group) put_byte(1, group, block.bytes[0][group]);
      return;
    case Scales::kTwoLevelMinimum:
      put_half(0);
      put_half(1);
      for (int64_t group = 0; group < groups; ++group) {
        put_byte(2, 2 * group, block.bytes[0][group]);
        put_byte(2, 2 * group + 1, block.bytes[1][group]);
      }
      return;
    case Scales::kNibbles:
      put_half(0);
      put_half(1);
      for (int64_t group = 0; group < groups; ++group) put_byte(2, group, block.bytes[0][group]);
      return;
    case Scales::kPower: return put_byte(0, 0, block.bytes[0][0]);
    case Scales::kFloat:
    case Scales::kZeroPoint24:
    case Scales::kZeroPoint32: return pack_scale_word(format, block.word, scales, r);
  }
}

// Whether no scale of a block is infinite or NaN. Float16 that a storage lacks are zeros.
bool is_finite(const PanelFormat& format, const FileBlock& block) {
  if (format.scales == Scales::kPower) return block.bytes[0][0] <= kLargestPower;
  if (is_open(format)) return is_finite_scale(block.word);
  constexpr uint16_t kExponent = 0x7c00;
  const auto scale = read_as<uint16_t>(block.halves), minimum = read_as<uint16_t>(block.halves + 2);
  return (scale & kExponent) != kExponent && (minimum & kExponent) != kExponent;
}

template <PanelFormat kFormat>
bool pack_coded_row(Storage storage, const std::byte* source, int64_t cols, std::byte* panel,
                    int64_t r) {
  constexpr int64_t kBlock = block_cols(kFormat, kUnit);
  static_assert(kBlock <= kMaxBlock && kBlock / kFormat.group <= 16);
  FileBlock numbers{};
  bool all_finite = true;
  for (int64_t left = cols / kBlock; left > 0; --left) {
    read_block(storage, source, &numbers);
    all_finite &= is_finite(kFormat, numbers);
    for (int64_t unit = 0; unit < kBlock / kUnit; ++unit) {
      const uint8_t* const codes = numbers.codes + unit * kUnit;
      if constexpr (kFormat.values == CodeValues::kE4m3) all_finite &= !has_nan_e4m3(codes);
      pack_unit<kFormat.bits>(codes, panel + unit * unit_bytes(kFormat), r);
    }
    pack_scales(kFormat, numbers, panel + block_code_bytes(kFormat), r);
    source += row_of(storage).bytes;
    panel += block_bytes(kFormat);
  }
  return all_finite;
}

using PackRow = bool(Storage storage, const std::byte* source, int64_t cols, std::byte* panel,
                     int64_t r);

template <PanelFormat kFormat>
bool pack_row(Storage storage, const std::byte* source, int64_t cols, std::byte* panel, int64_t r) {
  if constexpr (is_coded(kFormat)) {
    return pack_coded_row<kFormat>(storage, source, cols, panel, r);
  }
  switch (kFormat.number) {
    case Number::kFloat32: pack_plain_row<4>(source, cols, 1, panel, r); break;
    case Number::kFloat16: pack_plain_row<2>(source, cols, 1, panel, r); break;
    case Number::kBFloat16: pack_plain_row<2>(source, cols, 2, panel, r); break;
    case Number::kCode: break;
  }
  return true;
}

static_assert([] {
  for (const StorageRow& row : kStorageRows) {
    if (!is_quantized(row.type)) continue;
    if (row.block != block_cols(format_of(row.type), kUnit)) return false;
  }
  return true;
}());

constexpr auto kPackRows =
    per_format<PackRow*>([]<PanelFormat kFormat>() { return pack_row<kFormat>; });

}  // namespace

bool pack_rows(Storage storage, const std::byte* source, int64_t row, int64_t count, int64_t cols,
               std::byte* panels) {
  return pack_part(storage, source, {.row = row, .count = count, .col = 0, .width = cols}, cols,
                   panels);
}

bool pack_part(Storage storage, const std::byte* source, const MatrixPart& part, int64_t cols,
               std::byte* panels) {
  const WeightType type = weight_type_of(storage);
  const int64_t block = row_of(storage).block;
  SINKSTREAM_CHECK(cols % block == 0, "cols is ", cols);
  SINKSTREAM_CHECK(part.col % block == 0 && part.col % 2 == 0 && part.width % block == 0 &&
                       part.col + part.width <= cols,
                   "columns [", part.col, ", ", part.col + part.width, ") of ", cols);
  const int64_t source_bytes = row_bytes_of(storage, part.width);
  // Columns before `part.col` take as much of a panel as a matrix of that width.
  std::byte* const first = panels + panel_bytes(type, part.col);
  bool all_finite = true;
  for (int64_t i = 0; i < part.count; ++i) {
    const int64_t row = part.row + i;
    all_finite &= kPackRows[static_cast<size_t>(type)](
        storage, source + i * source_bytes, part.width,
        first + row / kPanelRows * panel_bytes(type, cols), row % kPanelRows);
  }
  return all_finite;
}

void unpack_vector(Storage storage, const std::byte* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    switch (storage) {
      case Storage::kF32: out[i] = read_as<float>(source + i * 4); break;
      case Storage::kF16: out[i] = to_float(read_as<f16>(source + i * 2)); break;
      case Storage::kBF16: out[i] = to_float(read_as<bf16>(source + i * 2)); break;
      default: SINKSTREAM_CHECK(false, "storage is ", static_cast<int>(storage));
    }
  }
}

}  // namespace sinkstream
