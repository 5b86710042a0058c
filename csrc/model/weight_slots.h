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

// Likewise.
struct LayerWeights {
  NormWeights attention_norm;  // [hidden]
  PackedMatrix q, k, v, o;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
  NormWeights q_norm, k_norm;       // [head_dim], or [heads · head_dim] and [kv_heads · head_dim]
  NormWeights attention_post_norm;  // [hidden]
  NormWeights mlp_norm;             // [hidden]
  MlpWeights mlp;
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
  NormWeights final_norm;  // [hidden]
  PackedMatrix output;     // [vocab, hidden]; the embedding itself if they are tied
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

template <typename Layer, typename Visit>
void for_each_weight(const BlockSpec& block, int64_t hidden, Layer& layer, const Visit& visit) {
  const AttentionSpec& attention = block.attention();
  const DenseSpec& dense = block.dense();
  auto& mlp = layer.mlp;
  const int64_t q = attention.query_size(), kv = attention.kv_size();
  const int64_t inner = dense.intermediate_size;
  const auto vector = [&](const std::string& name, int64_t rows, auto& member) {
    visit(name, rows, 1, member);
  };
  const auto norm = [&](const std::string& name, int64_t rows, auto& member) {
    vector(name, rows, member.weight);
    if (block.norm.bias) vector(name + "_bias", rows, member.bias);
  };
  if (block.attention_norm) norm("attention_norm", hidden, layer.attention_norm);
  visit("q", q, hidden, layer.q);
  visit("k", kv, hidden, layer.k);
  visit("v", kv, hidden, layer.v);
  visit("o", hidden, q, layer.o);
  if (block.mlp_norm) norm("mlp_norm", hidden, layer.mlp_norm);
  if (dense.gated) visit("gate", inner, hidden, mlp.gate);
  visit("up", inner, hidden, mlp.up);
  visit("down", hidden, inner, mlp.down);
  if (attention.qkv_bias) {
    vector("q_bias", q, layer.q_bias);
    vector("k_bias", kv, layer.k_bias);
    vector("v_bias", kv, layer.v_bias);
  }
  if (attention.output_bias) vector("o_bias", hidden, layer.o_bias);
  if (dense.bias) {
    if (dense.gated) vector("gate_bias", inner, mlp.gate_bias);
    vector("up_bias", inner, mlp.up_bias);
    vector("down_bias", hidden, mlp.down_bias);
  }
  if (attention.qk_norm != QkNorm::kNone) {
    const bool is_full = attention.qk_norm == QkNorm::kFull;
    norm("q_norm", is_full ? q : attention.head_dim, layer.q_norm);
    norm("k_norm", is_full ? kv : attention.head_dim, layer.k_norm);
  }
  if (block.attention_post_norm) norm("attention_post_norm", hidden, layer.attention_post_norm);
  if (block.mlp_post_norm) norm("mlp_post_norm", hidden, layer.mlp_post_norm);
}

}  // namespace sinkstream
