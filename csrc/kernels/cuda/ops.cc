#include "kernels/cuda/ops.h"

namespace sinkstream::cuda {

const Ops& all_ops() {
  static constexpr Ops ops = {
      .embedding = embedding,
      .norm = norm,
      .linear = linear,
      .order_columns = order_columns,
      .rope_append = rope_append,
      .attention_decode = attention_decode,
      .attention_prefill = attention_prefill,
      .activation = activation,
      .route = route,
      .group_rows = group_rows,
      .linear_grouped = linear_grouped,
      .combine = combine,
      .logits = logits,
      .sample = sample,
      .penalties_reset = penalties_reset,
      .penalties_append = penalties_append,
      .evict = evict,
      .copy_pages = copy_pages,
  };
  return ops;
}

}  // namespace sinkstream::cuda
