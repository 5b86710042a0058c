#include "kernels/linear.h"

#include "kernels/reference/reference.h"
#include "kernels/reference/weight_at.h"

namespace sinkstream::reference {

namespace {

// One output feature of one part, for every token.
void compute_row(const LinearArgs& args, const LinearPart& part, int64_t row) {
  for (int64_t token = 0; token < args.tokens; ++token) {
    const float* input = args.input + token * args.input_stride;
    double sum = 0;
    for (int64_t col = 0; col < args.cols; ++col) {
      const float x =
          args.input_type == DType::kBFloat16 ? to_float(to_bf16(input[col])) : input[col];
      sum += weight_at(part.weights, row, col) * x;
    }
    float* out = part.out + token * part.out_stride + row;
    if (part.bias != nullptr) sum += part.bias[row];
    if (part.accumulate) sum += *out;
    *out = static_cast<float>(sum);
  }
}

}  // namespace

void linear(const LinearArgs& args, const Launch& launch) {
  for (int64_t i = 0; i < args.part_count; ++i) {
    const LinearPart& part = args.parts[i];
    launch.pool->run(part.weights.rows, [&](int64_t row, int) { compute_row(args, part, row); });
  }
}

}  // namespace sinkstream::reference
