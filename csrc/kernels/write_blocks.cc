#include <cstring>

#include "common/check.h"
#include "kernels/file_blocks.h"

namespace sinkstream {

namespace {

// The layouts that file_blocks.cc reads.
using Bytes = uint8_t*;
using Codes = const uint8_t*;

void write_halves(const FileBlock& block, int count, Bytes to) {
  std::memcpy(to, block.halves, 2 * count);
}

// `step`: between the columns of a byte's low and high half. Codes lose what does not fit.
void write_nibbles(Codes codes, int step, Bytes to) {
  for (int j = 0; j < step; ++j) {
    to[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + step] & 15) << 4);
  }
}

void write_fifth_bits(Codes codes, Bytes to) {
  uint32_t bits = 0;
  for (int j = 0; j < 32; ++j) bits |= static_cast<uint32_t>(codes[j] >> 4 & 1) << j;
  std::memcpy(to, &bits, 4);
}

// Two bits of 256 codes, from bit `from`: 128 columns in 32 bytes.
void write_two_bits(Codes codes, int from, Bytes to) {
  std::memset(to, 0, 64);
  for (int col = 0; col < 256; ++col) {
    to[col / 128 * 32 + col % 32] |= (codes[col] >> from & 3) << (col % 128 / 32 * 2);
  }
}

// One bit of 256 codes in 32 bytes.
void write_one_bit(Codes codes, int from, Bytes to) {
  std::memset(to, 0, 32);
  for (int col = 0; col < 256; ++col) to[col % 32] |= (codes[col] >> from & 1) << (col / 32);
}

void write_q2_k(const FileBlock& block, Bytes to) {
  std::memcpy(to, block.bytes[0], 16);
  write_two_bits(block.codes, 0, to + 16);
  write_halves(block, 2, to + 80);
}

void write_q3_k(const FileBlock& block, Bytes to) {
  write_one_bit(block.codes, 2, to);
  write_two_bits(block.codes, 0, to + 32);
  std::memset(to + 96, 0, 12);
  for (int group = 0; group < 16; ++group) {
    const int scale = static_cast<int8_t>(block.bytes[0][group]) + 32;
    to[96 + group % 8] |= (scale & 15) << (group / 8 * 4);
    to[104 + group % 4] |= (scale >> 4) << (group / 4 * 2);
  }
  write_halves(block, 1, to + 108);
}

void write_scales_of_k(const FileBlock& block, Bytes to) {
  write_halves(block, 2, to);
  Codes scales = block.bytes[0], minima = block.bytes[1];
  for (int j = 0; j < 4; ++j) {
    to[4 + j] = static_cast<uint8_t>(scales[j] | scales[j + 4] >> 4 << 6);
    to[8 + j] = static_cast<uint8_t>(minima[j] | minima[j + 4] >> 4 << 6);
    to[12 + j] = static_cast<uint8_t>((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
  }
}

void write_long_nibbles(Codes codes, Bytes to) {
  for (int chunk = 0; chunk < 4; ++chunk) write_nibbles(codes + chunk * 64, 32, to + chunk * 32);
}

void write_q4_k(const FileBlock& block, Bytes to) {
  write_scales_of_k(block, to);
  write_long_nibbles(block.codes, to + 16);
}

void write_q5_k(const FileBlock& block, Bytes to) {
  write_scales_of_k(block, to);
  write_one_bit(block.codes, 4, to + 16);
  write_long_nibbles(block.codes, to + 48);
}

void write_q6_k(const FileBlock& block, Bytes to) {
  write_nibbles(block.codes, 64, to);
  write_nibbles(block.codes + 128, 64, to + 64);
  write_two_bits(block.codes, 4, to + 128);
  std::memcpy(to + 192, block.bytes[0], 16);
  write_halves(block, 1, to + 208);
}

void write_iq4_xs(const FileBlock& block, Bytes to) {
  write_halves(block, 1, to);
  std::memset(to + 2, 0, 6);
  for (int group = 0; group < 8; ++group) {
    const int scale = static_cast<int8_t>(block.bytes[0][group]) + 32;
    to[2 + group / 4] |= (scale >> 4) << (group % 4 * 2);
    to[4 + group / 2] |= (scale & 15) << (group % 2 * 4);
    write_nibbles(block.codes + group * 32, 16, to + 8 + group * 16);
  }
}

}  // namespace

void write_block(Storage storage, const FileBlock& block, std::byte* out) {
  const auto to = reinterpret_cast<Bytes>(out);
  switch (storage) {
    case Storage::kQ8_0:
      write_halves(block, 1, to);
      std::memcpy(to + 2, block.codes, 32);
      return;
    case Storage::kQ4_0:
    case Storage::kIQ4_NL:
      write_halves(block, 1, to);
      return write_nibbles(block.codes, 16, to + 2);
    case Storage::kQ4_1: write_halves(block, 2, to); return write_nibbles(block.codes, 16, to + 4);
    case Storage::kQ5_0:
      write_halves(block, 1, to);
      write_fifth_bits(block.codes, to + 2);
      return write_nibbles(block.codes, 16, to + 6);
    case Storage::kQ5_1:
      write_halves(block, 2, to);
      write_fifth_bits(block.codes, to + 4);
      return write_nibbles(block.codes, 16, to + 8);
    case Storage::kQ2_K: return write_q2_k(block, to);
    case Storage::kQ3_K: return write_q3_k(block, to);
    case Storage::kQ4_K: return write_q4_k(block, to);
    case Storage::kQ5_K: return write_q5_k(block, to);
    case Storage::kQ6_K: return write_q6_k(block, to);
    case Storage::kIQ4_XS: return write_iq4_xs(block, to);
    case Storage::kMXFP4: to[0] = block.bytes[0][0]; return write_nibbles(block.codes, 16, to + 1);
    default: SINKSTREAM_CHECK(false, "storage is ", static_cast<int>(storage));
  }
}

}  // namespace sinkstream
