#include "kernels/linear.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "common/dtype.h"
#include "kernels/reference/reference.h"
#include "kernels/reference/weight_at.h"

namespace sinkstream::reference {

namespace {

// Note: [Inputs as integers], one unit.
struct Integers {
  float scale = 0;
  std::array<float, kUnit> numbers{};

  float sum(int64_t first, int64_t count) const {
    float sum = 0;  // exact
    for (int64_t i = first; i < first + count; ++i) sum += numbers[i];
    return sum;
  }
};

Integers round_to_integers(const float* x, float most) {
  float largest = 0;
  for (int64_t i = 0; i < kUnit; ++i) {
    const float magnitude = std::abs(x[i]);
    if (!(magnitude <= largest)) largest = magnitude;  // keeps NaN
    if (std::isnan(largest)) break;
  }
  if (!std::isfinite(largest)) return {.scale = std::numeric_limits<float>::quiet_NaN()};
  if (largest < kMinGroupMagnitude) return {};
  Integers integers = {.scale = largest / most};
  for (int64_t i = 0; i < kUnit; ++i) {
    integers.numbers[i] = std::nearbyint(x[i] * (most / largest));
  }
  return integers;
}

// A token's inputs, rounded.
struct Rounded {
  std::vector<double> numbers;  // what they stand for
  std::vector<Integers> units;  // for codes, with integers
};

Rounded rounded_inputs(const LinearArgs& args, const LinearPart& part, int64_t token) {
  const bool has_own = part.input != nullptr;  // Note: [Inputs of a part]
  const int32_t* const row_of = has_own ? part.row_of : args.row_of;
  const int64_t row = row_of == nullptr ? token : row_of[token];
  const float* input =
      has_own ? part.input + row * part.input_stride : args.input + row * args.input_stride;
  Rounded x = {.numbers = std::vector<double>(input, input + args.cols), .units = {}};
  const bool as_integers =
      most_of(args.input_type) > 0 && has_integers(format_of(part.weights.type));
  const InputType type = as_integers ? args.input_type : without_integers(args.input_type);
  if (type == InputType::kBFloat16) {
    for (double& number : x.numbers) number = to_float(to_bf16(static_cast<float>(number)));
  }
  for (int64_t unit = 0; as_integers && unit < args.cols; unit += kUnit) {
    x.units.push_back(round_to_integers(input + unit, most_of(type)));
    const Integers& integers = x.units.back();
    for (int64_t i = 0; i < kUnit; ++i) {
      x.numbers[unit + i] = double{integers.scale} * integers.numbers[i];
    }
  }
  return x;
}

// The products of one row with one token.
double sum_in_double(const std::vector<double>& weights, const std::vector<double>& x) {
  double sum = 0;
  for (size_t col = 0; col < x.size(); ++col) sum += weights[col] * x[col];
  return sum;
}

// Note: [One order for integers of 8 bits].
float sum_in_order(const PanelFormat& format, const std::vector<CodedWeight>& weights,
                   const std::vector<Integers>& x) {
  float acc = 0;
  const int64_t cols = format.group;
  for (int64_t first = 0; first < static_cast<int64_t>(weights.size()); first += cols) {
    const Integers& unit = x[first / kUnit];
    int32_t sum = 0;
    for (int64_t i = 0; i < cols; ++i) {
      sum += weights[first + i].value * static_cast<int32_t>(unit.numbers[(first + i) % kUnit]);
    }
    const GroupScale& group = weights[first].group;
    const float scaled = static_cast<float>(group.scale) * static_cast<float>(sum);
    acc = std::fma(scaled, unit.scale, acc);
    if (!has_minimum(format)) continue;
    const float input_sum = unit.scale * unit.sum(first % kUnit, cols);
    const double minimum = group.minimum - group.scale * group.zero_point;  // one of them is 0
    acc = std::fma(static_cast<float>(minimum), input_sum, acc);
  }
  return acc;
}

// Adds what else an output consists of, with one rounding for a double and two for a float.
template <typename Number>
void write(const LinearPart& part, int64_t row, Number sum, float* out) {
  if (part.bias != nullptr) sum += part.bias[row];
  if (part.accumulate) sum += *out;
  *out = static_cast<float>(sum);
}

// The weights of one row.
template <typename Weight>
std::vector<Weight> row_of(const PackedMatrix& weights, int64_t row,
                           Weight (*at)(const PackedMatrix&, int64_t, int64_t)) {
  std::vector<Weight> found;
  for (int64_t col = 0; col < weights.cols; ++col) found.push_back(at(weights, row, col));
  return found;
}

}  // namespace

void linear(const LinearArgs& args, const Launch& launch) {
  for (int64_t i = 0; i < args.part_count; ++i) {
    const LinearPart& part = args.parts[i];
    const int64_t tokens = part.input != nullptr ? part.tokens : args.tokens;
    std::vector<Rounded> inputs;
    for (int64_t token = 0; token < tokens; ++token) {
      inputs.push_back(rounded_inputs(args, part, token));
    }
    const bool has_order =
        args.input_type == InputType::kInt8 && has_integers(format_of(part.weights.type));
    launch.pool->run(part.weights.rows, [&](int64_t row, int) {
      float* const out = part.out + row;
      if (has_order) {
        const auto weights = row_of(part.weights, row, coded_weight_at);
        for (int64_t token = 0; token < tokens; ++token) {
          write(part, row, sum_in_order(format_of(part.weights.type), weights, inputs[token].units),
                out + token * part.out_stride);
        }
      } else {
        const auto weights = row_of(part.weights, row, weight_at);
        for (int64_t token = 0; token < tokens; ++token) {
          write(part, row, sum_in_double(weights, inputs[token].numbers),
                out + token * part.out_stride);
        }
      }
    });
  }
}

}  // namespace sinkstream::reference
