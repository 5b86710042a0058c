// Which weights linear asks memory for before it reads them: with the body of the avx512 table in
// plain code, whose requests are written down instead of made.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "common/processor.h"
#include "kernels/kernels.h"
#include "kernels/matrix.h"

namespace sinkstream {
namespace {

std::vector<const std::byte*> requests;  // in the order in which they are made

void write_down(const void* address) { requests.push_back(static_cast<const std::byte*>(address)); }

#define __builtin_prefetch(address, ...) write_down(address)

#include "kernels/simd_avx512_emulated.inl"

#include "kernels/cpu/linear.inl"
#include "kernels/cpu/linear_dot.inl"

#undef __builtin_prefetch

struct Shape {
  Storage storage;
  int64_t tokens;
  int64_t rows;
  int64_t cols;
};

// How often one call of one thread asks for each line of a matrix; what lies behind it aside.
std::vector<int> requests_of_lines(const Shape& shape, InputType input_type) {
  const Matrix matrix = random_matrix(shape.storage, shape.rows, shape.cols, 1);
  ThreadPool pool(1);
  const std::vector<float> input(shape.tokens * shape.cols);
  const Panels scratch = make_panels(linear_scratch_bytes(shape.tokens, shape.cols, 1));
  std::vector<float> out(shape.tokens * shape.rows);
  const PackedMatrix weights = matrix.packed();
  const LinearPart part = {.weights = weights, .out = out.data(), .out_stride = shape.rows};
  requests.clear();
  linear_dot({.input = input.data(),
              .input_stride = shape.cols,
              .tokens = shape.tokens,
              .cols = shape.cols,
              .input_type = input_type,
              .parts = &part,
              .part_count = 1,
              .scratch = scratch.get()},
             {&pool});
  std::vector<int> found(divide_up(packed_bytes(weights.type, shape.rows, shape.cols), kLineBytes));
  for (const std::byte* address : requests) {
    const int64_t line = (address - weights.panels) / kLineBytes;
    if (line < static_cast<int64_t>(found.size())) ++found[line];
  }
  return found;
}

// Nobody can ask ahead for what comes first.
int64_t first_asked(Storage storage) {
  const WeightType type = random_matrix(storage, kPanelRows, kGroup, 1).packed().type;
  return std::max(prefetch_bytes(type, true), prefetch_bytes(type, false)) / kLineBytes;
}

class LinearAhead : public testing::TestWithParam<InputType> {};

TEST_P(LinearAhead, AsksForEveryLineWhateverTheTiles) {
  for (const Storage storage : kStorages) {
    for (const int64_t tokens : {1, 2, 4, 5, 7, 8, 9, 12, 13, 16, 24, 31, 32, 33, 64}) {
      const Shape shape = {storage, tokens, kPanelRows * 50, 576};
      const std::vector<int> found = requests_of_lines(shape, GetParam());
      const int64_t rest = tokens % kMaxTile;
      const bool has_small = tokens > kMaxTile && rest > 0 && tile_size(rest) < kMaxTile;
      for (size_t line = first_asked(storage); line < found.size(); ++line) {
        ASSERT_GE(found[line], 1) << "storage " << int(storage) << " tokens " << tokens << " line "
                                  << line;
        // What is a little ahead of a new panel's end was asked for with it; a small tile asks for
        // what the first tile has asked for.
        ASSERT_LE(found[line], has_small ? 5 : 3)
            << "storage " << int(storage) << " tokens " << tokens << " line " << line;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, LinearAhead,
                         testing::Values(InputType::kFloat32, InputType::kBFloat16,
                                         InputType::kInt16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace sinkstream
