// A cut in the middle of a cached sequence: which tokens move, and by how much.
#pragma once

#include <vector>

#include "cache/sequence_cache.h"

namespace sinkstream {

// What a cut does in one group of layers.
struct Cut {
  int64_t first = 0;     // index of the oldest window token
  int64_t distance = 0;  // by which tokens older than the cut move up
  int64_t older = 0;     // tokens that move: those from `first` on
  int64_t begin = 0;     // the oldest window token afterwards
};

// Removes the tokens with ranks [begin, end), as the next token's query would count them in the
// largest group, from every group; what a smaller ring no longer holds does not come back. Throws
// InvalidArgument unless S <= begin < end <= the next token's rank.
std::vector<Cut> plan_cuts(const SequenceCache& cache, int64_t begin, int64_t end);

}  // namespace sinkstream
