// The kernel tables of the small build in which mistakes are planted: `generic`, from two files so
// that a mistake in attention does not recompile matrix products, and `reference`. Beside them
// stand the emulated `avx512` and `amx`. Tables of wide instructions themselves are not there, as
// on a processor that lacks them.
#include <cmath>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/kernels.h"

namespace sinkstream {

Kernels stream_ops();

namespace {

#include "kernels/cpu/simd_generic.inl"

#include "kernels/cpu/activation.inl"
#include "kernels/cpu/embedding.inl"
#include "kernels/cpu/linear/linear.inl"
#include "kernels/cpu/rms_norm.inl"

Kernels generic() {
  Kernels table = stream_ops();
  table.name = "generic";
  table.supported = [] { return true; };
  table.embedding = embedding;
  table.rms_norm = rms_norm;
  table.linear = linear_fma;
  table.swiglu = swiglu;
  return table;
}

Kernels absent(const char* name) {
  Kernels table;
  table.name = name;
  table.supported = [] { return false; };
  return table;
}

}  // namespace

const Kernels& generic_kernels() {
  static const Kernels table = generic();
  return table;
}

const Kernels& avx2_kernels() {
  static const Kernels table = absent("avx2");
  return table;
}

const Kernels& avx512_kernels() {
  static const Kernels table = absent("avx512");
  return table;
}

const Kernels& amx_kernels() {
  static const Kernels table = absent("amx");
  return table;
}

}  // namespace sinkstream
