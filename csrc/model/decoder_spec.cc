#include "model/decoder_spec.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <set>
#include <utility>

#include "common/errors.h"

namespace sinkstream {

namespace {

template <typename... Parts>
[[noreturn]] void refuse(const char* name, const Parts&... parts) {
  throw CheckpointError(cat("load: `", name, "` must be ", parts..., "."), name);
}

void require_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  refuse(name, "in [", low, ", ", high, "], but is ", value);
}

void check(const char* name, int64_t value, const Whole& rule) {
  require_range(name, value, rule.low, rule.high);
}

void check(const char* name, double value, const Finite&) {
  if (!std::isfinite(value)) refuse(name, "finite, but is ", value);
}

void check(const char* name, double value, const NotNegative&) {
  if (!(value >= 0 && std::isfinite(value))) refuse(name, "at least 0, but is ", value);
}

void check(const char* name, double value, const Positive&) {
  if (!(value > 0 && std::isfinite(value))) refuse(name, "above 0, but is ", value);
}

template <typename Number, typename Rule>
  requires(!std::same_as<Rule, AnyValue>)
void check(const char* name, const std::vector<Number>& values, const Rule& rule) {
  for (const Number value : values) check(name, value, rule);
}

template <typename Spec>
void check_fields(const Spec& spec);

template <typename Value>
void check(const char*, const Value& value, const AnyValue&) {
  if constexpr (HasFields<Value>) check_fields(value);
}

void check(const char*, const std::vector<BlockSpec>& blocks, const AnyValue&) {
  for (const BlockSpec& block : blocks) check_fields(block);
}

template <typename... Kinds>
void check(const char*, const std::variant<Kinds...>& value, const AnyValue&) {
  std::visit([](const auto& spec) { check_fields(spec); }, value);
}

// Rules for several fields.

void check_together(const auto&) {}

void check_together(const AttentionSpec& attention) {
  require_range("kv_heads", attention.kv_heads, 1, attention.heads);
  require_range("rotary_dim", attention.rope.rotary_dim(), 0, attention.head_dim);
  if (attention.heads % attention.kv_heads != 0) {
    refuse("heads", "a multiple of `kv_heads` (", attention.kv_heads, "), but is ",
           attention.heads);
  }
  if (attention.head_dim % 2 != 0) refuse("head_dim", "even, but is ", attention.head_dim);
  if (!attention.slopes.empty()) {
    require_range("slopes", std::ssize(attention.slopes), attention.heads, attention.heads);
  }
  // A norm after the rotation would take both factors back.
  if (attention.qk_norm == QkNorm::kRotatedHead &&
      (attention.rope.attention_factor != 1 || attention.temperature != 0)) {
    refuse("qk_norm", "\"head\" or \"full\" where queries or keys are multiplied by a factor as ",
           "they are rotated, but is \"rotated_head\"");
  }
}

// The other recurrences are only described.
void check_together(const RecurrentSpec& recurrent) {
  if (recurrent.recurrence != Recurrence::kShortConv) {
    refuse("recurrence", "\"short_conv\"; the others are not supported yet");
  }
  require_range("state_size", recurrent.state_size, 0, 0);
}

void check_together(const DenseSpec& mlp) {
  const int64_t numbers = mlp.activation == Activation::kXielu ? 4 : 0;
  require_range("xielu", std::ssize(mlp.xielu), numbers, numbers);
  if (numbers > 0 && mlp.xielu[3] > 0) refuse("xielu", "0 or less at its end, ε, but is above 0");
}

void check_together(const ExpertsSpec& spec) {
  if (spec.experts % spec.groups != 0) {
    refuse("experts", "a multiple of `groups` (", spec.groups, "), but is ", spec.experts);
  }
  require_range("chosen_groups", spec.chosen_groups, 1, spec.groups);
  require_range("chosen", spec.chosen, 1, spec.experts / spec.groups * spec.chosen_groups);
}

void check_together(const BlockSpec& block) {
  if (block.parallel && !block.attention_norm) {
    throw CheckpointError("load: a parallel block must have `attention_norm`, but has none.",
                          "attention_norm");
  }
  if (block.recurrent() != nullptr) return;
  const bool norms_rotated = block.attention().qk_norm == QkNorm::kRotatedHead;
  if (norms_rotated && block.norm.kind != NormKind::kRms) {  // which changes with the rotation
    refuse("qk_norm", "\"head\" or \"full\" where norms are layer norms, but is \"rotated_head\"");
  }
}

void check_together(const DecoderSpec& spec) {
  require_range("layers", spec.layers(), 1, kMostLayers);
  require_range("blocks", std::ssize(spec.blocks), 1, spec.layers());
  for (const int32_t block : spec.block_of_layer) {
    require_range("block_of_layer", block, 0, std::ssize(spec.blocks) - 1);
  }
  std::set<std::pair<int64_t, int64_t>> shapes;
  for (const BlockSpec& block : spec.blocks) {
    if (block.recurrent() != nullptr) continue;
    shapes.emplace(block.attention().kv_heads, block.attention().head_dim);
  }
  const auto attends = [&](int32_t block) {
    return spec.blocks[static_cast<size_t>(block)].recurrent() == nullptr;
  };
  if (std::ranges::none_of(spec.block_of_layer, attends)) {
    throw CheckpointError("load: at least one layer must have attention, but none has.", "blocks");
  }
  if (shapes.size() > MemoryAmount::kMostShapes) {
    throw CheckpointError(
        cat("load: layers must have at most ", MemoryAmount::kMostShapes,
            " different combinations of `kv_heads` and `head_dim`, but have ", shapes.size(), "."),
        "blocks");
  }
}

template <typename Spec>
void check_fields(const Spec& spec) {
  Spec::for_each_field([&](const char* name, auto member, const auto& rule) {
    check(rule.name == nullptr ? name : rule.name, spec.*member, rule);
  });
  check_together(spec);
}

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

Xielu DenseSpec::xielu_numbers() const {
  if (xielu.empty()) return {};
  return {.positive = static_cast<float>(softplus(xielu[0])),
          .negative = static_cast<float>(double{xielu[2]} + softplus(xielu[1])),
          .slope = xielu[2],
          .knee = xielu[3]};
}

const AttentionSpec& DecoderSpec::first_attention() const {
  const auto first =
      std::ranges::find(blocks, nullptr, [](const BlockSpec& block) { return block.recurrent(); });
  return first->attention();
}

bool DecoderSpec::has_states() const {
  return std::ranges::any_of(blocks,
                             [](const BlockSpec& block) { return block.recurrent() != nullptr; });
}

int64_t DecoderSpec::most_query_size() const {
  return most_of_attention([](const AttentionSpec& spec) { return spec.query_size(); });
}

int64_t DecoderSpec::most_kv_size() const {
  return most_of_attention([](const AttentionSpec& spec) { return spec.kv_size(); });
}

int64_t DecoderSpec::most_intermediate_size() const {
  return most([](const BlockSpec& block) {
    const ExpertsSpec* const experts = block.experts();
    if (experts == nullptr) return block.dense().intermediate_size;
    return std::max(experts->chosen * experts->expert.intermediate_size, experts->shared_size);
  });
}

int64_t DecoderSpec::most_experts() const {
  return most([](const BlockSpec& block) {
    return block.experts() == nullptr ? 0 : block.experts()->experts;
  });
}

int64_t DecoderSpec::most_chosen() const {
  return most([](const BlockSpec& block) {
    return block.experts() == nullptr ? 0 : block.experts()->chosen;
  });
}

CacheLayers DecoderSpec::cache_layers() const {
  std::vector<LayerMemory> memory;
  for (int64_t layer = 0; layer < layers(); ++layer) {
    if (const RecurrentSpec* const recurrent = block(layer).recurrent()) {
      const int64_t floats = recurrent->state_floats(hidden_size);
      memory.push_back({.page = {},
                        .state_bytes = floats * int64_t{sizeof(float)},
                        .state_reach = recurrent->conv_size - 1});
      continue;
    }
    const AttentionSpec& attention = block(layer).attention();
    memory.push_back(
        {.own_window = attention.window, .page = {attention.kv_heads, attention.head_dim}});
  }
  return CacheLayers(memory);
}

void validate(const DecoderSpec& spec) { check_fields(spec); }

}  // namespace sinkstream
