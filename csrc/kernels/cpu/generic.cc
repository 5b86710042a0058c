// The table for any processor.
#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/kernels.h"

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_generic.inl"

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

bool is_supported() { return true; }

}  // namespace

const Kernels& generic_kernels() {
  static constexpr Kernels table = {
      .name = "generic",
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
  };
  return table;
}

}  // namespace sinkstream
