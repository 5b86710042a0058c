// Table of all GPU ops. The core calls them through the plugin, tests through the emulator. Each
// header has its op's contract.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/copy_pages.h"
#include "kernels/cuda/attention/evict.h"
#include "kernels/cuda/attention/rope_append.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/experts/combine.h"
#include "kernels/cuda/experts/group_rows.h"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/linear/grouped.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/order_columns.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/sampling/logits.h"
#include "kernels/cuda/sampling/penalties.h"
#include "kernels/cuda/sampling/sample.h"

namespace sinkstream::cuda {

struct Ops {
  Status (*embedding)(const EmbeddingArgs&, Stream);
  Status (*norm)(const NormArgs&, Stream);
  Status (*linear)(const LinearArgs&, Stream);
  Status (*order_columns)(const OrderColumnsArgs&, Stream);
  Status (*rope_append)(const RopeAppendArgs&, Stream);
  Status (*attention_decode)(const AttentionArgs&, Stream);
  Status (*attention_prefill)(const AttentionArgs&, Stream);
  Status (*activation)(const ActivationArgs&, Stream);
  Status (*route)(const RouteArgs&, Stream);
  Status (*group_rows)(const GroupRowsArgs&, Stream);
  Status (*linear_grouped)(const GroupedLinearArgs&, Stream);
  Status (*combine)(const CombineArgs&, Stream);
  Status (*logits)(const LogitsArgs&, Stream);
  Status (*sample)(const SampleArgs&, Stream);
  Status (*penalties_reset)(const PenaltyResetArgs&, Stream);
  Status (*penalties_append)(const PenaltyAppendArgs&, Stream);
  Status (*evict)(const EvictArgs&, Stream);
  Status (*copy_pages)(const CopyPagesArgs&, Stream);
};

const Ops& all_ops();

}  // namespace sinkstream::cuda
