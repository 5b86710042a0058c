// The weights of a decoder, listed once: what the store checks, what checkpoints must provide, and
// where a decoder finds them. Knows nothing about files.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/norm.h"
#include "kernels/packed_matrix.h"
#include "model/decoder_spec.h"

namespace sinkstream {

// A feed-forward's, or one expert's. Vectors are float32; null if the spec has none. Matrices that
// it lacks have no rows.
struct MlpWeights {
  PackedMatrix gate, up, down;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
};

// Of a feed-forward with experts, likewise.
struct ExpertsWeights {
  PackedMatrix router;                  // [experts, hidden]
  const float* router_bias = nullptr;   // [experts]
  const float* choice_bias = nullptr;   // [experts]
  const float* expert_scale = nullptr;  // [experts]
  std::vector<MlpWeights> each;         // [experts]
  MlpWeights shared;
  PackedMatrix shared_gate;  // [1, hidden]
};

// Likewise.
struct LayerWeights {
  NormWeights attention_norm;  // [hidden]
  PackedMatrix q, k, v, o;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
  const float* sink_logits = nullptr;  // [heads]
  // Of a short convolution.
  PackedMatrix conv_in, conv_out;  // [3 · hidden, hidden], [hidden, hidden]
  const float* conv = nullptr;     // [hidden, conv_size]
  const float *conv_in_bias = nullptr, *conv_bias = nullptr, *conv_out_bias = nullptr;
  NormWeights q_norm, k_norm;       // [head_dim], or [heads · head_dim] and [kv_heads · head_dim]
  NormWeights attention_post_norm;  // [hidden]
  NormWeights mlp_norm;             // [hidden]
  MlpWeights mlp;
  ExpertsWeights experts;
  NormWeights mlp_post_norm;  // [hidden]
};

// Calls visit(name, rows, cols, member) for each weight of a layer of this kind, in loading order,
// on which fingerprints depend. A matrix's member is a PackedMatrix; a vector's is a pointer to
// floats, and it has one column.
template <typename Layer, typename Visit>
void for_each_weight(const BlockSpec& block, int64_t hidden, Layer& layer, const Visit& visit);

struct DecoderWeights {
  PackedMatrix embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  NormWeights final_norm;              // [hidden]
  PackedMatrix output;                 // [vocab, hidden]; the embedding itself if they are tied
  const float* output_bias = nullptr;  // [vocab]
};

// Calls visit(matrix) for each matrix of each layer.
template <typename Visit>
void for_each_matrix(const DecoderSpec& spec, const DecoderWeights& weights, const Visit& visit) {
  for (int64_t layer = 0; layer < spec.layers(); ++layer) {
    for_each_weight(spec.block(layer), spec.hidden_size, weights.layers[static_cast<size_t>(layer)],
                    [&](const std::string&, int64_t, int64_t, const auto& weight) {
                      if constexpr (requires { weight.order; }) visit(weight);
                    });
  }
}

struct WeightSlot {
  std::string name;  // such as "layers.3.q"
  int64_t rows = 0;
  int64_t cols = 0;                                   // 1: a vector
  std::variant<PackedMatrix*, const float**> member;  // a matrix's, or a vector's
};

// Every weight that a decoder of this spec needs, in loading order. Gives `weights` its layers; the
// slots point to its members.
std::vector<WeightSlot> weight_slots(const DecoderSpec& spec, DecoderWeights* weights);

// `prefix`: of the names.
template <typename Mlp, typename Visit>
void for_each_mlp_matrix(const DenseSpec& spec, const std::string& prefix, int64_t hidden, Mlp& mlp,
                         const Visit& visit) {
  if (spec.gated) visit(prefix + "gate", spec.intermediate_size, hidden, mlp.gate);
  visit(prefix + "up", spec.intermediate_size, hidden, mlp.up);
  visit(prefix + "down", hidden, spec.intermediate_size, mlp.down);
}

template <typename Mlp, typename Visit>
void for_each_mlp_bias(const DenseSpec& spec, const std::string& prefix, int64_t hidden, Mlp& mlp,
                       const Visit& visit) {
  if (!spec.bias) return;
  if (spec.gated) visit(prefix + "gate_bias", spec.intermediate_size, 1, mlp.gate_bias);
  visit(prefix + "up_bias", spec.intermediate_size, 1, mlp.up_bias);
  visit(prefix + "down_bias", hidden, 1, mlp.down_bias);
}

template <typename Experts, typename Visit>
void for_each_expert_weight(const ExpertsSpec& spec, int64_t hidden, Experts& experts,
                            const Visit& visit) {
  visit("router", spec.experts, hidden, experts.router);
  if (spec.router_bias) visit("router_bias", spec.experts, 1, experts.router_bias);
  if (spec.choice_bias) visit("choice_bias", spec.experts, 1, experts.choice_bias);
  if (spec.expert_scale) visit("expert_scale", spec.experts, 1, experts.expert_scale);
  for (size_t e = 0; e < experts.each.size(); ++e) {
    const std::string prefix = "experts." + std::to_string(e) + ".";
    for_each_mlp_matrix(spec.expert, prefix, hidden, experts.each[e], visit);
    for_each_mlp_bias(spec.expert, prefix, hidden, experts.each[e], visit);
  }
  if (spec.shared_size == 0) return;
  for_each_mlp_matrix(spec.shared(), "shared.", hidden, experts.shared, visit);
  for_each_mlp_bias(spec.shared(), "shared.", hidden, experts.shared, visit);
  if (spec.shared_gate) visit("shared_gate", 1, hidden, experts.shared_gate);
}

template <typename Layer, typename Visit>
void for_each_weight(const BlockSpec& block, int64_t hidden, Layer& layer, const Visit& visit) {
  const ExpertsSpec* const experts = block.experts();
  const auto vector = [&](const std::string& name, int64_t rows, auto& member) {
    visit(name, rows, 1, member);
  };
  const auto norm = [&](const std::string& name, int64_t rows, auto& member) {
    vector(name, rows, member.weight);
    if (block.norm.bias) vector(name + "_bias", rows, member.bias);
  };
  if (block.attention_norm) norm("attention_norm", hidden, layer.attention_norm);
  if (const RecurrentSpec* const recurrent = block.recurrent()) {
    visit("conv_in", 3 * hidden, hidden, layer.conv_in);
    vector("conv", hidden * recurrent->conv_size, layer.conv);
    visit("conv_out", hidden, hidden, layer.conv_out);
  } else {
    const int64_t q = block.attention().query_size(), kv = block.attention().kv_size();
    visit("q", q, hidden, layer.q);
    visit("k", kv, hidden, layer.k);
    visit("v", kv, hidden, layer.v);
    visit("o", hidden, q, layer.o);
  }
  if (block.mlp_norm) norm("mlp_norm", hidden, layer.mlp_norm);
  if (experts == nullptr) {
    for_each_mlp_matrix(block.dense(), "", hidden, layer.mlp, visit);
  } else {
    for_each_expert_weight(*experts, hidden, layer.experts, visit);
  }
  const auto* const attention = std::get_if<AttentionSpec>(&block.mixer);
  if (attention != nullptr && attention->qkv_bias) {
    vector("q_bias", attention->query_size(), layer.q_bias);
    vector("k_bias", attention->kv_size(), layer.k_bias);
    vector("v_bias", attention->kv_size(), layer.v_bias);
  }
  if (attention != nullptr && attention->output_bias) vector("o_bias", hidden, layer.o_bias);
  if (experts == nullptr) for_each_mlp_bias(block.dense(), "", hidden, layer.mlp, visit);
  if (attention != nullptr && attention->qk_norm != QkNorm::kNone) {
    const bool is_full = attention->qk_norm == QkNorm::kFull;
    norm("q_norm", is_full ? attention->query_size() : attention->head_dim, layer.q_norm);
    norm("k_norm", is_full ? attention->kv_size() : attention->head_dim, layer.k_norm);
  }
  if (block.attention_post_norm) norm("attention_post_norm", hidden, layer.attention_post_norm);
  if (block.mlp_post_norm) norm("mlp_post_norm", hidden, layer.mlp_post_norm);
  if (attention != nullptr && attention->sink_logits) {
    vector("sink_logits", attention->heads, layer.sink_logits);
  }
  const RecurrentSpec* const recurrent = block.recurrent();
  if (recurrent != nullptr && recurrent->bias) {
    vector("conv_in_bias", 3 * hidden, layer.conv_in_bias);
    vector("conv_out_bias", hidden, layer.conv_out_bias);
  }
  if (recurrent != nullptr && recurrent->conv_bias) vector("conv_bias", hidden, layer.conv_bias);
}

}  // namespace sinkstream
