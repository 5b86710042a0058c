#include "device/peak_probe.h"

#include <chrono>

namespace sinkstream {
namespace {

// A round is so many instructions that do not wait for each other: enough to hide a latency of six
// cycles at two a cycle.
constexpr int kChains = 12;

#if defined(__x86_64__)

#define SINKSTREAM_REGISTERS                                                               \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

// clang-format off
#define SINKSTREAM_CHAINS(instruction, from, to)                                       \
  instruction from to "0\n" instruction from to "1\n" instruction from to "2\n"        \
  instruction from to "3\n" instruction from to "4\n" instruction from to "5\n"        \
  instruction from to "6\n" instruction from to "7\n" instruction from to "8\n"        \
  instruction from to "9\n" instruction from to "10\n" instruction from to "11\n"
// clang-format on

__attribute__((target("avx512f,avx512bf16"))) void dot(int64_t rounds) {
  asm volatile("vzeroall" ::: SINKSTREAM_REGISTERS);
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile(SINKSTREAM_CHAINS("vdpbf16ps ", "%%zmm12, %%zmm12, ", "%%zmm")::
                     : SINKSTREAM_REGISTERS);
  }
}

__attribute__((target("avx2,fma"))) void multiply_add(int64_t rounds) {
  asm volatile("vzeroall" ::: SINKSTREAM_REGISTERS);
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile(SINKSTREAM_CHAINS("vfmadd231ps ", "%%ymm12, %%ymm12, ", "%%ymm")::
                     : SINKSTREAM_REGISTERS);
  }
}

#undef SINKSTREAM_CHAINS
#undef SINKSTREAM_REGISTERS

#endif

// Four lanes, in whatever the compiler makes of them.
void multiply_add_anywhere(int64_t rounds) {
  using Floats = float __attribute__((vector_size(16)));
  Floats sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = Floats{} + static_cast<float>(i);  // or all are one
  Floats one = {1, 1, 1, 1};
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+m"(one));
    const Floats factor = one;
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + factor;
  }
  Floats total{};
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) total += sums[i];
  asm volatile("" : : "m"(total));
}

struct Way {
  const char* instruction;
  int per_instruction;  // multiplications and additions
  void (*run)(int64_t rounds);
};

Way best_way() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16")) {
    return {"vdpbf16ps, 512 bits", 64, dot};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"vfmadd231ps, 256 bits", 16, multiply_add};
  }
#endif
  return {"a multiplication and an addition, 128 bits", 8, multiply_add_anywhere};
}

}  // namespace

Peak peak_rate(ThreadPool* pool, int64_t instructions) {
  using Clock = std::chrono::steady_clock;
  const Way way = best_way();
  const int64_t rounds = instructions / kChains;
  const Clock::time_point start = Clock::now();
  pool->run(pool->threads(), [&](int64_t, int) { way.run(rounds); });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return {way.instruction,
          pool->threads() * static_cast<double>(rounds) * kChains * way.per_instruction / seconds};
}

}  // namespace sinkstream
