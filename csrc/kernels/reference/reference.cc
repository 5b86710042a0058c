#include "kernels/reference/reference.h"

namespace sinkstream {

const Kernels& reference_kernels() {
  static constexpr Kernels table = {
      .name = "reference",
      .supported = [] { return true; },
      .embedding = reference::embedding,
      .rms_norm = reference::rms_norm,
      .linear = reference::linear,
      .rope = reference::rope,
      .append = reference::append,
      .attention = reference::attention,
      .evict = reference::evict,
      .swiglu = reference::swiglu,
      .logits = reference::logits,
      .sample = reference::sample,
  };
  return table;
}

}  // namespace sinkstream
