// Blocks as plain numbers: codes by column, scales by group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/pack.h"

namespace sinkstream {

constexpr int64_t kMaxBlock = 256;  // numbers in a block

// One block of a row. Codes and scales mean what they mean in the panels of its weight type.
struct FileBlock {
  uint8_t codes[kMaxBlock];
  std::byte halves[4];   // float16: the block's scale, then the one of its minima
  uint8_t bytes[2][16];  // by group: scales, then minima
  uint32_t word;         // a float32 scale; of integers, its upper 19 bits and the zero point
};

// `source`: a block of a quantized storage. Fields that the storage lacks keep their values.
void read_block(Storage storage, const std::byte* source, FileBlock* block);

// `out`: room for a block of a storage of GGUF. Bits of codes and scales that the storage has no
// room for are ignored.
void write_block(Storage storage, const FileBlock& block, std::byte* out);

}  // namespace sinkstream
