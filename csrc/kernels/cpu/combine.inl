#pragma once

#include "kernels/cpu/activation.inl"

// The sum of one vector of a token's outputs, in the router's order.
SINKSTREAM_INLINE Vec combine_vector(const CombineArgs& args, int64_t row, Vec gate, int64_t i,
                                     int64_t lanes) {
  const auto read = [&](const float* from) {
    return lanes == kLanes ? load(from + i) : load_first(from + i, lanes);
  };
  Vec sum = {};
  for (int64_t r = row * args.chosen; r < (row + 1) * args.chosen; ++r) {
    const float* const output = args.outputs + args.positions[r] * args.dim;
    sum = fma(read(output), broadcast(args.weights[r]), sum);
  }
  if (args.shared != nullptr) sum = fma(read(args.shared + row * args.dim), gate, sum);
  if (args.accumulate) sum = sum + read(args.out + row * args.dim);
  return sum;
}

void combine(const CombineArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t row, int) {
    Vec gate = broadcast(1.0f);
    if (args.shared_gate != nullptr) {
      gate = times_sigmoid(gate, broadcast(args.shared_gate[row]));
    }
    float* const out = args.out + row * args.dim;
    int64_t i = 0;
    for (; i + kLanes <= args.dim; i += kLanes) {
      store(out + i, combine_vector(args, row, gate, i, kLanes));
    }
    if (i < args.dim) {
      store_first(out + i, combine_vector(args, row, gate, i, args.dim - i), args.dim - i);
    }
  });
}
