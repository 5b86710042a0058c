// The table for x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/table.h"

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_avx2.inl"

#include "kernels/cpu/table.inl"

bool is_supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

}  // namespace

const Kernels& avx2_kernels() {
  static constexpr Kernels table = table_of("avx2", is_supported, linear_fma, InputType::kInt16);
  return table;
}

}  // namespace sinkstream
