// The tile unit of processors with AMX-TILE, AMX-BF16 and AMX-INT8.
//
// Not the compiler's intrinsics: they do not declare which memory they read, so GCC 12 moves stores
// across them. Each function here is a memory barrier for the compiler. Registers are not declared:
// no other compiled code uses them.

#include "kernels/cpu/linear/amx_tiles.inl"

namespace tiles {

SINKSTREAM_INLINE void configure(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
}
SINKSTREAM_INLINE void release() { asm volatile("tilerelease" : : : "memory"); }

template <int kTo>
SINKSTREAM_INLINE void clear() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTo));
}
template <int kTo>
SINKSTREAM_INLINE void load(const void* from, int64_t stride = kTileRowBytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTo) : "memory");
}
template <int kFrom>
SINKSTREAM_INLINE void store(void* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(int64_t{kTileRowBytes}), "i"(kFrom)
               : "memory");
}

// Note: [What the tile unit adds].
template <int kSums, int kInputs, int kWeights>
SINKSTREAM_INLINE void multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
               :
               : "i"(kSums), "i"(kInputs), "i"(kWeights));
}
template <int kSums, int kInputs, int kWeights>
SINKSTREAM_INLINE void multiply_bytes() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kInputs), "i"(kWeights));
}

}  // namespace tiles
