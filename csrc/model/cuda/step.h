// What the rows of a step on a GPU are: the host writes it to pinned memory, the step begins with
// a copy of it to the GPU, and kernels read it there. Knows no kernel.
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

// How much a block has room for.
struct StepShape {
  int64_t rows = 0;
  int64_t sequences = 0;  // pieces of the plan
  int64_t page_ids = 0;   // of all sequences together
  int64_t samples = 0;    // wanted rows from which a token is drawn
  int64_t bias = 0;       // entries of all draws together
  int64_t pairs = 0;      // rotated, of a head
};

// At the same places in pinned memory and on the GPU.
struct StepBlock {
  StepBlock() = default;
  // `base`: 256-byte aligned; null to know `bytes`.
  StepBlock(std::byte* base, const StepShape& shape);

  std::byte* base = nullptr;
  int64_t bytes = 0;
  int32_t* ids = nullptr;                            // [rows]: as EmbeddingArgs::ids
  cuda::TokenRow* tokens = nullptr;                  // [rows]
  float *index_cos = nullptr, *index_sin = nullptr;  // [rows, pairs]
  float *rank_cos = nullptr, *rank_sin = nullptr;    // [rows, pairs]
  cuda::SequencePages* sequences = nullptr;          // [sequences]
  int32_t* page_ids = nullptr;                       // [page_ids]
  cuda::TokenRow* sample_rows = nullptr;             // [draws]: the rows that tokens follow
  cuda::SamplingRow* sampling = nullptr;             // [draws]
  TokenBias* bias = nullptr;                         // [bias]
};

// Two places of a step in pinned memory, because the host fills one while the GPU may not have
// read the other yet, and one on the GPU, where steps follow each other.
class StepMemory {
 public:
  // Both outlive the memory.
  StepMemory(const cuda::Runtime& runtime, cuda::Stream stream)
      : runtime_(runtime), stream_(stream) {}

  // Room for so many bytes in each. Where there is less, waits for all that is under way and takes
  // more: what lay there is lost, and addresses are others. Throws CapacityError, and all is as it
  // was; DeviceError.
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
  std::atomic<int64_t> bytes_{0};  // anybody may ask
};

int64_t count_page_ids(const ForwardPlan& plan);

cuda::SequencePages sequence_pages(const SequenceCache& cache, int64_t offset);

// Says in `here` what each row of the plan is: its token, its places, its angles, and where its
// pages are. `scratch`: on the GPU, where the scratch pages begin.
void fill_rows(const StepBlock& host, const ForwardPlan& plan, const Angles& angles,
               std::byte* scratch);

// Rows from `first` to before `end` do nothing, and nothing is drawn behind them.
void fill_idle(const StepBlock& host, int64_t first, int64_t end);

}  // namespace sinkstream
