// The table for x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/kernels.h"

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_avx2.inl"

#include "kernels/cpu/activation.inl"
#include "kernels/cpu/attention/append.inl"
#include "kernels/cpu/attention/attention.inl"
#include "kernels/cpu/attention/evict.inl"
#include "kernels/cpu/attention/rope.inl"
#include "kernels/cpu/embedding.inl"
#include "kernels/cpu/linear/linear.inl"
#include "kernels/cpu/rms_norm.inl"
#include "kernels/cpu/sampling/logits.inl"
#include "kernels/cpu/sampling/sample.inl"

bool is_supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

}  // namespace

const Kernels& avx2_kernels() {
  static constexpr Kernels table = {
      .name = "avx2",
      .supported = is_supported,
      .embedding = embedding,
      .rms_norm = rms_norm,
      .linear = linear_fma,
      .rope = rope,
      .append = append,
      .attention = attention,
      .evict = evict,
      .swiglu = swiglu,
      .logits = logits,
      .sample = sample,
      .native_input = InputType::kInt16,
  };
  return table;
}

}  // namespace sinkstream
