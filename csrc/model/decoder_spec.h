// A decoder-only transformer as data, the same as Python's DecoderSpec: a few kinds of layers
// (blocks), and which kind each layer is. No family has a name here.
//
// Note: [Fields of a spec]
// Each struct lists its fields once, in `for_each_field`: the binding reads those, by these names,
// from Python's dataclasses; `validate` checks them; the digest of a model has them. So a new field
// is a member with its neutral value, a row, its twin in python/sinkstream/checkpoint/spec.py, and
// the decoder that reads it. What a GPU cannot compute, CudaDecoder refuses.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>
#include <vector>

#include "cache/cache_layers.h"
#include "kernels/activation.h"
#include "kernels/convolve.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/route.h"

namespace sinkstream {

// What a field's value must be; of a vector, each number. `name`: in errors, if not the field's.
struct Whole {
  int64_t low;
  int64_t high;
  const char* name = nullptr;
};
struct Finite {
  const char* name = nullptr;
};
struct NotNegative {
  const char* name = nullptr;
};
struct Positive {
  const char* name = nullptr;
};
// Any value of its type, or what the struct's own rules say.
struct AnyValue {
  const char* name = nullptr;
};

struct SeesNoField {
  void operator()(const auto&...) const {}
};
template <typename Spec>
concept HasFields = requires { Spec::for_each_field(SeesNoField{}); };

constexpr int64_t kMostSize = int64_t{1} << 20;  // far above any model; products stay in 64 bits
constexpr int64_t kMostHeads = 4096;
constexpr int64_t kMostLayers = 4096;

struct RopeSpec {
  std::vector<double> inverse_frequencies;  // radians per position, one for each rotated pair
  Pairing pairing = Pairing::kHalf;
  double attention_factor = 1;  // multiplies cos and sin of queries and keys (YaRN, longrope)

  int64_t rotary_dim() const { return 2 * static_cast<int64_t>(inverse_frequencies.size()); }
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
  template <typename Visit>
  static void for_each_field(const Visit& visit) {
    visit("inverse_frequencies", &RopeSpec::inverse_frequencies, Finite{});
    visit("pairing", &RopeSpec::pairing, AnyValue{});
    visit("attention_factor", &RopeSpec::attention_factor, Positive{});
  }
};

struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 0;  // above 0
  bool bias = false;

  friend bool operator==(const NormSpec&, const NormSpec&) = default;
  template <typename Visit>
  static void for_each_field(const Visit& visit) {
    visit("kind", &NormSpec::kind, AnyValue{});
    visit("eps", &NormSpec::eps, Positive{"norm_eps"});
    visit("bias", &NormSpec::bias, AnyValue{});
  }
};

// Of queries and keys: before they are rotated each head by itself, or all heads of a token
// together; or each head after it is rotated.
enum class QkNorm : uint8_t { kNone, kHead, kFull, kRotatedHead };

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
  bool sink_logits = false;  // a weight: one more score of each head, Note [Scores]

  static constexpr const char* kKind = "attention";
  int64_t query_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
  template <typename Visit>
  static void for_each_field(const Visit& visit) {
    visit("heads", &AttentionSpec::heads, Whole{1, kMostHeads});
    visit("kv_heads", &AttentionSpec::kv_heads, Whole{1, kMostHeads});
    visit("head_dim", &AttentionSpec::head_dim, Whole{2, 512});
    visit("rope", &AttentionSpec::rope, AnyValue{});
    visit("scale", &AttentionSpec::scale, Finite{});
    visit("window", &AttentionSpec::window, Whole{0, int64_t{1} << 30, "own_windows"});
    visit("soft_cap", &AttentionSpec::soft_cap, NotNegative{});
    visit("slopes", &AttentionSpec::slopes, Finite{});
    visit("qk_norm", &AttentionSpec::qk_norm, AnyValue{});
    visit("qkv_bias", &AttentionSpec::qkv_bias, AnyValue{});
    visit("output_bias", &AttentionSpec::output_bias, AnyValue{});
    visit("clip", &AttentionSpec::clip, NotNegative{});
    visit("temperature", &AttentionSpec::temperature, Finite{});
    visit("temperature_length", &AttentionSpec::temperature_length, Whole{1, int64_t{1} << 40});
    visit("sink_logits", &AttentionSpec::sink_logits, AnyValue{});
  }
};

// What most models multiply scores by.
inline float usual_scale(int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

// A mixer that keeps a state of fixed size instead of keys. With kShortConv, [b│c│x] = in(h), and
// the mixer's output is out(c · convolution(b · x)), without an activation. Nothing computes the
// others yet.
enum class Recurrence : uint8_t { kShortConv, kDeltaNet, kMamba2 };

struct RecurrentSpec {
  Recurrence recurrence = Recurrence::kShortConv;
  int64_t conv_size = 0;  // inputs that the convolution sees, the current one included
  bool conv_bias = false;
  bool bias = false;  // of its projections
  // Of the state: [heads, state_size, head_dim]; 0 without one, as with kShortConv.
  int64_t heads = 0;       // a multiple of key_heads
  int64_t key_heads = 0;   // groups, in Mamba-2
  int64_t state_size = 0;  // of a key
  int64_t head_dim = 0;    // of a value

  static constexpr const char* kKind = "recurrent";
  // Numbers of a sequence's state, with a residual stream this wide.
  int64_t state_floats(int64_t hidden) const { return (conv_size - 1) * hidden; }
  friend bool operator==(const RecurrentSpec&, const RecurrentSpec&) = default;
  template <typename Visit>
  static void for_each_field(const Visit& visit) {
    visit("recurrence", &RecurrentSpec::recurrence, AnyValue{});
    visit("conv_size", &RecurrentSpec::conv_size, Whole{2, kMostTaps});
    visit("conv_bias", &RecurrentSpec::conv_bias, AnyValue{});
    visit("bias", &RecurrentSpec::bias, AnyValue{});
    visit("heads", &RecurrentSpec::heads, Whole{0, kMostHeads});
    visit("key_heads", &RecurrentSpec::key_heads, Whole{0, kMostHeads});
    visit("state_size", &RecurrentSpec::state_size, Whole{0, kMostHeads});
    visit("head_dim", &RecurrentSpec::head_dim, Whole{0, kMostHeads});
  }
};

struct DenseSpec {
  int64_t intermediate_size = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;  // down(f(gate(x)) · up(x)), otherwise down(f(up(x)))
  bool bias = false;
  std::vector<float> xielu;  // of kXielu: α_p, α_n, β and ε of its paper; empty for the others

  // What the activation needs of `xielu`.
  Xielu xielu_numbers() const;
  static constexpr const char* kKind = "dense";
  friend bool operator==(const DenseSpec&, const DenseSpec&) = default;
  template <typename Visit>
  static void for_each_field(const Visit& visit) {
    visit("intermediate_size", &DenseSpec::intermediate_size, Whole{1, kMostSize});
    visit("activation", &DenseSpec::activation, AnyValue{});
    visit("gated", &DenseSpec::gated, AnyValue{});
    visit("bias", &DenseSpec::bias, AnyValue{});
    visit("xielu", &DenseSpec::xielu, Finite{});
  }
};

// A router chooses some experts for each token: kernels/route.h has the rules. Their outputs are
// added, weighted, in the order of its choice, and then that of the shared expert.
struct ExpertsSpec : RouteRules {
  DenseSpec expert;          // every one
  bool router_bias = false;  // of the logits
  bool choice_bias = false;
  bool expert_scale = false;
  int64_t shared_size = 0;   // width of the expert that every token goes through; 0: none
  bool shared_gate = false;  // the sigmoid of a linear map to one number multiplies its output

  DenseSpec shared() const {
    DenseSpec spec = expert;
    spec.intermediate_size = shared_size;
    return spec;
  }
  static constexpr const char* kKind = "experts";
  friend bool operator==(const ExpertsSpec&, const ExpertsSpec&) = default;
  template <typename Visit>
  static void for_each_field(const Visit& visit) {
    visit("experts", &ExpertsSpec::experts, Whole{1, kMostExperts});
    visit("chosen", &ExpertsSpec::chosen, Whole{1, kMostExperts});
    visit("expert", &ExpertsSpec::expert, AnyValue{});
    visit("score", &ExpertsSpec::score, AnyValue{});
    visit("router_bias", &ExpertsSpec::router_bias, AnyValue{});
    visit("choice_bias", &ExpertsSpec::choice_bias, AnyValue{});
    visit("expert_scale", &ExpertsSpec::expert_scale, AnyValue{});
    visit("groups", &ExpertsSpec::groups, Whole{1, kMostExperts});
    visit("chosen_groups", &ExpertsSpec::chosen_groups, Whole{1, kMostExperts});
    visit("group_score", &ExpertsSpec::group_score, AnyValue{});
    visit("normalize", &ExpertsSpec::normalize, AnyValue{});
    visit("normalize_eps", &ExpertsSpec::normalize_eps, NotNegative{});
    visit("weight_scale", &ExpertsSpec::weight_scale, Finite{});
    visit("jitter", &ExpertsSpec::jitter, NotNegative{});
    visit("shared_size", &ExpertsSpec::shared_size, Whole{0, kMostSize});
    visit("shared_gate", &ExpertsSpec::shared_gate, AnyValue{});
  }
};

// Note: [Blocks]
// A layer is a mixer, which reads other tokens, and a feed-forward, which does not. h is the
// residual stream, s the residual scale, and a norm that a block lacks is the identity:
//   h += s · post_norm(mixer(norm(h)));   h += s · post_norm(feed_forward(norm(h)))
// In a parallel block both read the h of its beginning, and the feed-forward without a norm of its
// own reads what the mixer reads. The mixer's part is added first. The names of the norms are those
// of their weights.
struct BlockSpec {
  std::variant<AttentionSpec, RecurrentSpec> mixer;
  std::variant<DenseSpec, ExpertsSpec> feed_forward;
  NormSpec norm;  // of all norms of the block
  bool attention_norm = true;
  bool mlp_norm = true;
  bool attention_post_norm = false;
  bool mlp_post_norm = false;
  bool parallel = false;
  float residual_scale = 1;

  // For blocks that have these.
  const AttentionSpec& attention() const { return std::get<AttentionSpec>(mixer); }
  AttentionSpec& attention() { return std::get<AttentionSpec>(mixer); }
  const RecurrentSpec* recurrent() const { return std::get_if<RecurrentSpec>(&mixer); }
  const DenseSpec& dense() const { return std::get<DenseSpec>(feed_forward); }
  DenseSpec& dense() { return std::get<DenseSpec>(feed_forward); }
  const ExpertsSpec* experts() const { return std::get_if<ExpertsSpec>(&feed_forward); }

  friend bool operator==(const BlockSpec&, const BlockSpec&) = default;
  template <typename Visit>
  static void for_each_field(const Visit& visit) {
    visit("mixer", &BlockSpec::mixer, AnyValue{});
    visit("feed_forward", &BlockSpec::feed_forward, AnyValue{});
    visit("norm", &BlockSpec::norm, AnyValue{});
    visit("attention_norm", &BlockSpec::attention_norm, AnyValue{});
    visit("mlp_norm", &BlockSpec::mlp_norm, AnyValue{});
    visit("attention_post_norm", &BlockSpec::attention_post_norm, AnyValue{});
    visit("mlp_post_norm", &BlockSpec::mlp_post_norm, AnyValue{});
    visit("parallel", &BlockSpec::parallel, AnyValue{});
    visit("residual_scale", &BlockSpec::residual_scale, Finite{});
  }
};

struct DecoderSpec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  std::vector<BlockSpec> blocks;
  std::vector<int32_t> block_of_layer;  // [layers], indices into `blocks`
  NormSpec final_norm;
  bool tie_embeddings = false;
  float embedding_scale = 1;
  float logit_scale = 1;
  float logit_soft_cap = 0;  // c > 0: logits then become c · tanh(logit / c)
  bool logit_bias = false;

  int64_t layers() const { return static_cast<int64_t>(block_of_layer.size()); }
  const BlockSpec& block(int64_t layer) const {
    return blocks[static_cast<size_t>(block_of_layer[static_cast<size_t>(layer)])];
  }
  // The largest of some size, such as `[](const BlockSpec& block) { return … }`, of any block.
  template <typename SizeOf>
  int64_t most(const SizeOf& size_of) const {
    int64_t found = 0;
    for (const BlockSpec& block : blocks) found = std::max<int64_t>(found, size_of(block));
    return found;
  }
  // Likewise, of the attention of any block that has one.
  template <typename SizeOf>
  int64_t most_of_attention(const SizeOf& size_of) const {
    return most([&](const BlockSpec& block) {
      return block.recurrent() != nullptr ? int64_t{0} : int64_t{size_of(block.attention())};
    });
  }
  // Of the first layer that has it; there is one.
  const AttentionSpec& first_attention() const;
  bool has_states() const;
  int64_t most_query_size() const;
  int64_t most_kv_size() const;
  // Numbers that a token's feed-forward has between its projections.
  int64_t most_intermediate_size() const;
  int64_t most_experts() const;  // 0 without experts, likewise the next
  int64_t most_chosen() const;
  CacheLayers cache_layers() const;

  friend bool operator==(const DecoderSpec&, const DecoderSpec&) = default;
  template <typename Visit>
  static void for_each_field(const Visit& visit) {
    visit("vocab_size", &DecoderSpec::vocab_size, Whole{1, kMostSize << 4});
    visit("hidden_size", &DecoderSpec::hidden_size, Whole{1, kMostSize});
    visit("blocks", &DecoderSpec::blocks, AnyValue{});
    visit("block_of_layer", &DecoderSpec::block_of_layer, AnyValue{});
    visit("final_norm", &DecoderSpec::final_norm, AnyValue{});
    visit("tie_embeddings", &DecoderSpec::tie_embeddings, AnyValue{});
    visit("embedding_scale", &DecoderSpec::embedding_scale, Finite{});
    visit("logit_scale", &DecoderSpec::logit_scale, Finite{});
    visit("logit_soft_cap", &DecoderSpec::logit_soft_cap, NotNegative{});
    visit("logit_bias", &DecoderSpec::logit_bias, AnyValue{});
  }
};

// Throws CheckpointError for values that no decoder can have, and for kinds of mixers and
// feed-forwards that nothing computes yet.
void validate(const DecoderSpec& spec);

}  // namespace sinkstream
