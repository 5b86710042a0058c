#include "model/cut.h"

#include "common/errors.h"

namespace sinkstream {

Cut plan_cut(const SequenceCache& cache, int64_t begin, int64_t end) {
  const Window& window = cache.window();
  const int64_t next = cache.length(), cached = window.rank(next);
  if (begin < window.sinks || begin >= end || end > cached) {
    throw InvalidArgument(
        cat("evict_range: `start` and `end` must satisfy ", window.sinks,
            " <= start < end <= ", cached,
            " (after the sinks, up to the end of the cache), but are ", begin, " and ", end, "."),
        begin < window.sinks || begin >= cached ? "start" : "end");
  }
  return {.first = window.first(next), .distance = end - begin, .older = begin - window.sinks};
}

}  // namespace sinkstream
