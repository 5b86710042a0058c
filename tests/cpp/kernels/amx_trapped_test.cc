// The body of the amx table with the tile unit's own instructions, as the compiler orders them: on
// the real unit where the processor has one, otherwise trapped (tile_trap.inl).
#if defined(__x86_64__)
#include <gtest/gtest.h>
#include <signal.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "common/check.h"
#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/emulated_lanes.h"
#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "probes/peak.h"

namespace sinkstream {
namespace {

#include "kernels/simd_avx512_emulated.inl"

namespace emulated {
#include "kernels/tiles_emulated.inl"

#include "kernels/tile_trap.inl"
}  // namespace emulated

#include "kernels/cpu/linear/amx_instructions.inl"

void linear_without_tiles(const LinearArgs& args, const Launch& launch) {
  reference_kernels().linear(args, launch);
}

#include "kernels/cpu/linear/amx.inl"

std::vector<float> outputs(LinearOp* linear, const Matrix& matrix, int64_t tokens, InputType type) {
  ThreadPool pool(1);
  const std::vector<float> input = random_floats(tokens * matrix.cols, 2);
  const Panels scratch = make_panels(linear_scratch_bytes(tokens, matrix.cols, pool.threads()));
  std::vector<float> out(tokens * matrix.rows);
  const LinearPart part = {
      .weights = matrix.packed(), .out = out.data(), .out_stride = matrix.rows};
  linear({.input = input.data(),
          .input_stride = matrix.cols,
          .tokens = tokens,
          .cols = matrix.cols,
          .input_type = type,
          .parts = &part,
          .part_count = 1,
          .scratch = scratch.get()},
         {&pool});
  return out;
}

TEST(TrappedAmx, GivesTheBitsOfTheEmulatedTable) {
  std::optional<emulated::TileTrap> trap;
  if (!amx_kernels().supported()) trap.emplace();
  for (const Storage storage : kStorages) {
    if (storage == Storage::kF32 || storage == Storage::kF16) continue;
    for (const int64_t cols : some_cols(storage)) {
      const Matrix matrix = random_matrix(storage, 17, cols, 1);
      for (const int64_t tokens : {1, 2, 3, 5, 9, 17, 40, 65}) {
        for (const InputType type : {InputType::kBFloat16, InputType::kInt8}) {
          const std::vector<float> expected =
              outputs(amx_emulated_kernels().linear, matrix, tokens, type);
          const std::vector<float> actual = outputs(linear_amx, matrix, tokens, type);
          ASSERT_TRUE(same_bits(actual.data(), expected.data(), tokens * 17))
              << name_of(matrix.packed().type) << " cols " << cols << " tokens " << tokens
              << " input " << name_of(type);
        }
      }
    }
  }
}

// On the real unit products are not counted; it shows that the unit runs the loop as compiled.
TEST(TrappedAmx, ThePeakOfTilesIsOfAsManyProductsAsWereAskedFor) {
  std::optional<emulated::TileTrap> trap;
  if (!amx_kernels().supported()) trap.emplace();
  ThreadPool pool(1);
  const int64_t before = emulated::trapped_products;
  const Peak peak = peak_rate(&pool, 61, PeakUnit::kTiles);
  EXPECT_EQ(std::string(peak.instruction), "tdpbf16ps, 16 x 16 x 32");
  EXPECT_GT(peak.rate, 0);
  if (trap) {
    EXPECT_EQ(emulated::trapped_products - before, 60) << "whole rounds of six";
    EXPECT_FALSE(emulated::tiles::unit().is_configured) << "left for other programs to save";
  }
}

}  // namespace
}  // namespace sinkstream
#endif
