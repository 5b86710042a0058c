// The table for x86-64 with AVX-512 (F, BW, VL, DQ), BF16 and VNNI.
#include <immintrin.h>

#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/table.h"

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_avx512.inl"

#include "kernels/cpu/linear/dot.inl"
#include "kernels/cpu/table.inl"

bool is_supported() {
  return __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const Kernels& avx512_kernels() {
  static constexpr Kernels table =
      table_of("avx512", is_supported, linear_dot, InputType::kBFloat16);
  return table;
}

}  // namespace sinkstream
