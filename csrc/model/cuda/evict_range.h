// Removes tokens from the middle of a cache on a GPU: WeightedModel::evict_range.
#pragma once

#include "cache/cache_layers.h"
#include "kernels/cuda/plugin.h"
#include "model/cuda/step.h"
#include "model/cut.h"
#include "model/layer_views.h"

namespace sinkstream {

class CudaEvictor {
 public:
  // The plugin, the stream and the views must outlive it.
  CudaEvictor(const cuda::Plugin& plugin, cuda::Stream stream, CacheLayers layers,
              const LayerViews& views)
      : plugin_(plugin), stream_(stream), layers_(std::move(layers)), views_(views) {}

  // Blocks until done. `memory` carries the arguments to the GPU; no step may be in flight.
  void evict_range(SequenceCache* cache, int64_t begin, int64_t end, StepMemory& memory) const;

 private:
  // Moves the keys and values of one group of layers.
  void move_keys(const SequenceCache& cache, int64_t group, const Cut& cut,
                 StepMemory& memory) const;
  void check(cuda::Status status, const char* what) const;

  const cuda::Plugin& plugin_;
  cuda::Stream stream_;
  CacheLayers layers_;
  const LayerViews& views_;
};

}  // namespace sinkstream
