// The inputs of a step on a GPU: the host writes them to pinned memory, the step starts with a copy
// to the GPU, and kernels read them there. Knows nothing about kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/angles.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/sampling/sampling.h"
#include "model/forward_plan.h"

namespace sinkstream {

// The capacity of a step's block.
struct StepShape {
  int64_t groups = 1;  // of layers: cache/cache_layers.h
  int64_t rows = 0;
  int64_t sequences = 0;  // the most pieces of a group's plan
  int64_t page_ids = 0;   // of all sequences together
  int64_t samples = 0;    // rows that sample a token
  int64_t bias = 0;       // entries of all samples together
  int64_t pairs = 0;      // rotated, per head
};

// Pointers into a step's block, which has the same layout in pinned memory and on the GPU.
struct StepBlock {
  // What the layers of one group read.
  struct Group {
    cuda::TokenRow* tokens = nullptr;                // [rows]
    float *rank_cos = nullptr, *rank_sin = nullptr;  // [rows, pairs]
    cuda::SequencePages* sequences = nullptr;        // [sequences]
  };

  StepBlock() = default;
  // `base`: 256-byte aligned; null to compute `bytes` only.
  StepBlock(std::byte* base, const StepShape& shape);

  std::byte* base = nullptr;
  int64_t bytes = 0;
  int32_t* ids = nullptr;                            // [rows]: as EmbeddingArgs::ids
  float *index_cos = nullptr, *index_sin = nullptr;  // [rows, pairs]
  int32_t* page_ids = nullptr;                       // [page_ids]
  cuda::TokenRow* sample_rows = nullptr;  // [samples]: rows after which a token is sampled
  cuda::SamplingRow* sampling = nullptr;  // [samples]
  TokenBias* bias = nullptr;              // [bias]

  int64_t groups() const { return shape_.groups; }
  Group group(int64_t group) const {
    const int64_t row = group * shape_.rows, angle = row * shape_.pairs;
    return {tokens_ + row, rank_cos_ + angle, rank_sin_ + angle,
            sequences_ + group * shape_.sequences};
  }

 private:
  StepShape shape_;
  cuda::TokenRow* tokens_ = nullptr;                 // [groups, rows]
  float *rank_cos_ = nullptr, *rank_sin_ = nullptr;  // [groups, rows, pairs]
  cuda::SequencePages* sequences_ = nullptr;         // [groups, sequences]
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
StepShape shape_of(const ForwardPlan& plan, int64_t pairs);

// `offset`: of the group's page ids.
cuda::SequencePages sequence_pages(const SequenceCache& cache, const GroupPages& group,
                                   int64_t offset);

// Fills `host` with each row of the plan: its token, its index and ranks, its angles, and where its
// pages are. `scratch`: where scratch pages begin, on the GPU.
void fill_rows(const StepBlock& host, const ForwardPlan& plan, const Angles& angles,
               std::byte* scratch);

// Makes rows [first, end) idle: they write nothing and sample nothing.
void fill_idle(const StepBlock& host, int64_t first, int64_t end);

}  // namespace sinkstream
