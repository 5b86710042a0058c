// The launches of a step: through a model's layers to the rows that are wanted, and on to their
// logits. Reads the spec as data, as Decoder does. Knows no host's memory, and waits for nothing:
// what it launches can be captured.
#pragma once

#include "kernels/cuda/plugin.h"
#include "model/cuda/launches.h"
#include "model/cuda/step.h"
#include "model/cuda/weights.h"
#include "model/decoder_spec.h"

namespace sinkstream {

struct CudaLayersOptions {
  PageShape page_shape;
  int64_t rows = 0;         // the most of a step
  int64_t split_pages = 0;  // of a sequence and layer that attention may split
  int64_t scratch_pages = 0;
};

// What a step's launches are given.
struct CudaStep {
  const StepLaunches& launches;
  const StepBlock& block;      // on the GPU
  const int32_t* sampled_ids;  // on the GPU: the token that each seat has drawn last
};

class CudaLayers {
 public:
  // The plugin and the stream outlive it. Throws CapacityError.
  CudaLayers(const DecoderSpec& spec, CudaWeights weights, const cuda::Plugin& plugin,
             cuda::Stream stream, const CudaLayersOptions& options);

  // All layers, and the final norm of the wanted rows. Throws DeviceError, as does all below.
  void compute(const CudaStep& step);
  // The logits of wanted rows [row, row + rows), at most kLogitRows: on the GPU, until the next
  // call.
  cuda::Partials logits(int64_t row, int64_t rows);

  int32_t logit_splits() const;
  int64_t weight_bytes() const { return weights_.bytes; }
  int64_t scratch_bytes() const { return scratch_bytes_; }
  std::byte* scratch_pages() const { return scratch_pages_; }  // on the GPU
  void release();

 private:
  void attend(const CudaStep& step, int64_t layer, bool is_needed);
  void append(const CudaStep& step, const StepLaunches::Round& round, int64_t layer);
  void attend(const CudaStep& step, const StepLaunches::Attention& attention, int64_t layer);
  void copy_pages(const CudaStep& step, const StepLaunches::Copy& copy, int64_t layer);
  void transform(const CudaLayerWeights& layer, int64_t rows);
  // hidden_ += what the last linear map left, if that is a residual; its norm goes to the rows of
  // normed_ from `to` on.
  void normalize(const float* weight, int64_t row, int64_t rows, int64_t to);
  // Leaves Partials, which the next op reads.
  void multiply(const CudaMap& map, const float* bias, const void* input, int64_t input_stride,
                int64_t rows);
  cuda::Partials partials_from(int64_t row) const;
  cuda::Pages pages(const StepBlock& block, int64_t layer) const;
  void check(cuda::Status status, const char* what) const;

  DecoderSpec spec_;
  CudaWeights weights_;
  const cuda::Plugin& plugin_;
  cuda::Stream stream_;
  CudaLayersOptions options_;

  // Scratch in device memory, [options.rows] rows each.
  cuda::MemoryBlock scratch_;
  int64_t scratch_bytes_ = 0;
  float* hidden_ = nullptr;            // [rows, hidden]: the residual stream
  std::byte* normed_ = nullptr;        // bfloat16 [rows, hidden]; at last, of the wanted rows
  std::byte* query_window_ = nullptr;  // 16 bits [rows, heads, head_dim]
  std::byte* query_sink_ = nullptr;    // likewise
  std::byte* attended_ = nullptr;      // bfloat16 [rows, heads · head_dim]
  std::byte* activated_ = nullptr;     // bfloat16 [rows, intermediate]
  float* partials_memory_ = nullptr;   // the widest that a linear map leaves
  float* attention_scratch_ = nullptr;
  std::byte* scratch_pages_ = nullptr;  // [options.scratch_pages]; a layer's at a time

  cuda::Partials partials_;    // what the last linear map left
  bool has_residual_ = false;  // whether that belongs to hidden_
};

}  // namespace sinkstream
