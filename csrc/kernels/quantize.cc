#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "kernels/file_blocks.h"
#include "kernels/quantize_block.h"

namespace sinkstream {

namespace {

constexpr int kBlock = 32;  // numbers, in all storages that are rounded here

// Far beyond what float16 scales reach, and the difference of two such numbers is finite.
constexpr float kTooLarge = 1e30f;

// The same for scales in two levels, and for sums of fourth powers.
constexpr float kTooLargeForSums = 1e9f;

// Whether scales are found by a search, which multiplies numbers with each other.
bool is_searched(Storage to) {
  return format_of(row_of(to).type).block > kBlock || to == Storage::kIQ4_NL;
}

// Of a scale whose inverse overflows, float16 keeps nothing either.
float inverse_of(float scale) {
  const float inverse = 1 / scale;
  return std::isfinite(inverse) ? inverse : 0;
}

// Eight bits: the largest magnitude becomes 127. Half-way cases go away from zero.
void round_q8_0(const float* x, FileBlock* block) {
  float largest = 0;
  for (int j = 0; j < kBlock; ++j) largest = std::max(largest, std::fabs(x[j]));
  const float scale = largest / 127, inverse = inverse_of(scale);
  put_half(scale, 0, block);
  constexpr float kBelowHalf = 0x1.fffffep-2f;  // with 0.5 itself, 0.49999997 would become 1
  for (int j = 0; j < kBlock; ++j) {
    const float scaled = x[j] * inverse;
    const auto code = static_cast<int>(scaled + std::copysign(kBelowHalf, scaled));
    block->codes[j] = static_cast<uint8_t>(code);
  }
}

// Codes around `offset`: the number of the largest magnitude, the first of several, becomes code 0.
void round_signed(const float* x, int offset, FileBlock* block) {
  float largest = 0, extreme = 0;
  for (int j = 0; j < kBlock; ++j) {
    if (std::fabs(x[j]) > largest) {
      largest = std::fabs(x[j]);
      extreme = x[j];
    }
  }
  const float scale = extreme / static_cast<float>(-offset), inverse = inverse_of(scale);
  const float middle = static_cast<float>(offset) + 0.5f;
  for (int j = 0; j < kBlock; ++j) {
    const auto code = static_cast<int>(x[j] * inverse + middle);
    block->codes[j] = static_cast<uint8_t>(std::min(code, 2 * offset - 1));
  }
  put_half(scale, 0, block);
}

// Codes from the smallest number, 0, to the largest, `last`.
void round_unsigned(const float* x, int last, FileBlock* block) {
  float minimum = x[0], maximum = x[0];
  for (int j = 1; j < kBlock; ++j) {
    minimum = std::min(minimum, x[j]);
    maximum = std::max(maximum, x[j]);
  }
  const float scale = (maximum - minimum) / static_cast<float>(last);
  const float inverse = inverse_of(scale);
  for (int j = 0; j < kBlock; ++j) {
    const auto code = static_cast<int>((x[j] - minimum) * inverse + 0.5f);
    block->codes[j] = static_cast<uint8_t>(std::min(code, last));
  }
  put_half(scale, 0, block);
  put_half(minimum, 1, block);
}

void round_block(Storage to, const float* x, FileBlock* block) {
  switch (to) {
    case Storage::kQ8_0: return round_q8_0(x, block);
    case Storage::kQ4_0: return round_signed(x, 8, block);
    case Storage::kQ5_0: return round_signed(x, 16, block);
    case Storage::kQ4_1: return round_unsigned(x, 15, block);
    case Storage::kQ5_1: return round_unsigned(x, 31, block);
    case Storage::kIQ4_NL: return round_block_iq4_nl(x, block);
    case Storage::kIQ4_XS: return round_block_iq4_xs(x, block);
    case Storage::kMXFP4: return round_block_mxfp4(x, block);
    default: return round_block_k(to, x, block);
  }
}

// Float16 that a storage lacks are zeros.
bool has_finite_halves(const FileBlock& block) {
  constexpr uint16_t kExponent = 0x7c00;
  uint16_t halves[2];
  std::memcpy(halves, block.halves, sizeof(halves));
  return (halves[0] & kExponent) != kExponent && (halves[1] & kExponent) != kExponent;
}

}  // namespace

bool can_quantize_to(Storage storage) {
  return is_quantized(row_of(storage).type) && !row_of(storage).is_split;
}

bool quantize_row(Storage from, const std::byte* source, int64_t cols, Storage to, std::byte* out) {
  const int64_t block_cols = row_of(to).block;
  SINKSTREAM_CHECK(cols % block_cols == 0 && row_of(from).block == 1, "cols is ", cols,
                   ", storage is ", static_cast<int>(from));
  const float too_large = is_searched(to) ? kTooLargeForSums : kTooLarge;
  float numbers[kMaxBlock];
  FileBlock block{};
  for (int64_t col = 0; col < cols; col += block_cols) {
    unpack_vector(from, source + row_bytes_of(from, col), block_cols, numbers);
    for (int64_t i = 0; i < block_cols; ++i) {
      if (!(std::fabs(numbers[i]) < too_large)) return false;  // or NaN
    }
    round_block(to, numbers, &block);
    if (!has_finite_halves(block)) return false;
    write_block(to, block, out + row_bytes_of(to, col));
  }
  return true;
}

}  // namespace sinkstream
