// A captured step is the same step, replayed on the current contents of device memory.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cuda/gpu.h"

#include "cuda/device_array.h"
#include "cuda/emulated_gpu.h"
#include "cuda/tiles.h"

namespace sinkstream::cuda {
namespace {

// The smallest loop through the GPU: an embedding, a norm, a map to logits and sampling, whose
// tokens start the next step.
struct TokenLoop {
  static constexpr int64_t kVocab = 97, kHidden = 64, kRows = 3;

  TokenLoop() {
    std::mt19937 random(5);
    for (int32_t r = 0; r < kRows; ++r) {
      ids[r] = sampled_by(kRows - 1 - r);
      sampled_ids[r] = static_cast<int32_t>(random() % kVocab);
      tokens[r] = {.sequence = r};
      params[r] = {.seed = random(), .seat = -1 - ids[r]};  // different from its row
    }
    for (int64_t i = 0; i < kHidden; ++i) weight[i] = 1;
  }

  // What changes between steps; the host writes it before each.
  void set_index(int64_t index) {
    for (int64_t r = 0; r < kRows; ++r) tokens[r].index = index + r;
  }

  Status step() {
    const Plugin& plugin = emulated_plugin();
    const Ops& ops = plugin.ops;
    const int32_t splits = linear_splits(kVocab, kHidden);
    const Partials logits = {partials.get(), splits, kRows, kVocab + 3};
    Status status = ops.embedding({.ids = ids.get(),
                                   .rows = kRows,
                                   .table = table.matrix,
                                   .out = hidden.get(),
                                   .sampled = sampled_ids.get()},
                                  nullptr);
    if (status != kSuccess) return status;
    status = ops.norm({.hidden = hidden.get(),
                       .norms = {{weight.get(), nullptr}, {}},
                       .outs = {normed.get(), nullptr},
                       .eps = 1e-5f,
                       .rows = kRows,
                       .dim = kHidden},
                      nullptr);
    if (status != kSuccess) return status;
    status = ops.linear({.weights = output.matrix,
                         .splits = splits,
                         .input = normed.get(),
                         .input_stride = kHidden,
                         .rows = kRows,
                         .out = partials.get(),
                         .out_rows = kRows,
                         .out_stride = kVocab + 3},
                        nullptr);
    if (status != kSuccess) return status;
    status = ops.logits({.logits = logits,
                         .rows = kRows,
                         .vocab = kVocab,
                         .tokens = tokens.get(),
                         .params = params.get(),
                         .bias = nullptr,
                         .penalties = {},
                         .scratch = scratch.get()},
                        nullptr);
    if (status != kSuccess) return status;
    return ops.sample({.logits = logits,
                       .rows = kRows,
                       .vocab = kVocab,
                       .tokens = tokens.get(),
                       .params = params.get(),
                       .penalties = {},
                       .scratch = scratch.get(),
                       .ids = sampled_ids.get(),
                       .sampled = sampled.get()},
                      nullptr);
  }

  std::vector<int32_t> tokens_sampled() const {
    return {sampled_ids.get(), sampled_ids.get() + kRows};
  }

  Tiles table = tiles_of(random_matrix(Storage::kBF16, kVocab, kHidden, 1));
  Tiles output = tiles_of(random_matrix(Storage::kQ8_0, kVocab, kHidden, 2));
  DeviceArray<int32_t> ids{kRows}, sampled_ids{kRows};
  DeviceArray<TokenRow> tokens{kRows};
  DeviceArray<SamplingRow> params{kRows};
  DeviceArray<float> weight{kHidden}, hidden{kRows * kHidden};
  DeviceArray<uint16_t> normed{kRows * kHidden};
  DeviceArray<float> partials{kMostSplits * kRows * (kVocab + 3)};
  DeviceArray<std::byte> scratch{sampling_scratch_bytes(kVocab, kRows)};
  DeviceArray<SampledRow> sampled{kRows};
};

TEST(Capture, ReplaysAStepOverWhatLiesInMemoryThen) {
  const Runtime& runtime = emulated_plugin().runtime;
  TokenLoop direct, captured;
  ASSERT_EQ(runtime.begin_capture(nullptr), kSuccess);
  ASSERT_EQ(captured.step(), kSuccess);
  Graph graph = nullptr;
  ASSERT_EQ(runtime.end_capture(nullptr, &graph), kSuccess);
  EXPECT_TRUE(captured.hidden.is_untouched(0, captured.hidden.count())) << "it ran during capture";

  std::vector<std::vector<int32_t>> steps;
  for (int64_t index = 0; index < 12; ++index) {
    direct.set_index(index);
    captured.set_index(index);
    ASSERT_EQ(direct.step(), kSuccess);
    ASSERT_EQ(runtime.launch_graph(graph, nullptr), kSuccess);
    ASSERT_EQ(captured.tokens_sampled(), direct.tokens_sampled()) << "token " << index;
    steps.push_back(direct.tokens_sampled());
  }
  EXPECT_NE(steps.front(), steps.back());
  runtime.free_graph(graph);
}

}  // namespace
}  // namespace sinkstream::cuda
