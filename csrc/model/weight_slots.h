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

// Vectors are float32; null if the spec has none. Matrices that it lacks have no rows.
struct LayerWeights {
  NormWeights attention_norm;  // [hidden]
  PackedMatrix q, k, v, o;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
  NormWeights q_norm, k_norm;       // [head_dim], or [heads · head_dim] and [kv_heads · head_dim]
  NormWeights attention_post_norm;  // [hidden]
  NormWeights mlp_norm;             // [hidden]
  PackedMatrix gate, up, down;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  NormWeights mlp_post_norm;  // [hidden]
};

struct DecoderWeights {
  PackedMatrix embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  NormWeights final_norm;  // [hidden]
  PackedMatrix output;     // [vocab, hidden]; the embedding itself if they are tied
};

struct WeightSlot {
  std::string name;  // such as "layers.3.q"
  int64_t rows = 0;
  int64_t cols = 0;                                   // 1: a vector
  std::variant<PackedMatrix*, const float**> member;  // a matrix's, or a vector's
};

// Every weight that a decoder of this spec needs, in loading order. Gives `weights` its layers; the
// slots point to its members.
std::vector<WeightSlot> weight_slots(const DecoderSpec& spec, DecoderWeights* weights);

}  // namespace sinkstream
