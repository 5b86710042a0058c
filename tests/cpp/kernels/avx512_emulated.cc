// The avx512 table in plain code, for tests alone: the same bodies as csrc/kernels/cpu/avx512.cc.
#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/kernels.h"

namespace sinkstream {
namespace {

#include "kernels/simd_avx512_emulated.inl"

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

bool is_supported() { return true; }

}  // namespace

const Kernels& avx512_emulated_kernels() {
  static constexpr Kernels table = {
      .name = "avx512_emulated",
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
