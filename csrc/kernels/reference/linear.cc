#include "kernels/linear.h"

#include <cmath>
#include <limits>
#include <vector>

#include "common/dtype.h"
#include "kernels/reference/reference.h"
#include "kernels/reference/weight_at.h"

namespace sinkstream::reference {

namespace {

// Note: [Inputs in 16 bits], one group.
void round_to_int16(double* x) {
  float largest = 0;
  for (int64_t i = 0; i < kUnit; ++i) {
    const float magnitude = std::abs(static_cast<float>(x[i]));
    if (!(magnitude <= largest)) largest = magnitude;  // keeps NaN
    if (std::isnan(largest)) break;
  }
  for (int64_t i = 0; i < kUnit; ++i) {
    if (!std::isfinite(largest)) {
      x[i] = std::numeric_limits<double>::quiet_NaN();
    } else if (largest < kMinGroupMagnitude) {
      x[i] = 0;
    } else {
      const float rounded = std::nearbyint(static_cast<float>(x[i]) * (kMaxInt16 / largest));
      x[i] = double{largest / kMaxInt16} * rounded;
    }
  }
}

// A token's inputs, rounded as for the weights of `part`.
std::vector<double> rounded_inputs(const LinearArgs& args, const LinearPart& part, int64_t token) {
  const float* input = args.input + token * args.input_stride;
  std::vector<double> x(input, input + args.cols);
  if (args.input_type == InputType::kBFloat16) {
    for (double& number : x) number = to_float(to_bf16(static_cast<float>(number)));
  }
  if (args.input_type == InputType::kInt16 && is_quantized(part.weights.type)) {
    for (int64_t group = 0; group < args.cols; group += kUnit) round_to_int16(&x[group]);
  }
  return x;
}

std::vector<double> weights_of_row(const PackedMatrix& weights, int64_t row) {
  std::vector<double> numbers(weights.cols);
  for (int64_t col = 0; col < weights.cols; ++col) numbers[col] = weight_at(weights, row, col);
  return numbers;
}

// One output of one token with the rounded inputs `x`.
void compute(const LinearPart& part, int64_t row, const std::vector<double>& weights,
             const std::vector<double>& x, float* out) {
  double sum = 0;
  for (size_t col = 0; col < x.size(); ++col) sum += weights[col] * x[col];
  if (part.bias != nullptr) sum += part.bias[row];
  if (part.accumulate) sum += *out;
  *out = static_cast<float>(sum);
}

}  // namespace

void linear(const LinearArgs& args, const Launch& launch) {
  for (int64_t i = 0; i < args.part_count; ++i) {
    const LinearPart& part = args.parts[i];
    std::vector<std::vector<double>> inputs;
    for (int64_t token = 0; token < args.tokens; ++token) {
      inputs.push_back(rounded_inputs(args, part, token));
    }
    launch.pool->run(part.weights.rows, [&](int64_t row, int) {
      const std::vector<double> weights = weights_of_row(part.weights, row);
      for (int64_t token = 0; token < args.tokens; ++token) {
        compute(part, row, weights, inputs[token], part.out + token * part.out_stride + row);
      }
    });
  }
}

}  // namespace sinkstream::reference
