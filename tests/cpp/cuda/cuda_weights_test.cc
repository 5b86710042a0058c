#include "model/cuda/weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/errors.h"

#include "cuda/counting_gpu.h"
#include "cuda/lazy_gpu.h"
#include "model/random_decoder.h"

namespace sinkstream {
namespace {

// Parts that begin within a tile; a buffer holds all of the weights, or no more than a tile.
TEST(CudaWeights, AreTheSameInBuffersOfAnySizeAndOfAnyThreads) {
  DecoderSpec spec = small_spec();
  spec.vocab_size = 2500;
  const int64_t inner = spec.blocks.front().dense().intermediate_size = 1100;
  const RandomDecoder model(generic_kernels(), 1, {}, spec);
  const cuda::Runtime& runtime = cuda::emulated_plugin().runtime;
  const CudaWeights alone = copy_to_gpu(spec, model.packed(), runtime, nullptr, nullptr);
  ThreadPool pool(3);
  for (const int64_t buffer_bytes : {int64_t{1}, int64_t{50'000}, kUploadBytes}) {
    const CudaWeights together =
        copy_to_gpu(spec, model.packed(), runtime, nullptr, &pool, buffer_bytes);
    ASSERT_EQ(together.bytes, alone.bytes);
    EXPECT_EQ(std::memcmp(together.memory.get(), alone.memory.get(), alone.bytes), 0);
  }
  // The last row of a stack of parts is the last part's.
  ASSERT_EQ(alone.layers.back().mlp.gate_up.parts.size(), 1u);
  const cuda::TiledMatrix& gate_up = alone.layers.back().mlp.gate_up.parts[0];
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

// The lazy GPU copies a buffer only when the host waits for it: one that is written too early
// shows.
TEST(CudaWeights, AreCopiedWhileTheHostWritesTheNextBuffer) {
  const RandomDecoder model(generic_kernels(), 1, {}, small_spec());
  const CudaWeights expected =
      copy_to_gpu(model.spec, model.packed(), cuda::emulated_plugin().runtime, nullptr, nullptr);
  constexpr int64_t kBufferBytes = 20'000;
  cuda::LazyGpu gpu;
  const CudaWeights copied =
      copy_to_gpu(model.spec, model.packed(), gpu.plugin().runtime, nullptr, nullptr, kBufferBytes);
  const cuda::CallCounts counts = gpu.take_counts();
  EXPECT_EQ(std::memcmp(copied.memory.get(), expected.memory.get(), expected.bytes), 0);
  EXPECT_GE(counts.copies, expected.bytes / kBufferBytes);
  EXPECT_EQ(counts.records, counts.copies);
  EXPECT_EQ(counts.awaits, counts.copies - 1) << "the second buffer is written at once";
  EXPECT_LE(counts.synchronizes, 2) << "at the end only";
}

TEST(CudaWeights, PassThroughTwoBuffers) {
  const RandomDecoder model(generic_kernels(), 1, {}, small_spec());
  const cuda::CountingGpu gpu;
  constexpr int64_t kBufferBytes = 20'000;
  const CudaWeights copied =
      copy_to_gpu(model.spec, model.packed(), gpu.runtime(), nullptr, nullptr, kBufferBytes);
  EXPECT_EQ(gpu.bytes(), copied.bytes);
  EXPECT_GT(copied.bytes, 3 * kBufferBytes);
  EXPECT_EQ(gpu.pinned_bytes(), 0);
  EXPECT_EQ(gpu.most_pinned_bytes(), 2 * kBufferBytes);
}

// Whose calls fail from some call on, and whose copies take until the host waits.
struct FailingGpu : cuda::CountingGpu {
  static inline int64_t calls_left;
  static inline bool is_copying;
  static inline void (*free_pinned)(std::byte* memory);

  static cuda::Status next() { return calls_left-- > 0 ? cuda::kSuccess : 1; }

  cuda::Runtime failing_from(int64_t call) {
    calls_left = call;
    is_copying = false;
    cuda::Runtime failing = runtime();
    free_pinned = failing.free_pinned;
    failing.copy = [](void* to, const void* from, int64_t bytes, cuda::Stream stream) {
      if (next() != cuda::kSuccess) return 1;
      is_copying = true;
      return cuda::emulated_plugin().runtime.copy(to, from, bytes, stream);
    };
    failing.record = [](cuda::Event, cuda::Stream) { return next(); };
    failing.await = [](cuda::Event) { return next(); };
    failing.new_event = [](cuda::Event* event) {
      *event = nullptr;
      return next();
    };
    failing.synchronize = [](cuda::Stream) {
      is_copying = false;
      return next();
    };
    failing.free_pinned = [](std::byte* memory) {
      EXPECT_FALSE(is_copying) << "the GPU still reads what is freed";
      free_pinned(memory);
    };
    return failing;
  }
};

TEST(CudaWeights, ThatCannotBeCopiedLeaveNothingAllocated) {
  const RandomDecoder model(generic_kernels(), 1, {}, small_spec());
  FailingGpu gpu;
  int64_t failed = 0;
  for (;; ++failed) {
    const cuda::Runtime runtime = gpu.failing_from(failed);
    try {
      copy_to_gpu(model.spec, model.packed(), runtime, nullptr, nullptr, 20'000);
      break;
    } catch (const DeviceError&) {
    }
    EXPECT_EQ(gpu.bytes(), 0) << "after " << failed << " calls";
    EXPECT_EQ(gpu.pinned_bytes(), 0) << "after " << failed << " calls";
  }
  EXPECT_GT(failed, 10) << "copies, events and waits have failed one by one";
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
  const int64_t q = spec.most_query_size(), kv = spec.most_kv_size();
  const int64_t inner = spec.most_intermediate_size();
  expect_parts(weights.layers[0].qkv, {WeightType::kFloat32, WeightType::kFloat16}, {q + kv, kv});
  expect_parts(weights.layers[0].mlp.gate_up, {WeightType::kBFloat16, WeightType::kFloat32},
               {inner, inner});
  expect_parts(weights.layers[1].qkv, {WeightType::kFloat32}, {q + 2 * kv});
  expect_parts(weights.layers[1].mlp.gate_up, {WeightType::kFloat32}, {2 * inner});
}

}  // namespace
}  // namespace sinkstream
