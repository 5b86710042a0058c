#include "model/cuda_weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/errors.h"
#include "cuda/emulated_card.h"
#include "model/random_decoder.h"

namespace sinkstream {
namespace {

// More rows than one thread takes at a time, and parts that begin within a tile.
TEST(CudaWeights, AreTheSameHoweverManyThreadsBringThem) {
  DecoderSpec spec = small_spec();
  spec.vocab_size = 2500;
  spec.intermediate_size = 1100;
  const RandomDecoder model(generic_kernels(), 1, {}, spec);
  const cuda::Runtime& runtime = cuda::emulated_plugin().runtime;
  const CudaWeights alone = copy_to_card(spec, model.packed(), runtime, nullptr, nullptr);
  ThreadPool pool(3);
  const CudaWeights together = copy_to_card(spec, model.packed(), runtime, nullptr, &pool);
  ASSERT_EQ(together.bytes, alone.bytes);
  EXPECT_EQ(std::memcmp(together.memory.get(), alone.memory.get(), alone.bytes), 0);
  // The last row of a stack of parts is the last part's.
  const cuda::TiledMatrix& gate_up = alone.layers.back().gate_up;
  ASSERT_EQ(gate_up.rows, 2 * spec.intermediate_size);
  const std::vector<float>& up = model.weights.at("layers.1.up");
  for (int64_t col = 0; col < spec.hidden_size; ++col) {
    const int64_t row = gate_up.rows - 1;
    const std::byte* tile = gate_up.tile(row / cuda::kTileRows, col / cuda::kTileCols);
    float number;
    const auto place = cuda::place_in_tile(gate_up.type, static_cast<int>(row % cuda::kTileRows),
                                           static_cast<int>(col % cuda::kTileCols));
    std::memcpy(&number, tile + place.offset, sizeof(number));
    ASSERT_EQ(number, up[(spec.intermediate_size - 1) * spec.hidden_size + col]);
  }
}

TEST(CudaWeights, OfMapsThatReadTheSameInputHaveOneType) {
  const RandomDecoder model(generic_kernels(), 1, {});
  DecoderWeights weights = model.packed();
  weights.layers[0].v.type = WeightType::kFloat16;
  EXPECT_THROW(copy_to_card(model.spec, weights, cuda::emulated_plugin().runtime, nullptr, nullptr),
               CheckpointError);
}

}  // namespace
}  // namespace sinkstream
