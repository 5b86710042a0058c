#include "probes/peak.h"

#include <chrono>

namespace sinkstream {
namespace {

// Independent instructions of a round. For vectors they hide a latency of six cycles at two
// instructions per cycle, for tiles one of 52 cycles at one instruction per sixteen cycles.
constexpr int kChains = 12;
constexpr int kTileChains = 6;

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

// What ldtilecfg reads: eight registers of 16 rows of 64 bytes.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t reserved[15] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);

// Registers 0 to 5 accumulate the products of 6 and 7. Configuring them sets all to 0.
void multiply_tiles(int64_t rounds) {
  const TileShapes shapes;
  asm volatile("ldtilecfg %0" : : "m"(shapes));
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile(
        "tdpbf16ps %tmm7, %tmm6, %tmm0\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm1\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm2\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm3\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm4\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm5\n");
  }
  asm volatile("tilerelease");
}

#endif

// Four lanes, with any instructions that the compiler chooses.
void multiply_add_anywhere(int64_t rounds) {
  using Floats = float __attribute__((vector_size(16)));
  Floats sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i)
    sums[i] = Floats{} + static_cast<float>(i);  // or the compiler merges them
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
  int chains;           // instructions per round
  void (*run)(int64_t rounds);
};

Way way_of(PeakUnit unit) {
#if defined(__x86_64__)
  if (unit == PeakUnit::kTiles) {
    return {"tdpbf16ps, 16 x 16 x 32", 2 * 16 * 16 * 32, kTileChains, multiply_tiles};
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16")) {
    return {"vdpbf16ps, 512 bits", 64, kChains, dot};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"vfmadd231ps, 256 bits", 16, kChains, multiply_add};
  }
#endif
  return {"a multiplication and an addition, 128 bits", 8, kChains, multiply_add_anywhere};
}

}  // namespace

Peak peak_rate(ThreadPool* pool, int64_t instructions, PeakUnit unit) {
  using Clock = std::chrono::steady_clock;
  const Way way = way_of(unit);
  const int64_t rounds = instructions / way.chains;
  const Clock::time_point start = Clock::now();
  pool->run(pool->threads(), [&](int64_t, int) { way.run(rounds); });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const auto done = static_cast<double>(pool->threads() * rounds * way.chains);
  return {way.instruction, done * way.per_instruction / seconds};
}

}  // namespace sinkstream
