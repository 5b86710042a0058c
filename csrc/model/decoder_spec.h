// A decoder-only transformer as numbers and flags, the same as Python's DecoderSpec.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_layers.h"
#include "kernels/rope.h"

namespace sinkstream {

struct DecoderSpec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;  // a multiple of kv_heads
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // even, 2 .. 256
  float norm_eps = 0;
  std::vector<double> inverse_frequencies;  // radians per position, one for each rotated pair
  Pairing pairing = Pairing::kHalf;
  double attention_factor = 1;  // multiplies cos and sin of queries and keys (YaRN)
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // each query and key head is RMS-normalized before it is rotated
  bool tie_embeddings = false;
  std::vector<int64_t> own_windows;  // [layers], a layer's own window, 0: none; empty: no layer's

  int64_t query_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  int64_t rotary_dim() const { return 2 * static_cast<int64_t>(inverse_frequencies.size()); }
  float attention_scale() const;  // multiplies q · k: 1 / sqrt(head_dim)
  CacheLayers cache_layers() const;
};

// Throws CheckpointError for values that no decoder can have.
void validate(const DecoderSpec& spec);

}  // namespace sinkstream
