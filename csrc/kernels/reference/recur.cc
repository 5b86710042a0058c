#include "kernels/recur.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/reference.h"

namespace sinkstream::reference {

namespace {

// What each number of a head's key, or of its query, is multiplied by.
double factor_of(const RecurArgs& args, const float* numbers) {
  if (args.norm_eps == 0) return 1;
  double squares = 0;
  for (int64_t i = 0; i < args.key_dim; ++i) squares += double{numbers[i]} * numbers[i];
  return 1 / std::sqrt(squares + args.norm_eps);
}

// One column of a head's state. Columns do not depend on each other.
void recur_column(const RecurArgs& args, const StateSpan& span, int64_t head, int64_t column) {
  const int64_t size = args.key_dim, width = args.value_dim;
  const int64_t key_head = args.key_head_of(head);
  const auto at = [&](int64_t i) { return (head * size + i) * width + column; };
  for (int64_t i = 0; i < size; ++i) span.write[at(i)] = span.read[at(i)];
  for (int64_t row = span.row; row < span.row + span.count; ++row) {
    const float* const query = args.query + row * args.key_stride + key_head * size;
    const float* const key = args.key + row * args.key_stride + key_head * size;
    const double of_key = factor_of(args, key);
    double of_query = factor_of(args, query);
    if (args.norm_eps > 0) of_query /= std::sqrt(static_cast<double>(size));
    const double value = args.value[row * args.value_stride + head * width + column];
    const double kept = std::exp(double{args.decay[row * args.heads + head]});
    double known = 0;
    for (int64_t i = 0; i < size && args.delta_rule; ++i)
      known += of_key * key[i] * kept * span.write[at(i)];
    const double change = args.strength[row * args.heads + head] * (value - known);
    double sum = args.skip == nullptr ? 0 : args.skip[head] * value;
    for (int64_t i = 0; i < size; ++i) {
      float& state = span.write[at(i)];
      state = static_cast<float>(kept * state + of_key * key[i] * change);
      sum += of_query * query[i] * state;
    }
    args.out[(row * args.heads + head) * width + column] = static_cast<float>(sum);
  }
}

}  // namespace

void recur(const RecurArgs& args, const Launch& launch) {
  const int64_t columns = args.heads * args.value_dim;
  launch.pool->run(args.span_count * columns, [&](int64_t task, int) {
    const int64_t column = task % columns;
    recur_column(args, args.spans[task / columns], column / args.value_dim,
                 column % args.value_dim);
  });
}

}  // namespace sinkstream::reference
