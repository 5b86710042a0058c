// A decoder's weights in GPU memory, in the layout of the kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/attention/rope_append.h"
#include "kernels/cuda/linear/plan.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/norm.h"
#include "model/weights.h"

namespace sinkstream {

// Linear maps that read the same input, stacked: one matrix, or several if a checkpoint stores them
// in different types, open blocks or orders of columns. Their output is one Partials.
struct CudaMap {
  std::vector<cuda::TiledMatrix> parts;  // with the same columns; neighbors differ

  int64_t rows() const;
  int64_t cols() const { return parts.front().cols; }
  // Splits of K, the same for every part: those of one matrix of the full shape.
  int32_t splits() const { return cuda::linear_splits(rows(), cols()); }
};

// The same map of each of a layer's experts. They have the same types and open blocks.
struct CudaExpertMap {
  CudaMap first;                // of expert 0
  int64_t expert_bytes = 0;     // from its matrices to the next expert's
  const float* bias = nullptr;  // [experts, rows], or null
  int64_t chosen = 0, experts = 0;

  // One token's experts are multiplied together.
  int32_t splits() const { return cuda::linear_splits(chosen * first.rows(), first.cols()); }
};

// A feed-forward's, or the shared expert's.
struct CudaMlpWeights {
  CudaMap gate_up;  // [2 · intermediate, hidden], or without a gate [intermediate, hidden]
  const float* gate_up_bias = nullptr;
  CudaMap down;
  const float* down_bias = nullptr;
};

struct CudaExpertsWeights {
  CudaMap router;                      // [experts, hidden]
  const float* router_bias = nullptr;  // [experts], likewise the next two
  const float* choice_bias = nullptr;
  const float* expert_scale = nullptr;
  CudaExpertMap gate_up, down;
  CudaMlpWeights shared;
  CudaMap shared_gate;  // [1, hidden]
};

// Everything is in device memory. Vectors are float32; null if the spec has none.
struct CudaLayerWeights {
  NormWeights attention_norm;  // [hidden]
  CudaMap qkv;                 // [(heads + 2 kv_heads) · head_dim, hidden]
  const float* qkv_bias = nullptr;
  NormWeights q_norm, k_norm;
  const float* slopes = nullptr;       // [heads], of ALiBi; shared by the layers of a block
  const float* sink_logits = nullptr;  // [heads]
  CudaMap o;
  const float* o_bias = nullptr;
  NormWeights attention_post_norm, mlp_norm;  // [hidden]
  CudaMlpWeights mlp;
  CudaExpertsWeights experts;
  NormWeights mlp_post_norm;  // [hidden]
};

struct CudaWeights {
  cuda::TiledMatrix embedding;  // [vocab, hidden]
  std::vector<CudaLayerWeights> layers;
  NormWeights final_norm;
  CudaMap output;               // the embedding itself if they are tied
  int64_t layer_partials = 0;   // the most floats that a map of a layer has per row, of all splits
  int64_t shared_partials = 0;  // the same of a shared expert's output
  int64_t most_ordered = 0;     // the most columns of a matrix with an order; 0: none has one
  int64_t bytes = 0;
  cuda::MemoryBlock memory;  // holds everything above
};

// A copy of this size takes one or two milliseconds. Larger ones are no faster, and the host's
// first and the GPU's last, which nothing overlaps, take longer.
constexpr int64_t kUploadBytes = int64_t{32} << 20;

// Allocates memory and copies the weights there; the host's are not needed afterwards. `threads`
// convert the layout; null: the caller's thread does. Takes two pinned buffers of `buffer_bytes`
// bytes, or of the largest 16 rows if that is more. Throws CapacityError, DeviceError, and
// CheckpointError for experts that are not stored alike.
CudaWeights copy_to_gpu(const DecoderSpec& spec, const DecoderWeights& weights,
                        const cuda::Runtime& runtime, cuda::Stream stream, ThreadPool* threads,
                        int64_t buffer_bytes = kUploadBytes);

}  // namespace sinkstream
