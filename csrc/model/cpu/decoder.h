// A decoder on the CPU: runs one forward pass over many spans. Reads the spec as data; knows
// nothing about model families, sampling or text.
#pragma once

#include <vector>

#include "cache/angles.h"
#include "device/buffer.h"
#include "kernels/table.h"
#include "model/decoder_spec.h"
#include "model/forward_plan.h"
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
  PageShape page_shape() const override {
    return {spec_.kv_heads, spec_.head_dim, options_.cache_type};
  }
  void release() override {
    arena_.release();
    attention_scratch_.release();
  }
  int64_t scratch_bytes() const override { return arena_.bytes() + attention_scratch_.bytes(); }

  void forward(std::span<const ForwardSpan> spans, float* logits) override;

  void evict_range(SequenceCache* cache, int64_t begin, int64_t end) override;

 private:
  // The rows of a round that attend. In the last layer not all do, so they are counted again.
  struct Queries {
    int64_t row = 0;
    int64_t count = 0;
    size_t span = 0;  // the first of its entries in GroupRows::spans
    size_t spans = 0;
  };

  // The rows of this forward pass, as the layers of one group read them; reserved once.
  struct GroupRows {
    std::vector<int64_t> rank, first;          // [queries]
    float *sink_cos, *sink_sin;                // [queries, rotary_dim / 2], of each query's rank
    std::vector<Queries> round_queries;        // of each round
    std::vector<AttentionSpan> spans;          // rows relative to their round's first query
    std::vector<const SequenceCache*> caches;  // of `spans`
  };

  void compute_angles();
  void keep_all_rows(const ForwardPlan::Group& plan, GroupRows* rows);
  void keep_wanted_rows(const ForwardPlan::Group& plan, GroupRows* rows);
  void attend(const LayerWeights& layer, int64_t index);
  void append(const ForwardPlan::Group& plan, const ForwardPlan::Round& round, int64_t layer);
  void attend(GroupRows* rows, const Queries& queries, int64_t layer);
  void transform(const LayerWeights& layer);
  void write_logits(float* logits);
  void normalize(const float* input, const float* weight, float* out, int64_t rows, int64_t dim);
  Rotation rotation(const float* cos, const float* sin) const;
  void rotate_query(const Rotation& rotation, float* out);
  void multiply(const float* input, int64_t tokens, std::span<const LinearPart> parts);
  const float* in_order(const float* input, int64_t tokens, int64_t cols, const int32_t* order);

  DecoderSpec spec_;
  CacheLayers layers_;
  DecoderWeights weights_;
  Kernels kernels_;
  Launch launch_;
  DecoderOptions options_;
  Angles angles_;
  Angles shift_angles_;  // without attention factor: for keys that move

  // Scratch, [max_tokens] rows each, in one block of memory.
  Buffer arena_;
  float* hidden_;                    // [rows, hidden]: the residual stream
  float* normed_;                    // [rows, hidden]
  float* query_;                     // [rows, heads, head_dim]
  float* key_;                       // [rows, kv_heads, head_dim]
  float* value_;                     // [rows, kv_heads, head_dim]
  float* query_window_;              // [rows, heads, head_dim]
  float* query_sink_;                // [rows, heads, head_dim]
  float* attended_;                  // [rows, heads, head_dim]
  float* gate_;                      // [rows, intermediate]
  float* up_;                        // [rows, intermediate]
  float *window_cos_, *window_sin_;  // [rows, rotary_dim / 2], of each token's index
  float *kept_cos_, *kept_sin_;      // [wanted rows, rotary_dim / 2], of each query's index
  float* ordered_;                   // [rows, widest input]: in the order of a matrix's columns
  std::byte* linear_scratch_;

  Buffer attention_scratch_;

  ForwardPlan plan_;
  int64_t rows_ = 0;
  int64_t queries_ = 0;  // rows that attend: all, but in the last layer only those with logits
  const float *query_cos_, *query_sin_;  // [queries, rotary_dim / 2], of each query's index
  std::vector<Slot> slots_;
  std::vector<GroupRows> groups_;
};

}  // namespace sinkstream
