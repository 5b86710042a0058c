#include <cmath>

#include "kernels/reference/reference.h"

namespace sinkstream {

void reference::norm(const NormArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    const float* input = args.input + r * args.input_stride;
    float* out = args.out + r * args.out_stride;
    const auto dim = static_cast<double>(args.dim);
    double mean = 0;
    if (args.kind == NormKind::kLayer) {
      for (int64_t d = 0; d < args.dim; ++d) mean += input[d];
      mean /= dim;
    }
    double squares = 0;
    for (int64_t d = 0; d < args.dim; ++d) squares += (input[d] - mean) * (input[d] - mean);
    const double factor = 1 / std::sqrt(squares / dim + args.eps);
    for (int64_t d = 0; d < args.dim; ++d) {
      const double bias = args.bias == nullptr ? 0 : args.bias[d];
      out[d] = static_cast<float>((input[d] - mean) * factor * args.weight[d] + bias);
    }
  });
}

}  // namespace sinkstream
