// A decoder's weights in a GPU's memory, in the layout of its kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/linear/plan.h"
#include "model/weights.h"

namespace sinkstream {

// Maps that read the same input, on top of each other: one matrix, or several where a checkpoint
// stores them in different types. What they leave is one Partials.
struct CudaMap {
  std::vector<cuda::TiledMatrix> parts;  // of as many columns each; neighbours differ in type

  int64_t rows() const;
  int64_t cols() const { return parts.front().cols; }
  // Of K, for every part: those of one matrix of this shape.
  int32_t splits() const { return cuda::linear_splits(rows(), cols()); }
};

// Everything lies in device memory. Vectors are float32; null where the spec has none.
struct CudaLayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  CudaMap qkv;                            // [(heads + 2 kv_heads) · head_dim, hidden]
  const float* qkv_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]
  CudaMap o;
  const float* o_bias = nullptr;
  const float* mlp_norm = nullptr;  // [hidden]
  CudaMap gate_up;                  // [2 · intermediate, hidden]
  const float* gate_up_bias = nullptr;
  CudaMap down;
  const float* down_bias = nullptr;
};

struct CudaWeights {
  cuda::TiledMatrix embedding;  // [vocab, hidden]
  std::vector<CudaLayerWeights> layers;
  const float* final_norm = nullptr;
  CudaMap output;  // the embedding itself where they are tied
  int64_t bytes = 0;
  cuda::MemoryBlock memory;  // that all of them lie in
};

// Takes the memory and copies the weights there; the host's are needed no more then. `threads` may
// help to bring them into the GPU's layout; null: the caller's alone. Throws CapacityError,
// DeviceError.
CudaWeights copy_to_gpu(const DecoderSpec& spec, const DecoderWeights& weights,
                        const cuda::Runtime& runtime, cuda::Stream stream, ThreadPool* threads);

}  // namespace sinkstream
