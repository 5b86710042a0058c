#include "model/cut.h"

#include <algorithm>

#include "common/errors.h"

namespace sinkstream {

std::vector<Cut> plan_cuts(const SequenceCache& cache, int64_t begin, int64_t end) {
  const Window& window = cache.window();
  const int64_t next = cache.length(), cached = window.rank(next);
  if (begin < window.sinks || begin >= end || end > cached) {
    throw InvalidArgument(
        cat("evict_range: `start` and `end` must satisfy ", window.sinks,
            " <= start < end <= ", cached,
            " (after the sinks, up to the end of the cache), but are ", begin, " and ", end, "."),
        begin < window.sinks || begin >= cached ? "start" : "end");
  }
  const int64_t distance = end - begin;
  const int64_t cut_begin = window.first(next) + begin - window.sinks;
  std::vector<Cut> cuts;
  for (int64_t group = 0; group < cache.group_count(); ++group) {
    const int64_t first = cache.group(group).window.first(next);
    const int64_t older = std::max<int64_t>(0, cut_begin - first);
    cuts.push_back({.first = first,
                    .distance = distance,
                    .older = older,
                    .begin = std::max(first, cut_begin + distance - older)});
  }
  return cuts;
}

}  // namespace sinkstream
