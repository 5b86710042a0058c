// The inputs of a step on a GPU: the host writes them to pinned memory, the step starts with a copy
// to the GPU, and kernels read them there. Knows nothing about kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/sampling/sampling.h"
#include "model/forward_plan.h"
#include "model/layer_views.h"

namespace sinkstream {

// The capacity of a step's block.
struct StepShape {
  int64_t groups = 1;  // of layers: cache/cache_layers.h
  int64_t rows = 0;
  int64_t sequences = 0;              // the most pieces of a group's plan
  int64_t page_ids = 0;               // of all sequences together
  int64_t samples = 0;                // rows that sample a token
  int64_t bias = 0;                   // entries of all samples together
  const LayerViews* views = nullptr;  // outlives the shape
};

// Pointers into a step's block, which has the same layout in pinned memory and on the GPU.
struct StepBlock {
  // What the layers of one group read.
  struct Group {
    cuda::TokenRow* tokens = nullptr;          // [rows]
    cuda::SequencePages* sequences = nullptr;  // [sequences]
    int32_t* page_begins = nullptr;            // [rows + 1]: Note [Live pages] of
                                               // kernels/cuda/attention/attention.h
  };

  // The angles of some rotary scheme.
  struct AngleRows {
    float *cos = nullptr, *sin = nullptr;  // [rows, pairs]
  };

  StepBlock() = default;
  // `base`: 256-byte aligned; null to compute `bytes` only.
  StepBlock(std::byte* base, const StepShape& shape);

  std::byte* base = nullptr;
  int64_t bytes = 0;
  int32_t* ids = nullptr;                 // [rows]: as EmbeddingArgs::ids
  int32_t* page_ids = nullptr;            // [page_ids]
  cuda::TokenRow* sample_rows = nullptr;  // [samples]: rows after which a token is sampled
  cuda::SamplingRow* sampling = nullptr;  // [samples]
  TokenBias* bias = nullptr;              // [bias]

  int64_t groups() const { return shape_.groups; }
  Group group(int64_t group) const {
    return {tokens_ + group * shape_.rows, sequences_ + group * shape_.sequences,
            page_begins_ + group * (shape_.rows + 1)};
  }
  const LayerViews& views() const { return *shape_.views; }
  // Of each token's index.
  AngleRows index_angles(const LayerViews::Rope& rope) const {
    return angles(rope.before, rope.pairs());
  }
  // Of each token's rank.
  AngleRows rank_angles(const LayerViews::View& view) const {
    return angles(view.before, views().rope_of(view).pairs());
  }

 private:
  AngleRows angles(int64_t before, int64_t pairs) const {
    float* const cos = angles_ + before * shape_.rows;
    return {cos, cos + pairs * shape_.rows};
  }

  StepShape shape_;
  cuda::TokenRow* tokens_ = nullptr;          // [groups, rows]
  float* angles_ = nullptr;                   // [rows · LayerViews::floats_per_row()]
  cuda::SequencePages* sequences_ = nullptr;  // [groups, sequences]
  int32_t* page_begins_ = nullptr;            // [groups, rows + 1]
};

// Two copies of the step block in pinned memory, because the host fills one while the GPU may still
// read the other, and one on the GPU, where steps run one after another.
class StepMemory {
 public:
  // Both must outlive the memory.
  StepMemory(const cuda::Runtime& runtime, cuda::Stream stream)
      : runtime_(runtime), stream_(stream) {}

  // Ensures that each copy has at least this many bytes. To grow, waits for all work in flight and
  // reallocates: contents are lost and addresses change. Throws CapacityError, after which nothing
  // has changed, and DeviceError.
  void reserve(int64_t bytes);
  void release();

  std::byte* host(int64_t parity) const { return host_[parity].get(); }
  std::byte* device() const { return device_.get(); }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // on the GPU

 private:
  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  cuda::MemoryBlock host_[2];  // pinned
  cuda::MemoryBlock device_;
  std::atomic<int64_t> bytes_{0};  // read by any thread
};

// The block of a plan's rows, without samples.
StepShape shape_of(const ForwardPlan& plan, const LayerViews& views);

// `offset`: of the group's page ids.
cuda::SequencePages sequence_pages(const GroupPages& group, int64_t offset);

// Fills `host` with each row of the plan: its token, its index and ranks, its angles, and where its
// pages are. Only pieces of one row have live pages: others walk. `scratch`: where scratch pages
// begin, on the GPU.
void fill_rows(const StepBlock& host, const ForwardPlan& plan, std::byte* scratch);

// Makes rows [first, end) idle: they write nothing and sample nothing.
void fill_idle(const StepBlock& host, int64_t first, int64_t end);

}  // namespace sinkstream
