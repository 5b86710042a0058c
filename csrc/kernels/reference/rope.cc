#include "kernels/reference/reference.h"
#include "kernels/reference/rotate.h"

namespace sinkstream {

void reference::rope(const RopeArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    const double factor = args.factors == nullptr ? 1 : args.factors[r];
    for (int64_t h = 0; h < args.heads; ++h) {
      const float* head = args.input + r * args.input_stride + h * args.head_dim;
      rotate(args.rotation, r, head, args.head_dim, args.out + (r * args.heads + h) * args.head_dim,
             factor);
    }
  });
}

}  // namespace sinkstream
