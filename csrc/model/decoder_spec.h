// A decoder-only transformer as data, the same as Python's DecoderSpec: a few kinds of layers
// (blocks), and which kind each layer is. No family has a name here.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "cache/cache_layers.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace sinkstream {

struct RopeSpec {
  std::vector<double> inverse_frequencies;  // radians per position, one for each rotated pair
  Pairing pairing = Pairing::kHalf;
  double attention_factor = 1;  // multiplies cos and sin of queries and keys (YaRN, longrope)

  int64_t rotary_dim() const { return 2 * static_cast<int64_t>(inverse_frequencies.size()); }
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 0;  // above 0
  bool bias = false;

  friend bool operator==(const NormSpec&, const NormSpec&) = default;
};

// Of queries and keys, before they are rotated: each head by itself, or all heads of a token
// together.
enum class QkNorm : uint8_t { kNone, kHead, kFull };

struct AttentionSpec {
  int64_t heads = 0;  // a multiple of kv_heads
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // even, 2 .. 512
  RopeSpec rope;
  float scale = 0;            // multiplies q · k
  int64_t window = 0;         // the layer's own, the current token included; 0: none
  float soft_cap = 0;         // Note [Scores] of kernels/attention.h
  std::vector<float> slopes;  // ALiBi: [heads], or empty
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool output_bias = false;
  float clip = 0;  // queries, keys and values are clamped to ±clip; 0: they are not
  // A query of rank r is multiplied by 1 + temperature · ln(1 + ⌊r / temperature_length⌋).
  float temperature = 0;
  int64_t temperature_length = 1;

  int64_t query_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

// What most models multiply scores by.
inline float usual_scale(int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

struct MlpSpec {
  int64_t intermediate_size = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;  // down(f(gate(x)) · up(x)), otherwise down(f(up(x)))
  bool bias = false;

  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};

// Note: [Blocks]
// h is the residual stream, s the residual scale, and a norm that a block lacks is the identity:
//   h += s · post_norm(attention(norm(h)));   h += s · post_norm(mlp(norm(h)))
// In a parallel block both read the h of its beginning, and the MLP without a norm of its own reads
// what attention reads. Attention's part is added first.
struct BlockSpec {
  AttentionSpec attention;
  MlpSpec mlp;
  NormSpec norm;  // of all norms of the block
  bool attention_norm = true;
  bool mlp_norm = true;
  bool attention_post_norm = false;
  bool mlp_post_norm = false;
  bool parallel = false;
  float residual_scale = 1;

  friend bool operator==(const BlockSpec&, const BlockSpec&) = default;
};

struct DecoderSpec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  std::vector<BlockSpec> blocks;        // all with the same heads, kv_heads and head_dim
  std::vector<int32_t> block_of_layer;  // [layers], indices into `blocks`
  NormSpec final_norm;
  bool tie_embeddings = false;
  float embedding_scale = 1;
  float logit_scale = 1;
  float logit_soft_cap = 0;  // c > 0: logits then become c · tanh(logit / c)

  int64_t layers() const { return static_cast<int64_t>(block_of_layer.size()); }
  const BlockSpec& block(int64_t layer) const {
    return blocks[static_cast<size_t>(block_of_layer[static_cast<size_t>(layer)])];
  }
  // What all blocks share.
  int64_t heads() const { return blocks.front().attention.heads; }
  int64_t kv_heads() const { return blocks.front().attention.kv_heads; }
  int64_t head_dim() const { return blocks.front().attention.head_dim; }
  int64_t query_size() const { return blocks.front().attention.query_size(); }
  int64_t kv_size() const { return blocks.front().attention.kv_size(); }

  int64_t most_intermediate_size() const;
  CacheLayers cache_layers() const;
};

// Whether this is llama's decoder or qwen's: layers that differ in nothing but their windows, with
// RMS norms before attention and MLP, SwiGLU, and nothing scaled or capped.
bool is_plain(const DecoderSpec& spec);

// Throws CheckpointError for values that no decoder can have.
void validate(const DecoderSpec& spec);

}  // namespace sinkstream
