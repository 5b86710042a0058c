// The decoder loop on a card: one forward pass of many spans over weights and pages in its memory.
// Reads the spec as data, as Decoder does; logits come back to the host. Knows no sampling.
#pragma once

#include <vector>

#include "cache/angles.h"
#include "kernels/cuda/plugin.h"
#include "model/cuda_weights.h"
#include "model/decoder_spec.h"
#include "model/forward_plan.h"
#include "model/weighted_model.h"

namespace sinkstream {

struct CudaDecoderOptions {
  DType cache_type = DType::kFloat16;  // float16, bfloat16 or int8
  int64_t max_tokens = 256;            // rows of one forward; sets the size of the scratch memory
  int64_t max_sequences = 1;           // spans of one forward that the memory is made for
  int64_t pages = 16;                  // of a sequence and layer: Window::most_pages(). Longer ones
                                       // are attended to as well, only slower.
};

class CudaDecoder : public WeightedModel {
 public:
  // The plugin and the stream outlive the decoder; of `weights` nothing is read later. `threads`
  // may help to copy them; null: the caller's alone. Throws CapacityError, DeviceError, and
  // CheckpointError for a model that the kernels cannot compute.
  CudaDecoder(const DecoderSpec& spec, const DecoderWeights& weights, const cuda::Plugin& plugin,
              cuda::Stream stream, ThreadPool* threads, const CudaDecoderOptions& options);
  CudaDecoder(const CudaDecoder&) = delete;
  CudaDecoder& operator=(const CudaDecoder&) = delete;

  int64_t vocab() const override { return spec_.vocab_size; }
  int64_t max_tokens() const override { return options_.max_tokens; }
  PageShape page_shape() const override {
    return {spec_.kv_heads, spec_.head_dim, options_.cache_type, PageLayout::kRows};
  }
  int64_t scratch_bytes() const override { return scratch_bytes_; }
  int64_t weight_bytes() const { return weights_.bytes; }

  // Throws DeviceError; then the card may have stopped, and so does everything after it.
  void forward(std::span<const ForwardSpan> spans, float* logits) override;
  void evict_range(SequenceCache* cache, int64_t begin, int64_t end) override;
  void give_back() override;

 private:
  // What a forward's rows are, at the same places in pinned memory and on the card.
  struct StepBlock {
    int32_t* ids = nullptr;                            // [rows]
    cuda::TokenRow* tokens = nullptr;                  // [rows]
    float *index_cos = nullptr, *index_sin = nullptr;  // [rows, pairs]
    float *rank_cos = nullptr, *rank_sin = nullptr;    // [rows, pairs]
    cuda::SequencePages* sequences = nullptr;          // [spans]
    int32_t* page_ids = nullptr;                       // those of all spans
    int64_t bytes = 0;
  };
  // The same of a cut.
  struct CutBlock {
    cuda::SequenceSlot *from = nullptr, *to = nullptr;  // [older]
    float *cos = nullptr, *sin = nullptr;               // [pairs]
    cuda::SequencePages* sequence = nullptr;
    int32_t* page_ids = nullptr;
    int64_t bytes = 0;
  };
  StepBlock carve_step(std::byte* base, int64_t rows, int64_t spans, int64_t page_ids) const;

  // Rows that follow each other.
  struct Run {
    int64_t row = 0;
    int64_t rows = 0;
  };

  void reserve_step(int64_t bytes);
  void send_rows(std::span<const ForwardSpan> spans);
  void attend(const CudaLayerWeights& layer, int64_t index);
  void append(const ForwardPlan::Round& round, const CudaLayerWeights& layer, int64_t index);
  void attend(const ForwardPlan::Round& round, int64_t layer);
  void attend(int64_t row, int64_t rows, int64_t span_rows, int64_t layer);
  void transform(const CudaLayerWeights& layer);
  void write_logits(float* logits);
  void write_logits(int64_t row, int64_t rows, float* logits);
  bool is_needed(int64_t layer) const;
  // hidden_ += what the last linear map left, if that is a residual; normed_ = its norm.
  void normalize(const float* weight, int64_t row, int64_t rows);
  // Leaves Partials, which the next op reads.
  void multiply(const cuda::TiledMatrix& weights, const float* bias, const void* input,
                int64_t input_stride, int64_t rows);
  cuda::Partials partials_from(int64_t row) const;
  cuda::Pages pages(int64_t layer) const;
  void check(cuda::Status status, const char* what) const;

  DecoderSpec spec_;
  const cuda::Plugin& plugin_;
  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  CudaDecoderOptions options_;
  Angles angles_;
  Angles turns_;  // the same without attention factor: what a key that moves is turned by
  CudaWeights weights_;

  // Scratch in device memory, [max_tokens] rows each.
  cuda::CardBlock scratch_;
  int64_t scratch_bytes_ = 0;
  float* hidden_ = nullptr;            // [rows, hidden]: the residual stream
  std::byte* normed_ = nullptr;        // bfloat16 [rows, hidden]
  std::byte* query_window_ = nullptr;  // 16 bits [rows, heads, head_dim]
  std::byte* query_sink_ = nullptr;    // likewise
  std::byte* attended_ = nullptr;      // bfloat16 [rows, heads · head_dim]
  std::byte* activated_ = nullptr;     // bfloat16 [rows, intermediate]
  float* partials_memory_ = nullptr;   // the widest that a linear map leaves
  float* attention_scratch_ = nullptr;
  cuda::CardBlock step_there_;  // StepBlock
  cuda::Partials partials_;     // what the last linear map left
  bool has_residual_ = false;   // whether that belongs to hidden_

  cuda::CardBlock step_here_;  // StepBlock, pinned
  int64_t step_bytes_ = 0;
  cuda::CardBlock logits_here_;  // float [splits][kLogitRows][vocab], pinned

  ForwardPlan plan_;
  std::vector<Run> runs_;
  StepBlock here_, there_;
  std::byte* pool_ = nullptr;  // of this forward's caches
};

}  // namespace sinkstream
