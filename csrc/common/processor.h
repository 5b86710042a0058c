// Facts about this processor other than its instruction sets.
#pragma once

#include <cstdint>

namespace sinkstream {

// Whether to prefetch into the L1 cache rather than the L2 cache. True on AMD family 26, measured
// on its model 2, a Zen 5 (docs/notebook/2026-11-25-prefetch-on-zen5.md). Set when the library is
// loaded.
extern const bool kPrefetchToL1;

// Whether a dot product of bfloat16 (vdpbf16ps) takes longer than the two fma that compute the same
// bits. True on Intel's processors, measured on family 6 model 207: 2.3 cycles instead of 1. Set
// when the library is loaded.
extern const bool kDotsAreSlow;

// The family in `version`, eax of leaf 1 of x86's cpuid.
int family_of(uint32_t version);

}  // namespace sinkstream
