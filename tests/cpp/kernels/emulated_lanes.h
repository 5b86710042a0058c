// What the emulated tables compute lane by lane, where an instruction does all lanes at once. In a
// file of its own, emulated_lanes.cc, which is optimized: the tables are compiled with -Og.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sinkstream::emulated_lanes {

constexpr int kCount = 16;
using Floats = float __attribute__((vector_size(4 * kCount)));
using Ints = int32_t __attribute__((vector_size(4 * kCount)));
using Words = uint32_t __attribute__((vector_size(4 * kCount)));

// acc + a · b with one rounding.
void fma(const Floats& a, const Floats& b, Floats& acc);

// VDPBF16PS: adds the odd product first, then the even one, each with one rounding; ignores the
// processor's float mode.
void dot_bf16(Floats& acc, const Words& a, const Words& b);

// VPDPBUSD: acc + the four products of each lane, of unsigned bytes and signed ones.
void dot_bytes(Ints& acc, const Words& a, const Words& b);

// TDPBF16PS, one row of the sums: Note: [What the tile unit adds]. `inputs` has `words` pairs, and
// `weights` as many rows of sixteen.
void add_tile_row(Floats& sums, const std::byte* inputs, const std::byte* weights, int words);

// TDPBSSD, likewise, with four signed bytes in place of a pair.
void add_tile_row_of_bytes(Ints& sums, const std::byte* inputs, const std::byte* weights,
                           int words);

}  // namespace sinkstream::emulated_lanes
