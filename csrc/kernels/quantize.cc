#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "common/dtype.h"

namespace sinkstream {

namespace {

constexpr int kBlock = 32;  // numbers, in all storages of this file

// Far beyond what float16 scales reach, and the difference of two such numbers is finite.
constexpr float kTooLarge = 1e30f;

void put_half(float value, std::byte* to) {
  const f16 half = to_f16(value);
  std::memcpy(to, &half.bits, 2);
}

// The low half of byte j is column j, the high half column j + 16.
void put_nibbles(const uint8_t* codes, std::byte* to) {
  for (int j = 0; j < kBlock / 2; ++j) {
    to[j] = static_cast<std::byte>((codes[j] & 15) | (codes[j + kBlock / 2] & 15) << 4);
  }
}

// The fifth bits, bit j that of column j.
void put_fifth_bits(const uint8_t* codes, std::byte* to) {
  uint32_t bits = 0;
  for (int j = 0; j < kBlock; ++j) bits |= static_cast<uint32_t>(codes[j] >> 4 & 1) << j;
  std::memcpy(to, &bits, 4);
}

// Of a scale whose inverse overflows, float16 keeps nothing either.
float inverse_of(float scale) {
  const float inverse = 1 / scale;
  return std::isfinite(inverse) ? inverse : 0;
}

// Eight bits: the largest magnitude becomes 127. Half-way cases go away from zero.
void to_q8_0(const float* x, std::byte* out) {
  float largest = 0;
  for (int j = 0; j < kBlock; ++j) largest = std::max(largest, std::fabs(x[j]));
  const float scale = largest / 127, inverse = inverse_of(scale);
  put_half(scale, out);
  constexpr float kBelowHalf = 0x1.fffffep-2f;  // with 0.5 itself, 0.49999997 would become 1
  for (int j = 0; j < kBlock; ++j) {
    const float scaled = x[j] * inverse;
    const auto code = static_cast<int>(scaled + std::copysign(kBelowHalf, scaled));
    out[2 + j] = static_cast<std::byte>(code);
  }
}

// Codes around `offset`: the number of the largest magnitude, the first of several, becomes code 0.
// Returns the scale.
float to_signed_codes(const float* x, int offset, uint8_t* codes) {
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
    codes[j] = static_cast<uint8_t>(std::min(code, 2 * offset - 1));
  }
  return scale;
}

struct ScaleAndMinimum {
  float scale, minimum;
};

// Codes from the smallest number, 0, to the largest, `last`.
ScaleAndMinimum to_unsigned_codes(const float* x, int last, uint8_t* codes) {
  float minimum = x[0], maximum = x[0];
  for (int j = 1; j < kBlock; ++j) {
    minimum = std::min(minimum, x[j]);
    maximum = std::max(maximum, x[j]);
  }
  const float scale = (maximum - minimum) / static_cast<float>(last);
  const float inverse = inverse_of(scale);
  for (int j = 0; j < kBlock; ++j) {
    const auto code = static_cast<int>((x[j] - minimum) * inverse + 0.5f);
    codes[j] = static_cast<uint8_t>(std::min(code, last));
  }
  return {scale, minimum};
}

void to_block(Storage to, const float* x, std::byte* out) {
  uint8_t codes[kBlock];
  switch (to) {
    case Storage::kQ8_0: return to_q8_0(x, out);
    case Storage::kQ4_0:
      put_half(to_signed_codes(x, 8, codes), out);
      return put_nibbles(codes, out + 2);
    case Storage::kQ5_0:
      put_half(to_signed_codes(x, 16, codes), out);
      put_fifth_bits(codes, out + 2);
      return put_nibbles(codes, out + 6);
    case Storage::kQ4_1: {
      const auto [scale, minimum] = to_unsigned_codes(x, 15, codes);
      put_half(scale, out);
      put_half(minimum, out + 2);
      return put_nibbles(codes, out + 4);
    }
    case Storage::kQ5_1: {
      const auto [scale, minimum] = to_unsigned_codes(x, 31, codes);
      put_half(scale, out);
      put_half(minimum, out + 2);
      put_fifth_bits(codes, out + 4);
      return put_nibbles(codes, out + 8);
    }
    default: SINKSTREAM_CHECK(false, "storage is ", static_cast<int>(to));
  }
}

}  // namespace

bool can_quantize_to(Storage storage) {
  return storage == Storage::kQ8_0 || storage == Storage::kQ4_0 || storage == Storage::kQ4_1 ||
         storage == Storage::kQ5_0 || storage == Storage::kQ5_1;
}

bool quantize_row(Storage from, const std::byte* source, int64_t cols, Storage to, std::byte* out) {
  SINKSTREAM_CHECK(cols % kBlock == 0 && row_of(from).block == 1, "cols is ", cols, ", storage is ",
                   static_cast<int>(from));
  float numbers[kBlock];
  for (int64_t col = 0; col < cols; col += kBlock) {
    unpack_vector(from, source + row_bytes_of(from, col), kBlock, numbers);
    for (const float number : numbers) {
      if (!(std::fabs(number) < kTooLarge)) return false;  // or NaN
    }
    to_block(to, numbers, out + row_bytes_of(to, col));
  }
  return true;
}

}  // namespace sinkstream
