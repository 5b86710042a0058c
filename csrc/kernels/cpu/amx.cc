// The table for x86-64 with AMX-TILE, AMX-BF16 and AMX-INT8, in addition to what avx512 needs. It
// has only `linear`; the other ops, and products that do not use the tile unit, are avx512's.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/table.h"

namespace sinkstream {
namespace {

#include "kernels/cpu/simd_avx512.inl"

#include "kernels/cpu/linear/amx_instructions.inl"

void linear_without_tiles(const LinearArgs& args, const Launch& launch) {
  avx512_kernels().linear(args, launch);
}

#include "kernels/cpu/linear/amx.inl"

// Linux grants the tile registers only on request, because they make signal frames 8 KB larger; it
// refuses if a thread's alternate stack is too small for that. The grant holds for all threads and
// cannot be revoked, so a process requests it once. Returns 0, or the error number of the refusal.
int ask_for_registers() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of Linux 5.16 and newer
  constexpr long kTileRegisters = 18;          // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileRegisters) == 0 ? 0 : errno;
}

bool has_instructions() {
  return avx512_kernels().supported() && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8");
}

const char* refusal() {
  if (!has_instructions()) return nullptr;
  static const int error = ask_for_registers();
  switch (error) {
    case 0: return nullptr;
    case ENOSPC: return "a thread's alternate signal stack is too small for tile registers";
    default: return "the kernel does not grant this process tile registers";
  }
}

bool is_supported() { return has_instructions() && refusal() == nullptr; }

}  // namespace

const Kernels& amx_kernels() {
  static constexpr Kernels table = {
      .name = "amx",
      .supported = is_supported,
      .refusal = refusal,
      .linear = linear_amx,
      .native_input = InputType::kBFloat16,
      // A tile has 16 rows. Five of them take 1.6 times as long as one, and 13 take 1.9 times.
      .prompt_tokens_per_decode_step = 10,
  };
  return table;
}

}  // namespace sinkstream
