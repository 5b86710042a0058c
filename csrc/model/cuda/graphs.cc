#include "model/cuda/graphs.h"

#include <algorithm>

#include "kernels/cuda/gpu.h"

namespace sinkstream {

int64_t bucket_rows(int64_t rows) {
  const auto bucket = std::lower_bound(kBuckets.begin(), kBuckets.end(), rows);
  return bucket == kBuckets.end() ? kBuckets.back() : *bucket;
}

void CudaGraphs::add(const StepShape& shape, const Issue& issue) {
  issue(shape, 0);
  cuda::check(runtime_, runtime_.synchronize(stream_), "a step without rows");
  Bucket& bucket = buckets_.emplace_back();
  bucket.shape = shape;
  for (int64_t parity = 0; parity < 2; ++parity) {
    bucket.graphs[parity] = capture(shape, parity, issue);
  }
}

cuda::Graph CudaGraphs::capture(const StepShape& shape, int64_t parity, const Issue& issue) {
  cuda::Graph graph = nullptr;
  cuda::check(runtime_, runtime_.begin_capture(stream_), "capturing a step");
  try {
    issue(shape, parity);
  } catch (...) {  // end the capture in any case
    if (runtime_.end_capture(stream_, &graph) == cuda::kSuccess) runtime_.free_graph(graph);
    throw;
  }
  cuda::check(runtime_, runtime_.end_capture(stream_, &graph), "capturing a step");
  return graph;
}

const CudaGraphs::Bucket* CudaGraphs::find(int64_t rows) const {
  const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [rows](const Bucket& bucket) {
    return rows <= bucket.shape.rows;
  });
  return bucket == buckets_.end() ? nullptr : &*bucket;
}

void CudaGraphs::release() {
  for (const Bucket& bucket : buckets_) {
    for (const cuda::Graph graph : bucket.graphs) {
      if (graph != nullptr) runtime_.free_graph(graph);
    }
  }
  buckets_.clear();
}

}  // namespace sinkstream
