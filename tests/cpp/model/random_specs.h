// Specs of small decoders: a plain one, and one for each kind of block that a family has.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder_spec.h"

namespace sinkstream {

inline RopeSpec rope_with(int64_t pairs, double base, Pairing pairing = Pairing::kHalf) {
  RopeSpec rope;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    rope.inverse_frequencies.push_back(
        std::pow(base, -static_cast<double>(pair) / static_cast<double>(pairs)));
  }
  rope.pairing = pairing;
  return rope;
}

// Awkward on purpose: no size is a power of two or a multiple of a panel, and `heads` is odd.
inline DecoderSpec small_spec() {
  BlockSpec block;
  block.attention().heads = 3;
  block.attention().kv_heads = 1;
  block.attention().head_dim = 14;
  block.attention().rope = rope_with(7, 10000);
  block.attention().scale = usual_scale(14);
  block.attention().qk_norm = QkNorm::kHead;
  block.attention().qkv_bias = true;
  block.dense().intermediate_size = 75;
  block.norm.eps = 1e-5f;
  DecoderSpec spec;
  spec.vocab_size = 53;
  spec.hidden_size = 42;
  spec.blocks = {block};
  spec.block_of_layer = {0, 0};
  spec.final_norm = block.norm;
  return spec;
}

// The spec with all of its blocks changed.
template <typename Change>
DecoderSpec with_blocks(DecoderSpec spec, const Change& change) {
  for (BlockSpec& block : spec.blocks) change(&block);
  return spec;
}

// The spec, with layers like its first block that have these windows of their own; 0: none.
inline DecoderSpec with_windows(DecoderSpec spec, const std::vector<int64_t>& windows) {
  BlockSpec block = spec.blocks.front();
  spec.blocks.clear();
  spec.block_of_layer.clear();
  for (const int64_t window : windows) {
    block.attention().window = window;
    size_t kind = 0;
    while (kind < spec.blocks.size() && spec.blocks[kind] != block) ++kind;
    if (kind == spec.blocks.size()) spec.blocks.push_back(block);
    spec.block_of_layer.push_back(static_cast<int32_t>(kind));
  }
  return spec;
}

// Layers that alternate between a window of their own and none; the last layer has the former or
// the latter.
inline DecoderSpec alternating_spec(bool last_has_window) {
  return with_windows(small_spec(), last_has_window ? std::vector<int64_t>{32, 0, 32}
                                                    : std::vector<int64_t>{0, 32, 0});
}

// Layers with a window of their own, and layers without one whose attention has other sizes.
inline DecoderSpec two_shapes_spec(const DecoderSpec& plain = small_spec()) {
  DecoderSpec spec = with_windows(plain, {32, 0, 32});
  AttentionSpec& wide = spec.blocks[1].attention();
  const int64_t pairs = wide.head_dim / 2;  // of twice as many
  wide.kv_heads += 1;
  wide.heads = 3 * wide.kv_heads;
  wide.head_dim *= 2;
  wide.scale = usual_scale(wide.head_dim);
  wide.rope = rope_with(pairs, 1000000);
  return spec;
}

// Attention between short convolutions, of which the last has biases.
inline DecoderSpec convolution_spec(int64_t first_size, int64_t last_size) {
  DecoderSpec spec = small_spec();
  BlockSpec block = spec.blocks.front();
  block.mixer = RecurrentSpec{.conv_size = first_size};
  spec.blocks.push_back(block);
  block.mixer = RecurrentSpec{.conv_size = last_size, .conv_bias = true, .bias = true};
  spec.blocks.push_back(block);
  spec.block_of_layer = {1, 0, 2};
  return spec;
}

struct NamedSpec {
  std::string name;
  DecoderSpec spec;
};

// Blocks as families have them, at these sizes: all that `plain` has not. Together they have every
// field of a block and of a spec.
inline std::vector<NamedSpec> special_specs(const DecoderSpec& plain = small_spec()) {
  const AttentionSpec& sizes = plain.blocks.front().attention();
  const int64_t pairs = sizes.head_dim / 2;
  const float eps = 1e-5f;
  DecoderSpec bare = with_blocks(plain, [&](BlockSpec* block) {
    block->attention().rope = rope_with(pairs, 10000);
    block->attention().qk_norm = QkNorm::kNone;
    block->attention().qkv_bias = false;
  });
  std::vector<NamedSpec> specs;
  const auto add = [&](const char* name, const DecoderSpec& spec) {
    specs.push_back({name, spec});
  };

  DecoderSpec sandwich = with_blocks(bare, [](BlockSpec* block) {
    block->attention().soft_cap = 5;
    block->attention().scale = 0.2f;
    block->dense().activation = Activation::kGeluTanh;
    block->attention_post_norm = block->mlp_post_norm = true;
  });
  sandwich = with_windows(sandwich, {32, 0});
  sandwich.embedding_scale = std::sqrt(static_cast<float>(plain.hidden_size));
  sandwich.logit_soft_cap = 3;
  add("norms before and after, soft-caps, windows", sandwich);

  DecoderSpec two_ropes = with_windows(with_blocks(bare,
                                                   [](BlockSpec* block) {
                                                     block->attention().qk_norm = QkNorm::kHead;
                                                     block->dense().activation =
                                                         Activation::kGeluTanh;
                                                   }),
                                       {32, 0, 32});
  two_ropes.blocks[1].attention().rope = rope_with(pairs, 1000000);
  add("a rope for windows and another for the rest", two_ropes);

  const DecoderSpec after = with_blocks(bare, [](BlockSpec* block) {
    block->attention().qk_norm = QkNorm::kFull;
    block->attention_norm = block->mlp_norm = false;
    block->attention_post_norm = block->mlp_post_norm = true;
  });
  add("norms only after, over all heads", after);

  DecoderSpec parallel = with_blocks(bare, [&](BlockSpec* block) {
    block->attention().rope = rope_with(2, 10000);
    block->attention().qkv_bias = block->attention().output_bias = true;
    block->dense().activation = Activation::kGelu;
    block->dense().gated = false;
    block->dense().bias = true;
    block->norm = {NormKind::kLayer, eps, true};
    block->parallel = true;
  });
  parallel.final_norm = parallel.blocks.front().norm;
  add("parallel with two layer norms, ungated, biases", parallel);

  DecoderSpec one_norm = with_blocks(bare, [&](BlockSpec* block) {
    block->norm = {NormKind::kLayer, eps, false};
    block->parallel = true;
    block->mlp_norm = false;
    block->attention().rope.pairing = Pairing::kInterleaved;
  });
  one_norm = with_windows(one_norm, {32, 32, 0});
  one_norm.blocks[1].attention().rope = {};
  one_norm.final_norm = one_norm.blocks.front().norm;
  one_norm.logit_scale = 0.25f;
  one_norm.tie_embeddings = true;
  add("parallel with one norm, no rotation without a window", one_norm);

  DecoderSpec alibi = with_blocks(bare, [&](BlockSpec* block) {
    block->attention().rope = {};
    for (int64_t head = 0; head < block->attention().heads; ++head) {
      block->attention().slopes.push_back(std::exp2(-static_cast<float>(head + 1)));
    }
    block->attention().clip = 0.8f;
    block->attention().qk_norm = QkNorm::kFull;
    block->dense().activation = Activation::kGelu;
    block->dense().gated = false;
    block->norm = {NormKind::kLayer, eps, false};
  });
  alibi.final_norm = alibi.blocks.front().norm;
  add("ALiBi, clipped, layer norms over all heads", alibi);

  DecoderSpec scaled = with_blocks(bare, [](BlockSpec* block) {
    block->attention().scale = 0.1f;
    block->residual_scale = 0.22f;
  });
  scaled.embedding_scale = 12;
  scaled.logit_scale = 0.125f;
  add("scaled residual stream", scaled);

  add("layers that differ in heads, key heads and head size", two_shapes_spec(plain));

  DecoderSpec trained_sinks = with_blocks(bare, [](BlockSpec* block) {
    block->attention().sink_logits = true;
    block->attention().qkv_bias = block->attention().output_bias = block->dense().bias = true;
    block->dense().activation = Activation::kClampedSwiglu;
  });
  add("a learned sink logit of each head, windows, clamped SwiGLU",
      with_windows(trained_sinks, {32, 0}));

  add("query temperature", with_blocks(bare, [](BlockSpec* block) {
        block->attention().temperature = 0.3f;
        block->attention().temperature_length = 11;
      }));

  add("relu², ungated, layer norm of each head", with_blocks(bare, [&](BlockSpec* block) {
        block->attention().qk_norm = QkNorm::kHead;
        block->norm = {NormKind::kLayer, eps, true};
        block->dense().activation = Activation::kRelu2;
        block->dense().gated = false;
        block->residual_scale = 0.5f;
        block->parallel = true;
        block->attention_post_norm = block->mlp_post_norm = true;
      }));
  return specs;
}

// Those, and what only the CPU computes.
inline std::vector<NamedSpec> dense_specs() {
  auto specs = special_specs();
  DecoderSpec norms_rotated = with_blocks(small_spec(), [](BlockSpec* block) {
    block->attention().qk_norm = QkNorm::kRotatedHead;
    block->dense().activation = Activation::kXielu;
    block->dense().xielu = {0.3f, -0.4f, 0.5f, -1e-3f};
    block->dense().gated = false;
  });
  norms_rotated.logit_bias = true;
  specs.push_back({"norms of rotated heads, xIELU, a bias of logits", norms_rotated});
  specs.push_back({"short convolutions of two sizes, the last layer too", convolution_spec(3, 7)});
  DecoderSpec convolved = with_windows(small_spec(), {32, 0, 0});
  convolved.blocks.push_back(convolved.blocks[1]);
  BlockSpec& block = convolved.blocks.back();
  block.mixer = RecurrentSpec{.conv_size = 4};
  block.parallel = block.attention_post_norm = true;
  block.residual_scale = 0.7f;
  convolved.block_of_layer = {2, 0, 1};
  specs.push_back({"a parallel convolution before attention", convolved});
  return specs;
}

// Decoders whose feed-forwards have experts: the rules of each kind of router. `size`: of an
// expert.
inline std::vector<NamedSpec> expert_specs(const DecoderSpec& plain = small_spec(),
                                           int64_t size = 19, int64_t shared_size = 45) {
  std::vector<NamedSpec> specs;
  const auto add = [&](const std::string& name, const auto& change) {
    ExpertsSpec experts;
    experts.experts = 6;
    experts.chosen = 2;
    experts.expert.intermediate_size = size;
    change(&experts);
    DecoderSpec spec = with_blocks(plain, [&](BlockSpec* block) {
      block->attention().qk_norm = QkNorm::kNone;
      block->feed_forward = experts;
    });
    specs.emplace_back(name, spec);
  };
  add("softmax", [](ExpertsSpec*) {});
  add("softmax, normalized, a gated shared expert", [&](ExpertsSpec* spec) {
    spec->normalize = true;
    spec->shared_size = shared_size;
    spec->shared_gate = true;
  });
  add("sigmoid, bias of the choice, groups", [](ExpertsSpec* spec) {
    spec->score = RouterScore::kSigmoid;
    spec->choice_bias = spec->normalize = true;
    spec->normalize_eps = 1e-6f;
    spec->groups = 3;
    spec->chosen_groups = 2;
    spec->group_score = GroupScore::kSumOfTwo;
    spec->chosen = 3;
    spec->weight_scale = 2.5f;
    spec->shared_size = 8;
  });
  add("softmax of the chosen, biases, a scale of each", [](ExpertsSpec* spec) {
    spec->score = RouterScore::kSoftmaxOfChosen;
    spec->router_bias = spec->expert_scale = spec->expert.bias = true;
  });
  add("sparse mixer, ungated", [](ExpertsSpec* spec) {
    spec->score = RouterScore::kSparseMixer;
    spec->jitter = 0.4f;
    spec->expert.gated = false;
    spec->expert.activation = Activation::kRelu2;
  });
  add("all experts", [](ExpertsSpec* spec) { spec->chosen = 6; });
  // A dense first layer, and what a branch goes through before it is added.
  DecoderSpec mixed = specs[1].spec;
  BlockSpec dense = plain.blocks.front();
  dense.attention().qk_norm = QkNorm::kNone;
  mixed.blocks.insert(mixed.blocks.begin(), dense);
  mixed.block_of_layer = {0, 1, 1};
  mixed.blocks[1].mlp_post_norm = true;
  mixed.blocks[1].residual_scale = 0.7f;
  specs.emplace_back("a dense layer, then norms after experts", mixed);
  return specs;
}

// Every kind of block that the CPU computes.
inline std::vector<NamedSpec> block_specs() {
  auto specs = dense_specs();
  for (auto& spec : expert_specs()) specs.push_back(std::move(spec));
  return specs;
}

}  // namespace sinkstream
