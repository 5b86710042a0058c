// Launches a step's kernels: a model's layers and the logits of the wanted rows. Reads the spec as
// data, as Decoder does. Uses no host memory and never waits, so its launches can be captured.
#pragma once

#include "kernels/cuda/plugin.h"
#include "model/cuda/launches.h"
#include "model/cuda/step.h"
#include "model/cuda/weights.h"
#include "model/decoder_spec.h"
#include "model/layer_views.h"

namespace sinkstream {

struct CudaLayersOptions {
  DType cache_type = DType::kFloat16;
  int64_t rows = 0;         // the most in a step
  int64_t split_pages = 0;  // whose results attention's scratch memory has room for
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
  // The most runs that the experts of any block have, of `rows` rows or fewer.
  static int64_t most_runs(const DecoderSpec& spec, int64_t rows);

  // The views, the plugin and the stream must outlive it. Throws CapacityError.
  CudaLayers(const DecoderSpec& spec, const LayerViews& views, CudaWeights weights,
             const cuda::Plugin& plugin, cuda::Stream stream, const CudaLayersOptions& options);

  // All layers, and the final norm of the logit rows. Throws DeviceError, as do the functions
  // below.
  void compute(const CudaStep& step);
  // The output map of logit rows [row, row + rows), at most kLogitRows: on the GPU, valid until the
  // next call. `logit_bend` turns its sums into logits.
  cuda::Partials logits(int64_t row, int64_t rows);

  int32_t logit_splits() const;
  cuda::LogitBend logit_bend() const { return {spec_.logit_scale, spec_.logit_soft_cap}; }
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

  // The last linear map's output, if it has not yet been added to hidden_.
  struct Residual {
    bool is_pending = false;
    NormWeights post_norm;
    NormSpec norm;
    float scale = 1;
  };

  void run(const CudaStep& step, int64_t layer, bool is_needed);
  // Attention of the rows of qkv's output.
  void attend(const CudaStep& step, int64_t layer, bool is_needed);
  void append(const StepBlock& block, const LayerCache& cache, const StepLaunches::Round& round,
              int64_t layer);
  void attend(const LayerCache& cache, const StepLaunches::Attention& attention, int64_t layer);
  void copy_pages(const LayerCache& cache, const StepLaunches::Copy& copy);
  // The feed-forward of rows whose input is normed_ or mlp_normed_. Writes partials_.
  void transform(const CudaStep& step, int64_t layer, const std::byte* input);
  cuda::Partials transform(const DenseSpec& spec, const CudaMlpWeights& weights, const void* input,
                           int64_t rows, float* to);
  void activate(const DenseSpec& spec, const cuda::Partials& input, int64_t rows);
  cuda::Partials mix(const ExpertsSpec& spec, const CudaExpertsWeights& weights,
                     const cuda::TokenRow* tokens, const std::byte* input, int64_t rows);
  void route(const ExpertsSpec& spec, const CudaExpertsWeights& weights,
             const cuda::TokenRow* tokens, const std::byte* input, int64_t rows);
  cuda::Partials multiply_each(const CudaExpertMap& map, const void* input, int64_t input_stride,
                               const int32_t* row_of, int64_t run_rows, int64_t rows);
  // Adds what is pending to rows [row, row + rows) of hidden_, and writes their norms.
  void add_residual(cuda::NormArgs args, int64_t row, int64_t rows);
  // The same, with one norm, to the rows of normed_ from `to` on.
  void normalize(const NormSpec& norm, const NormWeights& weights, int64_t row, int64_t rows,
                 int64_t to, std::byte* rest = nullptr);
  // The rows after those of a feed-forward's input: what rounding took from them, if the block has
  // experts, else null. Note [Exact logits] of kernels/cuda/experts/route.h.
  std::byte* rest_of(const BlockSpec& block, std::byte* input, int64_t rows) const;
  // Writes `to`, which the next op reads.
  cuda::Partials multiply(const CudaMap& map, const float* bias, const void* input,
                          int64_t input_stride, int64_t rows, float* to);
  void put_in_order(const cuda::TiledMatrix& matrix, const void* input, int64_t input_stride,
                    int64_t rows);
  static cuda::Partials from_row(cuda::Partials partials, int64_t row) {
    partials.data += row * partials.stride;
    return partials;
  }
  PageShape page_shape(const AttentionSpec& attention) const {
    return {attention.kv_heads, attention.head_dim, options_.cache_type, PageLayout::kRows};
  }
  LayerCache cache_of(const StepBlock& block, int64_t layer) const;
  void check(cuda::Status status, const char* what) const;

  DecoderSpec spec_;
  const LayerViews& views_;
  CacheLayers layers_;
  CudaWeights weights_;
  const cuda::Plugin& plugin_;
  cuda::Stream stream_;
  CudaLayersOptions options_;

  // Scratch in device memory, [options.rows] rows each.
  cuda::MemoryBlock scratch_;
  int64_t scratch_bytes_ = 0;
  float* hidden_ = nullptr;  // [rows, hidden]: the residual stream
  // bfloat16 [rows, hidden], with experts twice as many rows: rest_of. Finally, of the logit rows.
  std::byte* normed_ = nullptr;
  std::byte* mlp_normed_ = nullptr;    // likewise, if the MLP of a parallel block has its own norm
  double* norm_scratch_ = nullptr;     // if all heads are normalized together
  std::byte* query_window_ = nullptr;  // 16 bits [rows, heads, head_dim]
  std::byte* query_sink_ = nullptr;    // likewise
  std::byte* attended_ = nullptr;      // bfloat16 [rows, heads · head_dim]
  std::byte* activated_ = nullptr;     // bfloat16 [rows, largest intermediate], of all experts
  std::byte* ordered_ =
      nullptr;  // bfloat16 [rows, most columns in an order of their own], of a router [2 · rows]
  float* partials_memory_ = nullptr;  // room for the largest output of a map
  // Of layers with experts, else without room: what kernels/cuda/experts writes, and the outputs of
  // a shared expert, which are needed when partials_memory_ holds those of the others.
  struct {
    int32_t *ids, *positions, *row_of;  // [rows, chosen]
    float* weights;                     // likewise
    cuda::ExpertRun* runs;
    int32_t* run_count;
    float *shared, *shared_gate;  // Partials of `rows` rows
    float* sums;                  // [rows, hidden]
  } experts_ = {};
  float* attention_scratch_ = nullptr;
  std::byte* scratch_pages_ = nullptr;  // [options.scratch_pages] of the largest, for each layer

  cuda::Partials partials_;  // output of the last linear map
  Residual residual_;
};

}  // namespace sinkstream
