// A small decoder with seeded random weights, for tests of what must not change a result.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/thread_pool.h"
#include "kernels/table.h"
#include "model/cpu/decoder.h"
#include "model/random_weights.h"

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

}  // namespace sinkstream
