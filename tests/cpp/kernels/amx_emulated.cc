// The amx table over an emulated tile unit and emulated vectors, for tests only: the same body as
// csrc/kernels/cpu/amx.cc.
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/emulated_lanes.h"
#include "kernels/tables.h"

namespace sinkstream {
namespace {

#include "kernels/simd_avx512_emulated.inl"

#include "kernels/tiles_emulated.inl"

void linear_without_tiles(const LinearArgs& args, const Launch& launch) {
  avx512_emulated_kernels().linear(args, launch);
}

#include "kernels/cpu/linear/amx.inl"

// A call must release the tile registers.
void linear_and_release(const LinearArgs& args, const Launch& launch) {
  linear_amx(args, launch);
  SINKSTREAM_CHECK(!tiles::unit().is_configured, "the tile unit is still configured");
}

bool is_supported() { return true; }

}  // namespace

const Kernels& amx_emulated_kernels() {
  static constexpr Kernels table = {
      .name = "amx_emulated",
      .supported = is_supported,
      .linear = linear_and_release,
      .native_input = InputType::kBFloat16,
  };
  return table;
}

}  // namespace sinkstream
