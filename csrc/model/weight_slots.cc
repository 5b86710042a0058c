#include "model/weight_slots.h"

#include <utility>

#include "common/errors.h"

namespace sinkstream {

namespace {

class SlotList {
 public:
  // Of the names that follow, such as "layers.3.".
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

  void matrix(const char* name, int64_t rows, int64_t cols, PackedMatrix* member) {
    slots_.push_back({prefix_ + name, rows, cols, member});
  }
  void vector(const std::string& name, int64_t rows, const float** member) {
    slots_.push_back({prefix_ + name, rows, 1, member});
  }
  void norm(const std::string& name, const NormSpec& spec, int64_t rows, NormWeights* member) {
    vector(name, rows, &member->weight);
    if (spec.bias) vector(name + "_bias", rows, &member->bias);
  }
  std::vector<WeightSlot> take() { return std::move(slots_); }

 private:
  std::string prefix_;
  std::vector<WeightSlot> slots_;
};

// Fingerprints depend on this order.
void add_layer(const BlockSpec& block, int64_t hidden, LayerWeights* layer, SlotList* slots) {
  const AttentionSpec& attention = block.attention;
  const MlpSpec& mlp = block.mlp;
  const int64_t q = attention.query_size(), kv = attention.kv_size();
  const int64_t inner = mlp.intermediate_size;
  if (block.attention_norm) {
    slots->norm("attention_norm", block.norm, hidden, &layer->attention_norm);
  }
  slots->matrix("q", q, hidden, &layer->q);
  slots->matrix("k", kv, hidden, &layer->k);
  slots->matrix("v", kv, hidden, &layer->v);
  slots->matrix("o", hidden, q, &layer->o);
  if (block.mlp_norm) slots->norm("mlp_norm", block.norm, hidden, &layer->mlp_norm);
  if (mlp.gated) slots->matrix("gate", inner, hidden, &layer->gate);
  slots->matrix("up", inner, hidden, &layer->up);
  slots->matrix("down", hidden, inner, &layer->down);
  if (attention.qkv_bias) {
    slots->vector("q_bias", q, &layer->q_bias);
    slots->vector("k_bias", kv, &layer->k_bias);
    slots->vector("v_bias", kv, &layer->v_bias);
  }
  if (attention.output_bias) slots->vector("o_bias", hidden, &layer->o_bias);
  if (mlp.bias) {
    if (mlp.gated) slots->vector("gate_bias", inner, &layer->gate_bias);
    slots->vector("up_bias", inner, &layer->up_bias);
    slots->vector("down_bias", hidden, &layer->down_bias);
  }
  if (attention.qk_norm != QkNorm::kNone) {
    const bool is_full = attention.qk_norm == QkNorm::kFull;
    slots->norm("q_norm", block.norm, is_full ? q : attention.head_dim, &layer->q_norm);
    slots->norm("k_norm", block.norm, is_full ? kv : attention.head_dim, &layer->k_norm);
  }
  if (block.attention_post_norm) {
    slots->norm("attention_post_norm", block.norm, hidden, &layer->attention_post_norm);
  }
  if (block.mlp_post_norm) {
    slots->norm("mlp_post_norm", block.norm, hidden, &layer->mlp_post_norm);
  }
}

}  // namespace

std::vector<WeightSlot> weight_slots(const DecoderSpec& spec, DecoderWeights* weights) {
  const int64_t hidden = spec.hidden_size;
  SlotList slots;
  slots.matrix("embedding", spec.vocab_size, hidden, &weights->embedding);
  weights->layers.resize(static_cast<size_t>(spec.layers()));
  for (int64_t layer = 0; layer < spec.layers(); ++layer) {
    slots.set_prefix(cat("layers.", layer, "."));
    add_layer(spec.block(layer), hidden, &weights->layers[static_cast<size_t>(layer)], &slots);
  }
  slots.set_prefix("");
  slots.norm("final_norm", spec.final_norm, hidden, &weights->final_norm);
  if (!spec.tie_embeddings) slots.matrix("output", spec.vocab_size, hidden, &weights->output);
  return slots.take();
}

}  // namespace sinkstream
