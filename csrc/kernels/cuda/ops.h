// Table of all GPU ops. The core calls them through the plugin, tests through the emulator. Each
// header has its op's contract.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/copy_pages.h"
#include "kernels/cuda/attention/evict.h"
#include "kernels/cuda/attention/rope_append.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/sampling/logits.h"
#include "kernels/cuda/sampling/penalties.h"
#include "kernels/cuda/sampling/sample.h"

namespace sinkstream::cuda {

struct Ops {
  Status (*embedding)(const EmbeddingArgs&, Stream);
  Status (*norm)(const NormArgs&, Stream);
  Status (*linear)(const LinearArgs&, Stream);
  Status (*rope_append)(const RopeAppendArgs&, Stream);
  Status (*attention_decode)(const AttentionArgs&, Stream);
  Status (*attention_prefill)(const AttentionArgs&, Stream);
  Status (*activation)(const ActivationArgs&, Stream);
  Status (*logits)(const LogitsArgs&, Stream);
  Status (*sample)(const SampleArgs&, Stream);
  Status (*penalties_reset)(const PenaltyResetArgs&, Stream);
  Status (*penalties_append)(const PenaltyAppendArgs&, Stream);
  Status (*evict)(const EvictArgs&, Stream);
  Status (*copy_pages)(const CopyPagesArgs&, Stream);
};

const Ops& all_ops();

}  // namespace sinkstream::cuda
