// The avx512 table in plain code, for tests only: the same bodies as csrc/kernels/cpu/avx512.cc.
#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/emulated_lanes.h"
#include "kernels/table.h"

namespace sinkstream {
namespace {

#include "kernels/simd_avx512_emulated.inl"

#include "kernels/cpu/linear/dot.inl"
#include "kernels/cpu/table.inl"

bool is_supported() { return true; }

}  // namespace

const Kernels& avx512_emulated_kernels() {
  static constexpr Kernels table =
      table_of("avx512_emulated", is_supported, linear_dot, InputType::kBFloat16);
  return table;
}

}  // namespace sinkstream
