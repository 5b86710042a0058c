// What is known of this processor beside the instructions that it has.
#pragma once

namespace sinkstream {

// Whether memory that is asked for ahead should come to a core's first cache rather than to its
// second: so on AMD's family 26 (Zen 5), by measurement (docs/performance.md, What is asked for
// ahead). Set before main begins.
extern const bool kFirstCacheServesAhead;

}  // namespace sinkstream
