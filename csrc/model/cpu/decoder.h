// A decoder on the CPU: runs one forward pass over many spans, block by block as Note [Blocks] of
// model/decoder_spec.h says. Reads the spec as data; knows nothing about model families, sampling
// or text.
#pragma once

#include <vector>

#include "device/buffer.h"
#include "kernels/table.h"
#include "model/cpu/expert_rows.h"
#include "model/cpu/layer_rows.h"
#include "model/decoder_spec.h"
#include "model/forward_plan.h"
#include "model/layer_views.h"
#include "model/weighted_model.h"
#include "model/weights.h"

namespace sinkstream {

struct DecoderOptions {
  InputType input_type = InputType::kFloat32;  // that linear maps round their inputs to
  DType cache_type = DType::kFloat32;
  int64_t max_tokens = 256;  // rows of one forward pass; sets the size of the scratch memory
  int64_t pages = 16;        // per sequence and layer, up to which attention is fastest; likewise
};

class Decoder : public WeightedModel {
 public:
  // The weights' memory and the pool must outlive the decoder.
  Decoder(const DecoderSpec& spec, DecoderWeights weights, const Kernels& kernels, ThreadPool* pool,
          const DecoderOptions& options);

  int64_t vocab() const override { return spec_.vocab_size; }
  int64_t max_tokens() const override { return options_.max_tokens; }
  PageShape page_shape(int64_t layer) const override {
    const AttentionSpec& attention = spec_.block(layer).attention();
    return {attention.kv_heads, attention.head_dim, options_.cache_type};
  }
  void release() override {
    arena_.release();
    attention_scratch_.release();
  }
  int64_t scratch_bytes() const override { return arena_.bytes() + attention_scratch_.bytes(); }

  void forward(std::span<const ForwardSpan> spans, float* logits) override;

  void evict_range(SequenceCache* cache, int64_t begin, int64_t end) override;

 private:
  // The angles of some rotary scheme.
  struct AngleRows {
    float *cos = nullptr, *sin = nullptr;  // [rows, pairs]
  };

  // In `angles_`.
  AngleRows angles(int64_t before, int64_t pairs) const;
  // Of each token's index.
  AngleRows index_angles(const LayerViews::Rope& rope) const {
    return angles(rope.before, rope.pairs());
  }
  void carve_scratch(ThreadPool* pool);
  void begin(std::span<const ForwardSpan> spans);
  const float* mixer_input(const BlockSpec& block, const LayerWeights& layer);
  void add_mixed(const BlockSpec& block, const LayerWeights& layer, const float* mixed,
                 const LinearPart& map);
  void convolve(const BlockSpec& block, const LayerWeights& layer, int64_t index);
  void drop_unused_rows(LayerRows* rows);
  void drop_unused_rows();
  void attend(const BlockSpec& block, const LayerWeights& layer, int64_t index);
  void write_queries_keys_values(const BlockSpec& block, const LayerWeights& layer, bool is_last,
                                 LayerRows* rows);
  void rotate_queries(const BlockSpec& block, const LayerWeights& layer, const LayerRows& rows);
  void normalize_rotated(const BlockSpec& block, const LayerWeights& layer, float* queries);
  // What rotates from the one angles to the others. In `difference_`.
  AngleRows difference(const AngleRows& from, const AngleRows& to, int64_t count);
  void append(const LayerRows& rows, const ForwardPlan::Round& round, int64_t layer);
  void attend(const AttentionSpec& attention, LayerRows* rows, const RoundQueries& queries,
              int64_t layer);
  void transform(const BlockSpec& block, const LayerWeights& layer);
  void activate_inner(const DenseSpec& spec, const MlpWeights& mlp, const float* input);
  void activate(const DenseSpec& spec, int64_t rows);
  void mix(const BlockSpec& block, const ExpertsSpec& spec, const ExpertsWeights& weights,
           const float* input);
  void route(const ExpertsSpec& spec, const ExpertsWeights& weights, const float* input);
  void multiply_experts(const ExpertsSpec& spec, const ExpertsWeights& weights, const float* input);
  void add_to_hidden(const BlockSpec& block, const float* input, const LinearPart& map,
                     const NormWeights* post_norm);
  void add_branch(const BlockSpec& block, const NormWeights* post_norm);
  void write_logits(float* logits);
  void normalize(const NormSpec& norm, const NormWeights& weights, const float* input, float* out,
                 int64_t rows, int64_t dim);
  void normalize_heads(const BlockSpec& block, const NormWeights& weights, float* heads,
                       int64_t rows, int64_t width);
  void clamp(float* values, int64_t rows, int64_t width, float limit);
  static Rotation rotation(const RopeSpec& rope, const AngleRows& angles);
  void multiply(const float* input, int64_t tokens, std::span<const LinearPart> parts);
  void multiply(const float* input, int64_t tokens, std::span<const LinearPart> parts,
                InputType input_type);
  void put_in_order(const int32_t* order, LinearArgs* args);

  DecoderSpec spec_;
  CacheLayers layers_;
  DecoderWeights weights_;
  Kernels kernels_;
  Launch launch_;
  DecoderOptions options_;
  LayerViews views_;
  std::vector<LayerRows> rows_of_view_;

  // Scratch, [max_tokens] rows each, in one block of memory. Resident up to the longest pass so
  // far.
  Buffer arena_;
  float* hidden_;  // [rows, hidden]: the residual stream
  float* normed_;  // [rows, hidden]
  float* branch_;  // [rows, hidden]: what is normalized or scaled before it is added
  // The mixer's rows, and then the MLP's, in the same memory: a block's MLP reads `hidden_` or
  // `normed_`, after the mixer has ended.
  float* query_;         // [rows, heads, head_dim]
  float* key_;           // [rows, kv_heads, head_dim]
  float* value_;         // [rows, kv_heads, head_dim]
  float* query_window_;  // [rows, heads, head_dim]
  float* query_sink_;    // [rows, heads, head_dim]
  float* attended_;      // [rows, heads, head_dim]
  float* conv_inputs_;   // [rows, 3 · hidden]
  float* convolved_;     // [rows, hidden]
  float* gate_;          // [rows, intermediate]; with experts [rows · chosen, intermediate]
  float* up_;            // likewise
  // Of blocks with experts.
  float* router_logits_ = nullptr;   // [rows, experts]
  int32_t* chosen_ = nullptr;        // [rows, chosen]
  float* route_weights_ = nullptr;   // [rows, chosen]
  float* expert_outputs_ = nullptr;  // [rows · chosen, hidden]: grouped by expert
  float* shared_ = nullptr;          // [rows, hidden]
  float* shared_gate_ = nullptr;     // [rows]
  ExpertRows expert_rows_;
  std::vector<LinearPart> expert_parts_, ordered_parts_;
  // Of the pass.
  float* angles_;   // [rows · LayerViews::floats_per_row()]
  AngleRows kept_;  // of the wanted rows' indices
  AngleRows difference_;
  float* query_factors_;  // [rows]
  float* ordered_;        // [rows, widest input]: in the order of a matrix's columns
  std::byte* linear_scratch_;
  // [head_dim]: of norms after the rotation.
  std::vector<float> ones_, rotated_weight_;

  Buffer attention_scratch_;

  ForwardPlan plan_;
  int64_t rows_ = 0;
  int64_t queries_ = 0;  // rows that attend: all, but in the last layer only those with logits
  std::vector<Slot> slots_;
  std::vector<StateSpan> convolve_spans_;
};

}  // namespace sinkstream
