#include "kernels/elementwise.h"

#include <cmath>

#include "kernels/reference/reference.h"

namespace sinkstream::reference {

void add_scaled(const AddScaledArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    for (int64_t i = r * args.dim; i < (r + 1) * args.dim; ++i) {
      args.out[i] = static_cast<float>(args.out[i] + double{args.scale} * args.input[i]);
    }
  });
}

void soft_cap(const SoftCapArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    for (int64_t i = r * args.dim; i < (r + 1) * args.dim; ++i) {
      double x = double{args.scale} * args.values[i];
      if (args.cap > 0) x = args.cap * std::tanh(x / args.cap);
      args.values[i] = static_cast<float>(x);
    }
  });
}

void clamp(const ClampArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    for (int64_t i = r * args.dim; i < (r + 1) * args.dim; ++i) {
      float& x = args.values[i];
      if (x > args.limit) x = args.limit;
      if (x < -args.limit) x = -args.limit;
    }
  });
}

}  // namespace sinkstream::reference
