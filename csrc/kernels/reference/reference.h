// The definition of every op: plain loops, sums in double. Slow by design.
#pragma once

#include "kernels/recur.h"
#include "kernels/table.h"

namespace sinkstream::reference {

EmbeddingOp embedding;
NormOp norm;
LinearOp linear;
RopeOp rope;
AppendOp append;
AttentionOp attention;
EvictOp evict;
ActivationOp activation;
AddScaledOp add_scaled;
SoftCapOp soft_cap;
ClampOp clamp;
RouteOp route;
CombineOp combine;
ConvolveOp convolve;
RecurOp recur;  // in no table yet
LogitsOp logits;
SampleOp sample;

}  // namespace sinkstream::reference
