#include <cmath>
#include <numbers>

#include "kernels/reference/reference.h"

namespace sinkstream {

namespace {

double activate(const ActivationArgs& args, double x) {
  switch (args.kind) {
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGelu: return x * (std::erfc(-x / std::numbers::sqrt2) / 2);
    case Activation::kGeluTanh: {
      const double factor = std::sqrt(2 / std::numbers::pi);
      return x / 2 * (1 + std::tanh(factor * (x + 0.044715 * x * x * x)));
    }
    case Activation::kRelu2: return x < 0 ? 0 : x * x;
    case Activation::kClampedSwiglu: {
      const double gate = x > kSwigluLimit ? kSwigluLimit : x;  // NaN stays NaN
      return gate / (1 + std::exp(-kSwigluSlope * gate));
    }
    case Activation::kXielu: {
      const auto [positive, negative, slope, knee] = args.xielu;
      if (x > 0) return positive * x * x + slope * x;
      const double bent = x > knee ? double{knee} : x;  // NaN stays NaN
      return negative * (std::expm1(bent) - x) + slope * x;
    }
  }
  return 0;
}

// What the activated gate is multiplied by.
double factor(Activation kind, double up) {
  if (kind != Activation::kClampedSwiglu) return up;
  if (up > kSwigluLimit) up = kSwigluLimit;
  return (up < -kSwigluLimit ? -kSwigluLimit : up) + 1;
}

}  // namespace

void reference::activation(const ActivationArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    for (int64_t i = r * args.stride; i < r * args.stride + args.dim; ++i) {
      const double activated = activate(args, args.gate[i]);
      args.out[i] = static_cast<float>(
          args.up == nullptr ? activated : activated * factor(args.kind, args.up[i]));
    }
  });
}

}  // namespace sinkstream
