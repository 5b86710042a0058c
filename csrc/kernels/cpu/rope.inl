#pragma once

#include "kernels/cpu/rotate.inl"

void rope(const RopeArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t r, int) {
    const float* input = args.input + r * args.input_stride;
    float* out = args.out + r * args.heads * args.head_dim;
    for (int64_t h = 0; h < args.heads; ++h) {
      rotate(args.rotation, r, input + h * args.head_dim, args.head_dim, out + h * args.head_dim);
    }
    if (args.factors == nullptr) return;
    for (int64_t i = 0; i < args.heads * args.head_dim; ++i) out[i] *= args.factors[r];
  });
}
