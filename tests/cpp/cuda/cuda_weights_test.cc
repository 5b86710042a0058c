#include "model/cuda/weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cuda/emulated_gpu.h"
#include "model/random_decoder.h"

namespace sinkstream {
namespace {

// More rows than one thread tiles at a time, and parts that begin within a tile.
TEST(CudaWeights, AreTheSameHoweverManyThreadsBringThem) {
  DecoderSpec spec = small_spec();
  spec.vocab_size = 2500;
  const int64_t inner = spec.blocks.front().mlp.intermediate_size = 1100;
  const RandomDecoder model(generic_kernels(), 1, {}, spec);
  const cuda::Runtime& runtime = cuda::emulated_plugin().runtime;
  const CudaWeights alone = copy_to_gpu(spec, model.packed(), runtime, nullptr, nullptr);
  ThreadPool pool(3);
  const CudaWeights together = copy_to_gpu(spec, model.packed(), runtime, nullptr, &pool);
  ASSERT_EQ(together.bytes, alone.bytes);
  EXPECT_EQ(std::memcmp(together.memory.get(), alone.memory.get(), alone.bytes), 0);
  // The last row of a stack of parts is the last part's.
  ASSERT_EQ(alone.layers.back().gate_up.parts.size(), 1u);
  const cuda::TiledMatrix& gate_up = alone.layers.back().gate_up.parts[0];
  ASSERT_EQ(gate_up.rows, 2 * inner);
  const std::vector<float>& up = model.weights.at("layers.1.up");
  for (int64_t col = 0; col < spec.hidden_size; ++col) {
    const int64_t row = gate_up.rows - 1;
    const std::byte* tile =
        gate_up.tile(format_of(gate_up.type), row / cuda::kTileRows, col / cuda::kTileCols);
    float number;
    const auto at = cuda::offset_in_plane(32, static_cast<int>(row % cuda::kTileRows),
                                          static_cast<int>(col % cuda::kTileCols));
    std::memcpy(&number, tile + at.byte, sizeof(number));
    ASSERT_EQ(number, up[(inner - 1) * spec.hidden_size + col]);
  }
}

// q and k stay one matrix, v is another one; gate and up are two.
TEST(CudaWeights, OfMapsThatReadTheSameInputKeepTheirTypes) {
  const RandomDecoder model(generic_kernels(), 1, {}, small_spec(),
                            {{"layers.0.v", Storage::kF16}, {"layers.0.gate", Storage::kBF16}});
  const DecoderSpec& spec = model.spec;
  const CudaWeights weights =
      copy_to_gpu(spec, model.packed(), cuda::emulated_plugin().runtime, nullptr, nullptr);
  const auto expect_parts = [&](const CudaMap& map, std::vector<WeightType> types,
                                std::vector<int64_t> rows) {
    ASSERT_EQ(map.parts.size(), types.size());
    for (size_t i = 0; i < types.size(); ++i) {
      EXPECT_EQ(map.parts[i].type, types[i]);
      EXPECT_EQ(map.parts[i].rows, rows[i]);
      EXPECT_EQ(map.parts[i].cols, spec.hidden_size);
    }
    EXPECT_EQ(map.splits(), cuda::linear_splits(map.rows(), spec.hidden_size));
  };
  const int64_t q = spec.query_size(), kv = spec.kv_size(), inner = spec.most_intermediate_size();
  expect_parts(weights.layers[0].qkv, {WeightType::kFloat32, WeightType::kFloat16}, {q + kv, kv});
  expect_parts(weights.layers[0].gate_up, {WeightType::kBFloat16, WeightType::kFloat32},
               {inner, inner});
  expect_parts(weights.layers[1].qkv, {WeightType::kFloat32}, {q + 2 * kv});
  expect_parts(weights.layers[1].gate_up, {WeightType::kFloat32}, {2 * inner});
}

}  // namespace
}  // namespace sinkstream
