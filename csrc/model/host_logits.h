// Copies logits from a GPU to the host. They arrive as the splits of a linear map, in pinned
// memory, and are added up, scaled and capped there as `logits` does it on the GPU.
#pragma once

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/sampling/sampling.h"

namespace sinkstream {

class HostLogits {
 public:
  struct Shape {
    int64_t vocab = 0;
    int64_t splits = 0;
    int64_t rows = 0;
    cuda::LogitBend bend = {};
  };

  // `runtime` and `stream` must outlive it. Throws CapacityError.
  HostLogits(const cuda::Runtime& runtime, cuda::Stream stream, const Shape& shape);

  // Starts to copy rows [first, first + rows) of `logits` to the rows from `at` on. Throws
  // DeviceError.
  void copy_from_device(const cuda::Partials& logits, int64_t first, int64_t rows, int64_t at);

  // Adds up the first rows, once they have arrived: to `logits` [rows, vocab], or in place.
  void sum_splits(int64_t rows, float* logits) const;
  const float* sum_splits(int64_t rows);

  void release() { memory_.reset(); }

 private:
  // [splits][rows][vocab]
  float* splits() const { return reinterpret_cast<float*>(memory_.get()); }

  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  Shape shape_;
  cuda::MemoryBlock memory_;  // pinned
};

}  // namespace sinkstream
