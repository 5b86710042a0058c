// Removes tokens from the middle of a cache on a GPU: WeightedModel::evict_range.
#pragma once

#include "cache/angles.h"
#include "kernels/cuda/plugin.h"
#include "kernels/rope.h"
#include "model/cuda/step.h"
#include "model/cut.h"

namespace sinkstream {

class CudaEvictor {
 public:
  // The plugin and the stream must outlive it. `angles` are those of the keys, without attention
  // factor.
  CudaEvictor(const cuda::Plugin& plugin, cuda::Stream stream, Angles angles, Pairing pairing)
      : plugin_(plugin), stream_(stream), angles_(std::move(angles)), pairing_(pairing) {}

  // Blocks until done. `memory` carries the arguments to the GPU; no step may be in flight.
  void evict_range(SequenceCache* cache, int64_t begin, int64_t end, StepMemory& memory) const;

 private:
  // Moves the keys and values of one group of layers.
  void move_keys(const SequenceCache& cache, int64_t group, const Cut& cut,
                 StepMemory& memory) const;
  void check(cuda::Status status, const char* what) const;

  const cuda::Plugin& plugin_;
  cuda::Stream stream_;
  Angles angles_;
  Pairing pairing_;
};

}  // namespace sinkstream
