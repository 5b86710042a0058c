// The weights of a decoder, listed once: what the store checks, what checkpoints must provide, and
// where a decoder finds them. Knows nothing about files.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/packed_matrix.h"
#include "model/decoder_spec.h"

namespace sinkstream {

// Vectors are float32; null if the spec has none.
struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  PackedMatrix q, k, v, o;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]
  const float* mlp_norm = nullptr;                   // [hidden]
  PackedMatrix gate, up, down;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
};

struct DecoderWeights {
  PackedMatrix embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;  // [hidden]
  PackedMatrix output;                // [vocab, hidden]; the embedding itself if they are tied
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
