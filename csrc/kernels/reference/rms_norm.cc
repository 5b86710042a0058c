#include <cmath>

#include "kernels/reference/reference.h"

namespace sinkstream {

void reference::rms_norm(const RmsNormArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    const float* input = args.input + r * args.input_stride;
    float* out = args.out + r * args.out_stride;
    double squares = 0;
    for (int64_t d = 0; d < args.dim; ++d) squares += double{input[d]} * input[d];
    const double factor = 1 / std::sqrt(squares / static_cast<double>(args.dim) + args.eps);
    for (int64_t d = 0; d < args.dim; ++d) {
      out[d] = static_cast<float>(input[d] * factor * args.weight[d]);
    }
  });
}

}  // namespace sinkstream
