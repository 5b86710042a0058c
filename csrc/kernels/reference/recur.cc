#include "kernels/recur.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/reference.h"

namespace sinkstream::reference {

namespace {

// One column of a head's state. Columns do not depend on each other.
void recur_column(const RecurArgs& args, const StateSpan& span, int64_t head, int64_t column) {
  const int64_t size = args.key_dim, width = args.value_dim;
  const int64_t key_head = head / (args.heads / args.key_heads);
  const auto at = [&](int64_t i) { return (head * size + i) * width + column; };
  for (int64_t i = 0; i < size; ++i) span.write[at(i)] = span.read[at(i)];
  for (int64_t row = span.row; row < span.row + span.count; ++row) {
    const float* const query = args.query + row * args.key_stride + key_head * size;
    const float* const key = args.key + row * args.key_stride + key_head * size;
    const double value = args.value[row * args.value_stride + head * width + column];
    const double kept = std::exp(double{args.decay[row * args.heads + head]});
    double known = 0;
    for (int64_t i = 0; i < size && args.delta_rule; ++i)
      known += key[i] * kept * span.write[at(i)];
    const double change = args.strength[row * args.heads + head] * (value - known);
    double sum = args.skip == nullptr ? 0 : args.skip[head] * value;
    for (int64_t i = 0; i < size; ++i) {
      float& state = span.write[at(i)];
      state = static_cast<float>(kept * state + key[i] * change);
      sum += double{query[i]} * state;
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
