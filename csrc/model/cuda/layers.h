// Launches a step's kernels: a model's layers and the logits of the wanted rows. Reads the spec as
// data, as Decoder does. Uses no host memory and never waits, so its launches can be captured.
#pragma once

#include "kernels/cuda/plugin.h"
#include "model/cuda/launches.h"
#include "model/cuda/step.h"
#include "model/cuda/weights.h"
#include "model/decoder_spec.h"

namespace sinkstream {

struct CudaLayersOptions {
  PageShape page_shape;
  int64_t rows = 0;         // the most in a step
  int64_t split_pages = 0;  // of a sequence and layer that attention may split
  int64_t scratch_pages = 0;
};

// Arguments of a step.
struct CudaStep {
  const StepLaunches& launches;
  const StepBlock& block;      // on the GPU
  const int32_t* sampled_ids;  // on the GPU: the token that each seat sampled last
};

class CudaLayers {
 public:
  // The plugin and the stream must outlive it. Throws CapacityError.
  CudaLayers(const DecoderSpec& spec, CudaWeights weights, const cuda::Plugin& plugin,
             cuda::Stream stream, const CudaLayersOptions& options);

  // All layers, and the final norm of the logit rows. Throws DeviceError, as do the functions
  // below.
  void compute(const CudaStep& step);
  // The logits of logit rows [row, row + rows), at most kLogitRows: on the GPU, valid until the
  // next call.
  cuda::Partials logits(int64_t row, int64_t rows);

  int32_t logit_splits() const;
  int64_t weight_bytes() const { return weights_.bytes; }
  int64_t scratch_bytes() const { return scratch_bytes_; }
  std::byte* scratch_pages() const { return scratch_pages_; }  // on the GPU
  void release();

 private:
  // A layer's keys and values in this step.
  struct LayerCache {
    StepBlock::Group rows;
    cuda::Pages pages;
  };

  void attend(const CudaStep& step, int64_t layer, bool is_needed);
  void append(const StepBlock& block, const LayerCache& cache, const StepLaunches::Round& round,
              const CudaLayerWeights& weights);
  void attend(const LayerCache& cache, const StepLaunches::Attention& attention);
  void copy_pages(const LayerCache& cache, const StepLaunches::Copy& copy);
  void transform(const CudaLayerWeights& layer, int64_t rows);
  // Adds the last linear map's output to hidden_ if it is a residual; writes the norm to the rows
  // of normed_ from `to` on.
  void normalize(const float* weight, int64_t row, int64_t rows, int64_t to);
  // Writes partials_, which the next op reads.
  void multiply(const CudaMap& map, const float* bias, const void* input, int64_t input_stride,
                int64_t rows);
  cuda::Partials partials_from(int64_t row) const;
  LayerCache cache_of(const StepBlock& block, int64_t layer) const;
  void check(cuda::Status status, const char* what) const;

  DecoderSpec spec_;
  CacheLayers layers_;
  CudaWeights weights_;
  const cuda::Plugin& plugin_;
  cuda::Stream stream_;
  CudaLayersOptions options_;

  // Scratch in device memory, [options.rows] rows each.
  cuda::MemoryBlock scratch_;
  int64_t scratch_bytes_ = 0;
  float* hidden_ = nullptr;            // [rows, hidden]: the residual stream
  std::byte* normed_ = nullptr;        // bfloat16 [rows, hidden]; finally, of the logit rows
  std::byte* query_window_ = nullptr;  // 16 bits [rows, heads, head_dim]
  std::byte* query_sink_ = nullptr;    // likewise
  std::byte* attended_ = nullptr;      // bfloat16 [rows, heads · head_dim]
  std::byte* activated_ = nullptr;     // bfloat16 [rows, intermediate]
  float* partials_memory_ = nullptr;   // room for the largest output of a map
  float* attention_scratch_ = nullptr;
  std::byte* scratch_pages_ = nullptr;  // [options.scratch_pages], reused by each layer

  cuda::Partials partials_;    // output of the last linear map
  bool has_residual_ = false;  // whether to add it to hidden_
};

}  // namespace sinkstream
