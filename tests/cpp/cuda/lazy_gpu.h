// An emulated GPU that does nothing until the host waits, and then only the work enqueued before
// what it waits for: a host that reads a result too early, or overwrites data that is still to be
// read, gets a wrong result. Also counts calls to its runtime.
#pragma once

#include <cstdint>

#include "kernels/cuda/plugin.h"

namespace sinkstream::cuda {

struct CallCounts {
  int64_t graphs = 0;        // launched
  int64_t records = 0;       // of events
  int64_t awaits = 0;        // likewise
  int64_t synchronizes = 0;  // waits for a stream
  int64_t copies = 0;
  int64_t fills = 0;
  int64_t enqueued = 0;  // launches and copies outside graphs, and graphs

  bool operator==(const CallCounts&) const = default;
};

// While it lives, this thread's GPU is lazy. One at a time.
class LazyGpu {
 public:
  LazyGpu();
  ~LazyGpu();
  LazyGpu(const LazyGpu&) = delete;
  LazyGpu& operator=(const LazyGpu&) = delete;

  const Plugin& plugin() const;
  // Counts since the last call of this.
  CallCounts take_counts();
  // From now on launched graphs do nothing.
  void ignore_graphs();
};

}  // namespace sinkstream::cuda
