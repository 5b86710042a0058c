// The ops that know about keys and places, in plain code: what most planted mistakes recompile.
#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/kernels.h"

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_generic.inl"

#include "kernels/cpu/attention/append.inl"
#include "kernels/cpu/attention/attention.inl"
#include "kernels/cpu/attention/evict.inl"
#include "kernels/cpu/attention/rope.inl"

}  // namespace

Kernels stream_ops() {
  return {.rope = rope, .append = append, .attention = attention, .evict = evict};
}

}  // namespace sinkstream
