#include "model/weight_slots.h"

#include <utility>

#include "common/errors.h"

namespace sinkstream {

std::vector<WeightSlot> weight_slots(const DecoderSpec& spec, DecoderWeights* weights) {
  const int64_t hidden = spec.hidden_size;
  std::vector<WeightSlot> slots;
  slots.push_back({"embedding", spec.vocab_size, hidden, &weights->embedding});
  weights->layers.resize(static_cast<size_t>(spec.layers()));
  for (int64_t layer = 0; layer < spec.layers(); ++layer) {
    const std::string prefix = cat("layers.", layer, ".");
    LayerWeights& its_weights = weights->layers[static_cast<size_t>(layer)];
    if (const ExpertsSpec* const experts = spec.block(layer).experts()) {
      its_weights.experts.each.resize(static_cast<size_t>(experts->experts));
    }
    for_each_weight(spec.block(layer), hidden, its_weights,
                    [&](const std::string& name, int64_t rows, int64_t cols, auto& member) {
                      slots.push_back({prefix + name, rows, cols, &member});
                    });
  }
  slots.push_back({"final_norm", hidden, 1, &weights->final_norm.weight});
  if (spec.final_norm.bias) {
    slots.push_back({"final_norm_bias", hidden, 1, &weights->final_norm.bias});
  }
  if (!spec.tie_embeddings) {
    slots.push_back({"output", spec.vocab_size, hidden, &weights->output});
  }
  if (spec.logit_bias) slots.push_back({"output_bias", spec.vocab_size, 1, &weights->output_bias});
  return slots;
}

}  // namespace sinkstream
