#include "kernels/combine.h"

#include <cmath>

#include "kernels/reference/reference.h"

namespace sinkstream::reference {

void combine(const CombineArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t row, int) {
    for (int64_t i = 0; i < args.dim; ++i) {
      double sum = 0;
      for (int64_t r = row * args.chosen; r < (row + 1) * args.chosen; ++r) {
        sum += double{args.weights[r]} * args.outputs[args.positions[r] * args.dim + i];
      }
      if (args.shared != nullptr) {
        const double gate =
            args.shared_gate == nullptr ? 1 : 1 / (1 + std::exp(-double{args.shared_gate[row]}));
        sum += gate * args.shared[row * args.dim + i];
      }
      float* const out = args.out + row * args.dim + i;
      if (args.accumulate) sum += *out;
      *out = static_cast<float>(sum);
    }
  });
}

}  // namespace sinkstream::reference
