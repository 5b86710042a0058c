// A decoder on a GPU that samples there, one step ahead of the host; a decoding step is one launch
// of a captured graph. Combines a step's inputs (cuda/step.h), its launches (cuda/launches.h), the
// layers (cuda/layers.h), sampling (cuda/sampling.h) and graphs (cuda/graphs.h). How all of this is
// ordered: docs/internals/cuda.md, "How a token flows".
#pragma once

#include <vector>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/plugin.h"
#include "model/cuda/evict_range.h"
#include "model/cuda/graphs.h"
#include "model/cuda/launches.h"
#include "model/cuda/layers.h"
#include "model/cuda/sampling.h"
#include "model/cuda/step.h"
#include "model/decoder_spec.h"
#include "model/forward_plan.h"
#include "model/host_logits.h"
#include "model/layer_views.h"
#include "model/step_runner.h"
#include "model/weighted_model.h"

namespace sinkstream {

struct CudaDecoderOptions {
  DType cache_type = DType::kFloat16;  // float16, bfloat16 or int8
  int64_t max_tokens = 256;            // rows of one step; sets the size of the scratch memory
  // Sequences that sample at the same time, and spans of one step that memory is reserved for.
  int64_t max_sequences = 1;
  // Per sequence and layer: Window::most_pages(). Longer sequences work too, but more slowly.
  int64_t pages = 16;
  int64_t max_drafts = 0;  // rows of a step that have drafts, of all spans together
};

class CudaDecoder : public WeightedModel, public StepRunner {
 public:
  // The plugin and the stream must outlive the decoder; `weights` are not read afterwards.
  // `threads` help to copy them; null: only the caller's thread. Throws CapacityError, DeviceError,
  // and CheckpointError for a model that the kernels cannot compute.
  CudaDecoder(const DecoderSpec& spec, const DecoderWeights& weights, const cuda::Plugin& plugin,
              cuda::Stream stream, ThreadPool* threads, const CudaDecoderOptions& options);
  ~CudaDecoder() override;
  CudaDecoder(const CudaDecoder&) = delete;
  CudaDecoder& operator=(const CudaDecoder&) = delete;

  int64_t vocab() const override { return spec_.vocab_size; }
  int64_t max_tokens() const override { return options_.max_tokens; }
  PageShape page_shape(int64_t layer) const override {
    const AttentionSpec& attention = spec_.block(layer).attention();
    return {attention.kv_heads, attention.head_dim, options_.cache_type, PageLayout::kRows};
  }
  int64_t scratch_bytes() const override;
  int64_t weight_bytes() const { return layers_.weight_bytes(); }
  int64_t graphs() const { return graphs_.count(); }
  StepRunner* step_runner() override { return this; }

  // Only while no step is in flight. These throw DeviceError, after which the GPU may be unusable
  // and every later call fails.
  void forward(std::span<const ForwardSpan> spans, float* logits) override;
  void evict_range(SequenceCache* cache, int64_t begin, int64_t end) override;
  void release() override;

  int64_t most_in_flight() const override { return 2; }
  int64_t seats() const override { return options_.max_sequences; }
  void begin_sampling(int64_t seat, const SamplingParams& params, const Window& window,
                      std::span<const int32_t> seen) override;
  void launch(std::span<const StepSpan> spans) override;
  StepResult await() override;

 private:
  struct InFlight {
    int64_t samples = 0;
    int64_t logit_rows = 0;  // rows whose logits go to the host
  };

  int64_t in_flight() const { return launched_ - awaited_; }
  StepShape bucket_shape(int64_t rows) const;
  void reserve_direct(int64_t bias);
  void capture_graphs();
  void plan(std::span<const StepSpan> spans);
  const CudaGraphs::Bucket* bucket_for(std::span<const StepSpan> spans) const;
  void launch_graph(const CudaGraphs::Bucket& bucket, std::span<const StepSpan> spans);
  void launch_directly(std::span<const StepSpan> spans);
  void plan_launches(std::span<const StepSpan> spans);
  void append_to_penalties(std::span<const StepSpan> spans, const StepBlock& device);
  void copy_to_device(const StepBlock& host, const StepBlock& device);
  void run(const StepLaunches& launches, const StepBlock& device, int64_t parity);
  cuda::SampledRow* results(int64_t parity) const;
  void check(cuda::Status status, const char* what) const;

  DecoderSpec spec_;
  int64_t group_count_;
  const cuda::Plugin& plugin_;
  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  CudaDecoderOptions options_;
  LayerViews views_;
  CudaLayers layers_;
  CudaSampling sampling_;
  CudaEvictor evictor_;

  StepMemory graph_memory_;   // never reallocated: graphs hold its addresses
  StepMemory direct_memory_;  // for all other steps; grows for texts without a window
  CudaGraphs graphs_;
  cuda::UniqueEvent ends_[2];  // end of the step of each parity
  cuda::MemoryBlock results_;  // SampledRow [2][rows], pinned; the GPU writes it
  HostLogits forward_logits_, step_logits_;

  ForwardPlan plan_;
  StepLaunches launches_;
  std::vector<ForwardSpan> spans_;
  int64_t launched_ = 0, awaited_ = 0;  // steps so far
  InFlight steps_[2];
  std::vector<SampledToken> sampled_[2];
  std::vector<int32_t> runs_[2];  // rows that sample, then tokens, of each span that wants some
};

}  // namespace sinkstream
