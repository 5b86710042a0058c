// out[r][i] = input[r][order[i]]: puts inputs into the order of a matrix's columns, before the
// matrix multiplies them.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"

namespace sinkstream::cuda {

struct OrderColumnsArgs {          // all pointers are to device memory; none alias
  const void* input = nullptr;     // 16-bit numbers [rows, input_stride]
  int64_t input_stride = 0;        // at least cols
  const int32_t* order = nullptr;  // [cols], each in [0, cols)
  int64_t rows = 0;                // 0 launches nothing
  int64_t cols = 0;
  void* out = nullptr;  // [rows, cols]
};

Status order_columns(const OrderColumnsArgs& args, Stream stream);

}  // namespace sinkstream::cuda
