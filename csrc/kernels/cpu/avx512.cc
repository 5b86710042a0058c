// The table for x86-64 with AVX-512 (F, BW, VL, DQ), BF16 and VNNI.
#include <immintrin.h>

#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/kernels.h"

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_avx512.inl"

#include "kernels/cpu/activation.inl"
#include "kernels/cpu/attention/append.inl"
#include "kernels/cpu/attention/attention.inl"
#include "kernels/cpu/attention/evict.inl"
#include "kernels/cpu/attention/rope.inl"
#include "kernels/cpu/embedding.inl"
#include "kernels/cpu/linear/dot.inl"
#include "kernels/cpu/linear/linear.inl"
#include "kernels/cpu/rms_norm.inl"
#include "kernels/cpu/sampling/logits.inl"
#include "kernels/cpu/sampling/sample.inl"

bool is_supported() {
  return __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const Kernels& avx512_kernels() {
  static constexpr Kernels table = {
      .name = "avx512",
      .supported = is_supported,
      .embedding = embedding,
      .rms_norm = rms_norm,
      .linear = linear_dot,
      .rope = rope,
      .append = append,
      .attention = attention,
      .evict = evict,
      .swiglu = swiglu,
      .logits = logits,
      .sample = sample,
      .native_input = InputType::kBFloat16,
  };
  return table;
}

}  // namespace sinkstream
