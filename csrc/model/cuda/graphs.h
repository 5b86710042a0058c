// Captured steps in which every row samples the next token of one sequence: one graph for each
// number of rows in kBuckets and each of the two copies of the step block in pinned memory.
// Everything that changes is in the block, so no graph is ever captured again.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "model/cuda/step.h"

namespace sinkstream {

constexpr std::array<int64_t, 7> kBuckets = {1, 2, 4, 8, 16, 32, 64};

// Rows of the smallest bucket with at least `rows`, or of the largest.
int64_t bucket_rows(int64_t rows);

class CudaGraphs {
 public:
  struct Bucket {
    StepShape shape;
    cuda::Graph graphs[2] = {};  // one per parity
  };

  // Both must outlive it.
  CudaGraphs(const cuda::Runtime& runtime, cuda::Stream stream)
      : runtime_(runtime), stream_(stream) {}
  ~CudaGraphs() { release(); }
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;

  // Captures what issue(shape, parity) launches, after running it once: the first launch of a
  // kernel loads it, which is not allowed during capture. Throws DeviceError.
  using Issue = std::function<void(const StepShape& shape, int64_t parity)>;
  void add(const StepShape& shape, const Issue& issue);

  // The smallest bucket with at least `rows`; null if there is none.
  const Bucket* find(int64_t rows) const;
  int64_t count() const { return 2 * std::ssize(buckets_); }
  void release();

 private:
  cuda::Graph capture(const StepShape& shape, int64_t parity, const Issue& issue);

  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  std::vector<Bucket> buckets_;
};

}  // namespace sinkstream
