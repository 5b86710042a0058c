#include <cmath>

#include "kernels/reference/reference.h"

namespace sinkstream {

void reference::swiglu(const SwigluArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    for (int64_t i = r * args.stride; i < r * args.stride + args.dim; ++i) {
      const double gate = args.gate[i];
      args.out[i] = static_cast<float>(gate / (1 + std::exp(-gate)) * args.up[i]);
    }
  });
}

}  // namespace sinkstream
