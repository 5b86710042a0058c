#include "kernels/reference/reference.h"

namespace sinkstream {

const Kernels& reference_kernels() {
  static constexpr Kernels table = {
      .name = "reference",
      .supported = [] { return true; },
      .embedding = reference::embedding,
      .norm = reference::norm,
      .linear = reference::linear,
      .rope = reference::rope,
      .append = reference::append,
      .attention = reference::attention,
      .evict = reference::evict,
      .activation = reference::activation,
      .add_scaled = reference::add_scaled,
      .soft_cap = reference::soft_cap,
      .clamp = reference::clamp,
      .route = reference::route,
      .combine = reference::combine,
      .convolve = reference::convolve,
      .logits = reference::logits,
      .sample = reference::sample,
  };
  return table;
}

}  // namespace sinkstream
