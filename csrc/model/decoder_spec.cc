#include "model/decoder_spec.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "common/errors.h"

namespace sinkstream {

namespace {

constexpr int64_t kMost = int64_t{1} << 20;  // far above any model; products stay in 64 bits

void require_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw CheckpointError(
        cat("load: `", name, "` must be in [", low, ", ", high, "], but is ", value, "."), name);
  }
}

void require_finite(const char* name, double value) {
  if (std::isfinite(value)) return;
  throw CheckpointError(cat("load: `", name, "` must be finite, but is ", value, "."), name);
}

void require_positive(const char* name, double value) {
  if (value > 0 && std::isfinite(value)) return;
  throw CheckpointError(cat("load: `", name, "` must be above 0, but is ", value, "."), name);
}

void require_not_negative(const char* name, float value) {
  if (value >= 0 && std::isfinite(value)) return;
  throw CheckpointError(cat("load: `", name, "` must be at least 0, but is ", value, "."), name);
}

void validate(const NormSpec& norm) { require_positive("norm_eps", norm.eps); }

void validate(const RopeSpec& rope) {
  for (const double frequency : rope.inverse_frequencies) {
    require_finite("inverse_frequencies", frequency);
  }
  require_positive("attention_factor", rope.attention_factor);
}

void validate(const AttentionSpec& attention) {
  require_range("heads", attention.heads, 1, 4096);
  require_range("kv_heads", attention.kv_heads, 1, attention.heads);
  require_range("head_dim", attention.head_dim, 2, 512);
  require_range("rotary_dim", attention.rope.rotary_dim(), 0, attention.head_dim);
  validate(attention.rope);
  require_range("own_windows", attention.window, 0, int64_t{1} << 30);
  if (attention.heads % attention.kv_heads != 0) {
    throw CheckpointError(cat("load: `heads` must be a multiple of `kv_heads` (",
                              attention.kv_heads, "), but is ", attention.heads, "."),
                          "heads");
  }
  if (attention.head_dim % 2 != 0) {
    throw CheckpointError(cat("load: `head_dim` must be even, but is ", attention.head_dim, "."),
                          "head_dim");
  }
  if (!attention.slopes.empty()) {
    require_range("slopes", std::ssize(attention.slopes), attention.heads, attention.heads);
  }
  for (const float slope : attention.slopes) require_finite("slopes", slope);
  require_finite("scale", attention.scale);
  require_not_negative("soft_cap", attention.soft_cap);
  require_not_negative("clip", attention.clip);
  require_finite("temperature", attention.temperature);
  require_range("temperature_length", attention.temperature_length, 1, int64_t{1} << 40);
}

void validate(const BlockSpec& block) {
  validate(block.attention);
  require_range("intermediate_size", block.mlp.intermediate_size, 1, kMost);
  validate(block.norm);
  require_finite("residual_scale", block.residual_scale);
  if (block.parallel && !block.attention_norm) {
    throw CheckpointError("load: a parallel block must have `attention_norm`, but has none.",
                          "attention_norm");
  }
}

}  // namespace

int64_t DecoderSpec::most_intermediate_size() const {
  int64_t most = 0;
  for (const BlockSpec& block : blocks) most = std::max(most, block.mlp.intermediate_size);
  return most;
}

CacheLayers DecoderSpec::cache_layers() const {
  std::vector<LayerMemory> memory;
  for (int64_t layer = 0; layer < layers(); ++layer) {
    const AttentionSpec& attention = block(layer).attention;
    memory.push_back(
        {.own_window = attention.window, .page = {attention.kv_heads, attention.head_dim}});
  }
  return CacheLayers(memory);
}

bool is_plain(const DecoderSpec& spec) {
  for (BlockSpec block : spec.blocks) {
    const AttentionSpec& given = block.attention;
    if (given.rope != spec.blocks.front().attention.rope || given.qk_norm == QkNorm::kFull) {
      return false;
    }
    BlockSpec plain;
    plain.attention.heads = given.heads;
    plain.attention.kv_heads = given.kv_heads;
    plain.attention.head_dim = given.head_dim;
    plain.attention.rope = given.rope;
    plain.attention.scale = usual_scale(given.head_dim);
    plain.attention.window = given.window;
    plain.attention.qk_norm = given.qk_norm;
    plain.attention.qkv_bias = given.qkv_bias;
    plain.attention.output_bias = given.output_bias;
    plain.mlp.intermediate_size = block.mlp.intermediate_size;
    plain.mlp.bias = block.mlp.bias;
    plain.norm = spec.final_norm;
    if (block != plain) return false;
    block.attention.window = spec.blocks.front().attention.window;
    if (block != spec.blocks.front()) return false;
  }
  return spec.final_norm.kind == NormKind::kRms && !spec.final_norm.bias &&
         spec.embedding_scale == 1 && spec.logit_scale == 1 && spec.logit_soft_cap == 0;
}

void validate(const DecoderSpec& spec) {
  require_range("vocab_size", spec.vocab_size, 1, kMost << 4);
  require_range("hidden_size", spec.hidden_size, 1, kMost);
  require_range("layers", spec.layers(), 1, 4096);
  require_range("blocks", std::ssize(spec.blocks), 1, spec.layers());
  for (const BlockSpec& block : spec.blocks) {
    validate(block);
    const auto same = [&](const char* name, int64_t value, int64_t shared) {
      require_range(name, value, shared, shared);
    };
    same("heads", block.attention.heads, spec.heads());
    same("kv_heads", block.attention.kv_heads, spec.kv_heads());
    same("head_dim", block.attention.head_dim, spec.head_dim());
  }
  for (const int32_t block : spec.block_of_layer) {
    require_range("block_of_layer", block, 0, std::ssize(spec.blocks) - 1);
  }
  validate(spec.final_norm);
  require_finite("embedding_scale", spec.embedding_scale);
  require_finite("logit_scale", spec.logit_scale);
  require_not_negative("logit_soft_cap", spec.logit_soft_cap);
}

}  // namespace sinkstream
