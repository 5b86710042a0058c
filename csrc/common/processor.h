// What is known of this processor beside the instructions that it has.
#pragma once

#include <cstdint>

namespace sinkstream {

// Whether memory that is asked for ahead should come to a core's first cache rather than to its
// second: so on AMD's family 26, measured on its model 2, a Zen 5 (docs/performance.md, What is
// prefetched). Set when the library is loaded.
extern const bool kPrefetchToL1;

// The family in what leaf 1 of x86's cpuid says of the version in eax.
int family_of(uint32_t version);

}  // namespace sinkstream
