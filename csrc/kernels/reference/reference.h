// The definition of every op: plain loops, sums in double. Slow by design.
#pragma once

#include "kernels/table.h"

namespace sinkstream::reference {

EmbeddingOp embedding;
RmsNormOp rms_norm;
LinearOp linear;
RopeOp rope;
AppendOp append;
AttentionOp attention;
EvictOp evict;
SwigluOp swiglu;
LogitsOp logits;
SampleOp sample;

}  // namespace sinkstream::reference
