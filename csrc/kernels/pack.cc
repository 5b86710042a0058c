#include "kernels/pack.h"

#include <cstring>

#include "common/check.h"
#include "common/dtype.h"

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

// Q8_0: scale, 32 codes.
void pack_int8_block(const std::byte* source, std::byte* block, int64_t r) {
  for (int64_t quad = 0; quad < kGroup / 4; ++quad) {
    std::memcpy(block + (quad * kPanelRows + r) * 4, source + 2 + quad * 4, 4);
  }
  std::memcpy(block + kPanelRows * kGroup + r * 2, source, 2);
}

// Q4_0: scale, 16 bytes of codes. Q4_1: scale, minimum, 16 bytes of codes.
void pack_int4_block(const std::byte* source, bool has_minimum, std::byte* block, int64_t r) {
  const std::byte* codes = source + (has_minimum ? 4 : 2);
  for (int64_t word = 0; word < kGroup / 8; ++word) {
    uint32_t packed = 0;
    for (int64_t i = 0; i < 8; ++i) {
      const int64_t col = word * 8 + i;
      const auto both = std::to_integer<uint32_t>(codes[col % 16]);
      const uint32_t code = col < 16 ? both & 15 : both >> 4;
      packed |= code << (4 * (i / 2 + i % 2 * 4));
    }
    std::memcpy(block + (word * kPanelRows + r) * 4, &packed, 4);
  }
  std::byte* scales = block + kPanelRows * kGroup / 2;
  std::memcpy(scales + r * 2, source, 2);
  if (has_minimum) std::memcpy(scales + kPanelRows * 2 + r * 2, source + 2, 2);
}

void pack_row(Storage storage, const std::byte* source, int64_t cols, std::byte* panel, int64_t r) {
  switch (storage) {
    case Storage::kF32: return pack_plain_row<4>(source, cols, 1, panel, r);
    case Storage::kF16: return pack_plain_row<2>(source, cols, 1, panel, r);
    case Storage::kBF16: return pack_plain_row<2>(source, cols, 2, panel, r);
    default: break;
  }
  const int64_t source_bytes = row_bytes_of(storage, kGroup);
  const int64_t packed_block_bytes = block_bytes(weight_type_of(storage));
  for (int64_t group = 0; group < cols / kGroup; ++group) {
    const std::byte* from = source + group * source_bytes;
    std::byte* block = panel + group * packed_block_bytes;
    if (storage == Storage::kQ8_0) {
      pack_int8_block(from, block, r);
    } else {
      pack_int4_block(from, storage == Storage::kQ4_1, block, r);
    }
  }
}

}  // namespace

WeightType weight_type_of(Storage storage) {
  switch (storage) {
    case Storage::kF32: return WeightType::kFloat32;
    case Storage::kF16: return WeightType::kFloat16;
    case Storage::kBF16: return WeightType::kBFloat16;
    case Storage::kQ8_0: return WeightType::kInt8;
    case Storage::kQ4_0: return WeightType::kInt4;
    case Storage::kQ4_1: return WeightType::kInt4Minimum;
  }
  SINKSTREAM_CHECK(false, "storage is ", static_cast<int>(storage));
}

int64_t row_bytes_of(Storage storage, int64_t cols) {
  switch (storage) {
    case Storage::kF32: return cols * 4;
    case Storage::kF16:
    case Storage::kBF16: return cols * 2;
    case Storage::kQ8_0: return cols / kGroup * 34;
    case Storage::kQ4_0: return cols / kGroup * 18;
    case Storage::kQ4_1: return cols / kGroup * 20;
  }
  SINKSTREAM_CHECK(false, "storage is ", static_cast<int>(storage));
}

void pack_rows(Storage storage, const std::byte* source, int64_t row, int64_t count, int64_t cols,
               std::byte* panels) {
  const WeightType type = weight_type_of(storage);
  SINKSTREAM_CHECK(!is_quantized(type) || cols % kGroup == 0, "cols is ", cols);
  const int64_t source_bytes = row_bytes_of(storage, cols);
  for (int64_t i = 0; i < count; ++i) {
    std::byte* panel = panels + (row + i) / kPanelRows * panel_bytes(type, cols);
    pack_row(storage, source + i * source_bytes, cols, panel, (row + i) % kPanelRows);
  }
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
