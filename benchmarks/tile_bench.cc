// The time of the tile unit's instructions, alone and together: nanoseconds per product, on one
// thread. Registers are full: 16 rows of 64 bytes.
//
//   tile_bench
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "common/dtype.h"
#include "device/buffer.h"
#include "kernels/table.h"
#include "linear_call.h"

#if defined(__x86_64__)

namespace {

using namespace sinkstream;

#define SINKSTREAM_INLINE inline __attribute__((always_inline))

#include "kernels/cpu/linear/amx_instructions.inl"

constexpr int64_t kRegister = kTileRows * kTileRowBytes;

// Prints the best of nine runs of `body(i)`, divided by its `products`.
template <typename Body>
void measure(const char* what, int64_t repeats, int products, const Body& body) {
  double best = 1e9;
  for (int run = 0; run < 9; ++run) {
    const double start = now_s();
    for (int64_t i = 0; i < repeats; ++i) body(i);
    best = std::min(best, now_s() - start);
  }
  std::printf("%-60s %6.2f ns\n", what, best / static_cast<double>(repeats * products) * 1e9);
}

// Two registers of inputs times two of weights.
void two_by_two(const std::byte* inputs, const std::byte* weights) {
  tiles::load<6>(weights);
  tiles::load<4>(inputs);
  tiles::multiply<0, 4, 6>();
  tiles::load<5>(inputs + kRegister);
  tiles::multiply<1, 5, 6>();
  tiles::load<7>(weights + kRegister);
  tiles::multiply<2, 4, 7>();
  tiles::multiply<3, 5, 7>();
}

// Three registers of inputs times one of weights.
void three_by_one(const std::byte* inputs, const std::byte* weights) {
  tiles::load<6>(weights);
  tiles::load<3>(inputs);
  tiles::multiply<0, 3, 6>();
  tiles::load<4>(inputs + kRegister);
  tiles::multiply<1, 4, 6>();
  tiles::load<5>(inputs + 2 * kRegister);
  tiles::multiply<2, 5, 6>();
}

// What a group of codes needs in addition to its vectors.
void one_and_store(const std::byte* inputs, const std::byte* weights, std::byte* sums) {
  tiles::clear<0>();
  tiles::load<6>(weights);
  tiles::load<4>(inputs);
  tiles::multiply<0, 4, 6>();
  tiles::store<0>(sums);
}

void measure_all() {
  TileShapes shapes;
  for (int i = 0; i < kTileRegisters; ++i) {
    shapes.row_bytes[i] = kTileRowBytes;
    shapes.rows[i] = kTileRows;
  }
  constexpr int64_t kInputs = int64_t{1} << 20;  // too large for L1
  const Buffer memory(kInputs + 8 * kRegister, "registers");
  std::memset(memory.data(), 0, kInputs + 8 * kRegister);
  std::byte* const near = memory.data();
  const std::byte* const far = memory.data() + 8 * kRegister;
  const auto at = [&](int64_t i, int64_t step) { return far + i * step % (kInputs - step); };
  constexpr int64_t kRepeats = 200000;
  tiles::configure(shapes);
  measure("load from L1", kRepeats, 1, [&](int64_t) { tiles::load<4>(near); });
  measure("load from L2", kRepeats, 1, [&](int64_t i) { tiles::load<4>(at(i, kRegister)); });
  measure("store", kRepeats, 1, [&](int64_t) { tiles::store<0>(near); });
  measure("product, four in flight", kRepeats, 4, [](int64_t) {
    tiles::multiply<0, 4, 6>();
    tiles::multiply<1, 4, 6>();
    tiles::multiply<2, 4, 6>();
    tiles::multiply<3, 4, 6>();
  });
  measure("two by two, from L1", kRepeats, 4,
          [&](int64_t) { two_by_two(near, near + 2 * kRegister); });
  measure("two by two, inputs from L2", kRepeats, 4,
          [&](int64_t i) { two_by_two(at(i, 2 * kRegister), near); });
  measure("three by one, from L1", kRepeats, 3,
          [&](int64_t) { three_by_one(near, near + 3 * kRegister); });
  measure("three by one, inputs from L2", kRepeats, 3,
          [&](int64_t i) { three_by_one(at(i, 3 * kRegister), near); });
  measure("one with its sums stored, from L1", kRepeats, 1,
          [&](int64_t) { one_and_store(near, near + kRegister, near + 2 * kRegister); });
  measure("one with its sums stored, inputs from L2", kRepeats, 1,
          [&](int64_t i) { one_and_store(at(i, kRegister), near, near + kRegister); });
  tiles::release();
}

}  // namespace

int main() {
  if (!sinkstream::amx_kernels().supported()) {
    std::fprintf(stderr, "tile_bench: this processor has no tile unit\n");
    return 1;
  }
  measure_all();
}

#else

int main() {
  std::fprintf(stderr, "tile_bench: this processor has no tile unit\n");
  return 1;
}

#endif
