#include "sampling_kernels.h"

#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"

#pragma GCC diagnostic ignored "-Wunused-function"  // linear alone uses fma_once

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_generic.inl"

#include "kernels/cpu/sampling/logits.inl"
#include "kernels/cpu/sampling/sample.inl"

}  // namespace

const Kernels& sampling_kernels() {
  static constexpr Kernels table = {
      .name = "generic",
      .supported = [] { return true; },
      .logits = logits,
      .sample = sample,
  };
  return table;
}

}  // namespace sinkstream
