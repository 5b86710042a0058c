// What is known of this processor beside the instructions that it has.
#pragma once

namespace sinkstream {

// Whether what is asked for ahead is read faster from a core's first cache than from its second:
// so on AMD's family 26 (Zen 5), where twice as much of it may be on its way
// (docs/performance.md, What is asked for ahead). Set before main begins.
extern const bool kFirstCacheServesAhead;

}  // namespace sinkstream
