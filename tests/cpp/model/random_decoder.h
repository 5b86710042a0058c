// A small decoder with seeded random weights, for tests of what must not change a result.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/thread_pool.h"
#include "kernels/table.h"
#include "model/cpu/decoder.h"
#include "model/random_weights.h"
#include "runtime/owned_pools.h"

namespace sinkstream {

class RandomDecoder : public RandomWeights {
 public:
  RandomDecoder(const Kernels& kernels, int threads, const DecoderOptions& options,
                const DecoderSpec& model_spec = small_spec(),
                const std::map<std::string, Storage>& stored = {})
      : RandomWeights(model_spec, stored), threads_(threads) {
    decoder = std::make_unique<Decoder>(spec, store.finish(), kernels, &threads_, options);
  }

  DecoderWeights packed() const { return store.finish(); }

  std::unique_ptr<Decoder> decoder;

 private:
  ThreadPool threads_;
};

// Poisoned pools for caches of a model, `amount` of each kind. `make(shape, pages)`: a pool.
template <typename MakePool>
OwnedPools poisoned_pools(const WeightedModel& model, const CacheLayers& layers,
                          const MemoryAmount& amount, const MakePool& make) {
  OwnedPools made;
  for (const CacheGroup& group : layers.groups()) {
    if (group.shape < made.pages.size()) continue;  // shapes are in the order of the groups
    made.pages.push_back(make(model.page_shape(group.layers.front()), amount.pages[group.shape]));
  }
  if (layers.has_states()) {
    made.states.emplace(layers.lane_bytes(), StatePool::lanes_for(1), amount.states, true);
  }
  return made;
}

inline OwnedPools poisoned_pools(const WeightedModel& model, const CacheLayers& layers,
                                 const MemoryAmount& amount) {
  return poisoned_pools(model, layers, amount, [](const PageShape& shape, int64_t pages) {
    return PagePool(shape, pages, true);
  });
}

}  // namespace sinkstream
