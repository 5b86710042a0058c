#include "model/weight_slots.h"

#include "common/errors.h"

namespace sinkstream {

std::vector<WeightSlot> weight_slots(const DecoderSpec& spec, DecoderWeights* weights) {
  const int64_t hidden = spec.hidden_size, inner = spec.intermediate_size;
  const int64_t q = spec.query_size(), kv = spec.kv_size(), head = spec.head_dim;
  std::vector<WeightSlot> slots;
  std::string at;
  const auto matrix = [&](const char* name, int64_t rows, int64_t cols, PackedMatrix* member) {
    slots.push_back({at + name, rows, cols, member});
  };
  const auto vector = [&](const char* name, int64_t rows, const float** member) {
    slots.push_back({at + name, rows, 1, member});
  };
  matrix("embedding", spec.vocab_size, hidden, &weights->embedding);
  weights->layers.resize(static_cast<size_t>(spec.layers));
  for (int64_t index = 0; index < spec.layers; ++index) {
    LayerWeights& layer = weights->layers[static_cast<size_t>(index)];
    at = cat("layers.", index, ".");
    vector("attention_norm", hidden, &layer.attention_norm);
    matrix("q", q, hidden, &layer.q);
    matrix("k", kv, hidden, &layer.k);
    matrix("v", kv, hidden, &layer.v);
    matrix("o", hidden, q, &layer.o);
    vector("mlp_norm", hidden, &layer.mlp_norm);
    matrix("gate", inner, hidden, &layer.gate);
    matrix("up", inner, hidden, &layer.up);
    matrix("down", hidden, inner, &layer.down);
    if (spec.qkv_bias) {
      vector("q_bias", q, &layer.q_bias);
      vector("k_bias", kv, &layer.k_bias);
      vector("v_bias", kv, &layer.v_bias);
    }
    if (spec.output_bias) vector("o_bias", hidden, &layer.o_bias);
    if (spec.mlp_bias) {
      vector("gate_bias", inner, &layer.gate_bias);
      vector("up_bias", inner, &layer.up_bias);
      vector("down_bias", hidden, &layer.down_bias);
    }
    if (spec.qk_norm) {
      vector("q_norm", head, &layer.q_norm);
      vector("k_norm", head, &layer.k_norm);
    }
  }
  at.clear();
  vector("final_norm", hidden, &weights->final_norm);
  if (!spec.tie_embeddings) matrix("output", spec.vocab_size, hidden, &weights->output);
  return slots;
}

}  // namespace sinkstream
