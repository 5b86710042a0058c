// The tables of wide instructions for the small build in which mistakes are planted: absent, as on
// a processor that lacks them. That build has `reference`, `generic`, `avx2`, and the emulated
// `avx512` and `amx`.
#include "kernels/table.h"

namespace sinkstream {

namespace {

constexpr Kernels absent(const char* name) {
  return {.name = name, .supported = [] { return false; }};
}

}  // namespace

const Kernels& avx512_kernels() {
  static constexpr Kernels table = absent("avx512");
  return table;
}

const Kernels& amx_kernels() {
  static constexpr Kernels table = absent("amx");
  return table;
}

}  // namespace sinkstream
