// Which weights linear prefetches: the body of the avx512 table in plain code, with its prefetches
// recorded instead of executed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/emulated_lanes.h"
#include "kernels/matrix.h"
#include "kernels/table.h"
#include "lanes.h"

namespace sinkstream {
namespace {

struct Request {
  const std::byte* address;
  int locality;  // 3 is to L1, 2 to L2
};
std::vector<Request> requests;  // in program order

void record(const void* address, int locality) {
  requests.push_back({static_cast<const std::byte*>(address), locality});
}

#define __builtin_prefetch(address, is_write, locality) record(address, locality)

#include "kernels/simd_avx512_emulated.inl"

#include "kernels/cpu/linear/dot.inl"
#include "kernels/cpu/linear/linear.inl"

#undef __builtin_prefetch

// Matrices of the given numbers of panels.
std::vector<Matrix> matrices_of(Storage storage, const std::vector<int64_t>& panels) {
  std::vector<Matrix> matrices;
  for (const int64_t count : panels) {
    matrices.push_back(random_matrix(storage, kPanelRows * count, whole_blocks(storage, 576), 1));
  }
  return matrices;
}

// One call on one thread; records its prefetches.
void call(const std::vector<Matrix>& matrices, int64_t tokens, InputType input_type) {
  ThreadPool pool(1);
  const int64_t cols = matrices[0].cols;
  const std::vector<float> input(tokens * cols);
  const Panels scratch = make_panels(linear_scratch_bytes(tokens, cols, 1));
  std::vector<std::vector<float>> outs;
  std::vector<LinearPart> parts;
  for (const Matrix& matrix : matrices) {
    outs.emplace_back(tokens * matrix.rows);
    parts.push_back(
        {.weights = matrix.packed(), .out = outs.back().data(), .out_stride = matrix.rows});
  }
  requests.clear();
  linear_dot({.input = input.data(),
              .input_stride = cols,
              .tokens = tokens,
              .cols = cols,
              .input_type = input_type,
              .parts = parts.data(),
              .part_count = static_cast<int64_t>(parts.size()),
              .scratch = scratch.get()},
             {&pool});
}

// How often the last call prefetched each line of a matrix.
std::vector<int> requests_of_lines(const Matrix& matrix) {
  const PackedMatrix weights = matrix.packed();
  const int64_t bytes = packed_bytes(weights.type, matrix.rows, matrix.cols);
  std::vector<int> found(divide_up(bytes, kLineBytes));
  for (const Request& request : requests) {
    const int64_t at = request.address - weights.panels;
    if (at >= 0 && at < bytes) ++found[at / kLineBytes];
  }
  return found;
}

// The first lines of a matrix, which cannot be prefetched.
int64_t first_lines(const Matrix& matrix) {
  const PanelFormat format = format_of(matrix.packed().type);
  const int64_t distance =
      std::max(prefetch_distance(format, true), prefetch_distance(format, false));
  return std::max(distance, kMostUnits * block_bytes(format, kUnit)) / kLineBytes;
}

class LinearPrefetch : public testing::TestWithParam<InputType> {};

TEST_P(LinearPrefetch, PrefetchesEveryLineWhateverTheTokens) {
  for (const Storage storage : kStorages) {
    const std::vector<Matrix> matrices = matrices_of(storage, {50});
    auto index = static_cast<int64_t>(storage) + static_cast<int64_t>(GetParam());
    for (const int64_t tokens : {1, 2, 4, 5, 7, 8, 9, 12, 13, 16, 24, 31, 32, 33, 64, 130}) {
      if (!runs_case(3, {index++})) continue;
      call(matrices, tokens, GetParam());
      const int64_t first = requests.at(0).address - matrices[0].packed().panels;
      ASSERT_GE(first, 4096) << name_of(matrices[0].packed().type) << " tokens " << tokens;
      const std::vector<int> found = requests_of_lines(matrices[0]);
      for (size_t line = first_lines(matrices[0]); line < found.size(); ++line) {
        ASSERT_GE(found[line], 1) << name_of(matrices[0].packed().type) << " tokens " << tokens
                                  << " line " << line;
        // A line that holds the border of two units or chunks is prefetched for both.
        ASSERT_LE(found[line], 2) << name_of(matrices[0].packed().type) << " tokens " << tokens
                                  << " line " << line;
      }
    }
  }
}

TEST_P(LinearPrefetch, PrefetchesToTheFasterCacheLevel) {
  for (const Storage storage : {Storage::kBF16, Storage::kQ8_0, Storage::kQ4_0}) {
    for (const int64_t tokens : {1, 2, 8, 32}) {
      call(matrices_of(storage, {4}), tokens, GetParam());
      const bool waits = storage == Storage::kBF16 && tokens == 1;
      const int expected = kPrefetchToL1 && !waits ? 3 : 2;
      ASSERT_FALSE(requests.empty());
      for (const Request& request : requests) ASSERT_EQ(request.locality, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, LinearPrefetch,
                         testing::Values(InputType::kFloat32, InputType::kBFloat16,
                                         InputType::kInt16, InputType::kInt8),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(PrefetchLines, CoverAPieceOnceAtAnEvenPace) {
  const std::vector<std::byte> memory(1 << 16);
  for (const int64_t bytes : {1, 64, 65, 5184, 9792, 18432}) {
    for (const int64_t parts : {1, 2, 3, 7, 28, 64}) {
      for (const int64_t steps : {0, 1, 18}) {
        const PrefetchParts lines = prefetch_parts(memory.data(), bytes, parts, steps);
        requests.clear();
        for (int64_t part = 0; part < parts; ++part) {
          PrefetchLines prefetch = lines.part(part);
          for (int64_t step = 0; step < std::max<int64_t>(steps, 1); ++step) {
            const size_t before = requests.size();
            prefetch.step();
            const int64_t most = divide_up(divide_up(bytes, kLineBytes), parts);
            ASSERT_LE(requests.size() - before, divide_up(most, std::max<int64_t>(steps, 1)));
          }
        }
        ASSERT_EQ(static_cast<int64_t>(requests.size()), divide_up(bytes, kLineBytes))
            << bytes << " bytes " << parts << " parts " << steps << " steps";
        for (size_t i = 0; i < requests.size(); ++i) {
          ASSERT_EQ(requests[i].address, memory.data() + i * kLineBytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sinkstream
