#include "kernels/file_blocks.h"

#include <cstring>

#include "common/check.h"

namespace sinkstream {

namespace {

// The layouts of GGUF's blocks are ggml's; byte i of a block is at[i].
using Bytes = const uint8_t*;

// `count` float16 into the head of the block.
void read_halves(Bytes from, int count, FileBlock* block) {
  std::memcpy(block->halves, from, 2 * count);
}

// 32 codes of four bits: the low half of byte j is column j, the high half column j + 16.
void read_nibbles(Bytes from, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = from[j] & 15;
    codes[j + 16] = from[j] >> 4;
  }
}

// The fifth bits of 32 codes, bit j that of column j.
void add_fifth_bits(Bytes from, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, from, 4);
  for (int j = 0; j < 32; ++j) codes[j] |= (bits >> j & 1) << 4;
}

void read_q8_0(Bytes at, FileBlock* block) {
  read_halves(at, 1, block);
  std::memcpy(block->codes, at + 2, 32);
}

// Q4_0 and IQ4_NL.
void read_q4(Bytes at, FileBlock* block) {
  read_halves(at, 1, block);
  read_nibbles(at + 2, block->codes);
}

void read_q4_1(Bytes at, FileBlock* block) {
  read_halves(at, 2, block);
  read_nibbles(at + 4, block->codes);
}

void read_q5_0(Bytes at, FileBlock* block) {
  read_halves(at, 1, block);
  read_nibbles(at + 6, block->codes);
  add_fifth_bits(at + 2, block->codes);
}

void read_q5_1(Bytes at, FileBlock* block) {
  read_halves(at, 2, block);
  read_nibbles(at + 8, block->codes);
  add_fifth_bits(at + 4, block->codes);
}

void read_mxfp4(Bytes at, FileBlock* block) {
  block->bytes[0][0] = at[0];
  read_nibbles(at + 1, block->codes);
}

// 256 codes of two bits: 128 columns from 32 bytes, the lowest bits of all bytes first.
void read_two_bits(Bytes from, uint8_t* codes) {
  for (int col = 0; col < 256; ++col) {
    codes[col] = from[col / 128 * 32 + col % 32] >> (col % 128 / 32 * 2) & 3;
  }
}

// 16 bytes of scales, 64 of codes, two float16.
void read_q2_k(Bytes at, FileBlock* block) {
  std::memcpy(block->bytes[0], at, 16);
  read_two_bits(at + 16, block->codes);
  read_halves(at + 80, 2, block);
}

// 32 bytes of third bits, 64 of codes, 12 of scales, one float16.
void read_q3_k(Bytes at, FileBlock* block) {
  read_two_bits(at + 32, block->codes);
  for (int col = 0; col < 256; ++col) {
    block->codes[col] |= (at[col % 32] >> (col / 32) & 1) << 2;
  }
  const Bytes scales = at + 96;
  for (int group = 0; group < 16; ++group) {
    const int low = scales[group % 8] >> (group / 8 * 4) & 15;
    const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    block->bytes[0][group] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  read_halves(at + 108, 1, block);
}

// Two float16 and 12 bytes of scales and minima in six bits.
void read_scales_of_k(Bytes at, FileBlock* block) {
  read_halves(at, 2, block);
  const Bytes from = at + 4;
  for (int j = 0; j < 4; ++j) {
    block->bytes[0][j] = from[j] & 63;
    block->bytes[1][j] = from[j + 4] & 63;
    block->bytes[0][j + 4] = (from[j + 8] & 15) | from[j] >> 6 << 4;
    block->bytes[1][j + 4] = from[j + 8] >> 4 | from[j + 4] >> 6 << 4;
  }
}

// 256 codes of four bits: of 64 columns from 32 bytes, the low halves first.
void read_long_nibbles(Bytes from, uint8_t* codes) {
  for (int chunk = 0; chunk < 4; ++chunk) {
    for (int l = 0; l < 32; ++l) {
      codes[chunk * 64 + l] = from[chunk * 32 + l] & 15;
      codes[chunk * 64 + 32 + l] = from[chunk * 32 + l] >> 4;
    }
  }
}

void read_q4_k(Bytes at, FileBlock* block) {
  read_scales_of_k(at, block);
  read_long_nibbles(at + 16, block->codes);
}

// As Q4_K, with 32 bytes of fifth bits before the codes.
void read_q5_k(Bytes at, FileBlock* block) {
  read_scales_of_k(at, block);
  read_long_nibbles(at + 48, block->codes);
  for (int run = 0; run < 8; ++run) {
    for (int l = 0; l < 32; ++l) block->codes[run * 32 + l] |= (at[16 + l] >> run & 1) << 4;
  }
}

// 128 bytes of low bits, 64 of high bits, 16 of scales, one float16.
void read_q6_k(Bytes at, FileBlock* block) {
  for (int half = 0; half < 2; ++half) {
    const Bytes low = at + half * 64, high = at + 128 + half * 32;
    uint8_t* codes = block->codes + half * 128;
    for (int run = 0; run < 4; ++run) {
      for (int l = 0; l < 32; ++l) {
        const int bits = low[run % 2 * 32 + l] >> (run / 2 * 4) & 15;
        codes[run * 32 + l] = static_cast<uint8_t>(bits | (high[l] >> (run * 2) & 3) << 4);
      }
    }
  }
  std::memcpy(block->bytes[0], at + 192, 16);
  read_halves(at + 208, 1, block);
}

// One float16, two bytes of the high and four of the low bits of scales, 128 of codes.
void read_iq4_xs(Bytes at, FileBlock* block) {
  read_halves(at, 1, block);
  const int high = at[2] | at[3] << 8;
  for (int group = 0; group < 8; ++group) {
    const int low = at[4 + group / 2] >> (group % 2 * 4) & 15;
    block->bytes[0][group] = static_cast<uint8_t>((low | (high >> (2 * group) & 3) << 4) - 32);
    read_nibbles(at + 8 + group * 16, block->codes + group * 32);
  }
}

// A word, then codes: in pairs of four bits as GGUF's, or unsigned in eight bits.
void read_word(Bytes from, FileBlock* block) { std::memcpy(&block->word, from, 4); }

void read_int4(Bytes at, FileBlock* block) {
  read_word(at, block);
  read_nibbles(at + 4, block->codes);
}

void read_int8(Bytes at, FileBlock* block) {
  read_word(at, block);
  for (int i = 0; i < 32; ++i) block->codes[i] = at[4 + i] ^ 0x80;
}

void read_fp8(Bytes at, FileBlock* block) {
  read_word(at, block);
  std::memcpy(block->codes, at + 4, 32);
}

}  // namespace

void read_block(Storage storage, const std::byte* source, FileBlock* block) {
  const auto at = reinterpret_cast<Bytes>(source);
  switch (storage) {
    case Storage::kQ8_0: return read_q8_0(at, block);
    case Storage::kQ4_0:
    case Storage::kIQ4_NL: return read_q4(at, block);
    case Storage::kQ4_1: return read_q4_1(at, block);
    case Storage::kQ5_0: return read_q5_0(at, block);
    case Storage::kQ5_1: return read_q5_1(at, block);
    case Storage::kQ2_K: return read_q2_k(at, block);
    case Storage::kQ3_K: return read_q3_k(at, block);
    case Storage::kQ4_K: return read_q4_k(at, block);
    case Storage::kQ5_K: return read_q5_k(at, block);
    case Storage::kQ6_K: return read_q6_k(at, block);
    case Storage::kIQ4_XS: return read_iq4_xs(at, block);
    case Storage::kMXFP4: return read_mxfp4(at, block);
    case Storage::kInt4: return read_int4(at, block);
    case Storage::kInt8: return read_int8(at, block);
    case Storage::kFp8: return read_fp8(at, block);
    case Storage::kF32:
    case Storage::kF16:
    case Storage::kBF16: break;
  }
  SINKSTREAM_CHECK(false, "storage is ", static_cast<int>(storage));
}

}  // namespace sinkstream
