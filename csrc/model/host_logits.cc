#include "model/host_logits.h"

#include <cmath>

#include "kernels/cuda/gpu.h"

namespace sinkstream {

HostLogits::HostLogits(const cuda::Runtime& runtime, cuda::Stream stream, const Shape& shape)
    : runtime_(runtime), stream_(stream), shape_(shape) {
  const int64_t floats = shape.splits * shape.rows * shape.vocab;
  memory_ = cuda::allocate_pinned(runtime, floats * int64_t{sizeof(float)}, "logits");
}

void HostLogits::copy_from_device(const cuda::Partials& logits, int64_t first, int64_t rows,
                                  int64_t at) {
  const int64_t vocab = shape_.vocab;
  for (int64_t split = 0; split < shape_.splits; ++split) {
    cuda::check(runtime_,
                runtime_.copy(splits() + (split * shape_.rows + at) * vocab,
                              logits.data + (split * logits.rows + first) * vocab,
                              rows * vocab * int64_t{sizeof(float)}, stream_),
                "copying logits to the host");
  }
}

void HostLogits::sum_splits(int64_t rows, float* logits) const {
  const float* const from = splits();
  const auto [scale, soft_cap] = shape_.bend;
  const int64_t count = rows * shape_.vocab, split = shape_.rows * shape_.vocab;
  for (int64_t i = 0; i < count; ++i) {
    float sum = from[i];
    for (int64_t s = 1; s < shape_.splits; ++s) sum += from[s * split + i];
    sum *= scale;
    logits[i] = soft_cap > 0 ? soft_cap * std::tanh(sum / soft_cap) : sum;
  }
}

const float* HostLogits::sum_splits(int64_t rows) {
  sum_splits(rows, splits());
  return splits();
}

}  // namespace sinkstream
