// A decoder's weights in a card's memory, in the layout of its kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/card.h"
#include "kernels/cuda/weights.h"
#include "model/weights.h"

namespace sinkstream {

// Everything lies in device memory. Vectors are float32; null where the spec has none. Maps that
// read the same input are one matrix.
struct CudaLayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  cuda::TiledMatrix qkv;                  // [(heads + 2 kv_heads) · head_dim, hidden]
  const float* qkv_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]
  cuda::TiledMatrix o;
  const float* o_bias = nullptr;
  const float* mlp_norm = nullptr;  // [hidden]
  cuda::TiledMatrix gate_up;        // [2 · intermediate, hidden]
  const float* gate_up_bias = nullptr;
  cuda::TiledMatrix down;
  const float* down_bias = nullptr;
};

struct CudaWeights {
  cuda::TiledMatrix embedding;  // [vocab, hidden]
  std::vector<CudaLayerWeights> layers;
  const float* final_norm = nullptr;
  cuda::TiledMatrix output;  // the embedding itself where they are tied
  int64_t bytes = 0;
  cuda::CardBlock memory;  // that all of them lie in
};

// Takes the memory and copies the weights there; the host's are needed no more then. `threads` may
// help to bring them into the card's layout; null: the caller's alone. Throws
// CapacityError, DeviceError, and CheckpointError for maps that read the same input and are stored
// in different types: a card multiplies them as one matrix.
CudaWeights copy_to_card(const DecoderSpec& spec, const DecoderWeights& weights,
                         const cuda::Runtime& runtime, cuda::Stream stream, ThreadPool* threads);

}  // namespace sinkstream
