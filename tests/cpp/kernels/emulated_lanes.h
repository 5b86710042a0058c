// What the emulated tables compute lane by lane, where an instruction does all lanes at once. In a
// file of its own, emulated_lanes.cc, which is optimized: the tables are compiled with -Og.
#pragma once

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

}  // namespace sinkstream::emulated_lanes
