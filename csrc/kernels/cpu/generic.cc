// The table for any processor.
#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/table.h"

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_generic.inl"

#include "kernels/cpu/table.inl"

bool is_supported() { return true; }

}  // namespace

const Kernels& generic_kernels() {
  static constexpr Kernels table =
      table_of("generic", is_supported, linear_fma, InputType::kFloat32);
  return table;
}

}  // namespace sinkstream
