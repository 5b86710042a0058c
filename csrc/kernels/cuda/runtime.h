// The CUDA runtime functions that the core needs, as a table. The plugin fills it with the real
// ones, tests with an emulated GPU. Includes no CUDA header.
//
// Functions that can fail return a Status (0: success), which `message` explains.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_stream.h"

namespace sinkstream::cuda {

using Event = struct EventBody*;  // cudaEvent_t
using Graph = struct GraphBody*;  // cudaGraphExec_t

struct GpuFacts {
  char name[128] = {};
  int32_t major = 0, minor = 0;  // compute capability
  int32_t multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // now
};

struct Runtime {
  const char* (*message)(Status);
  // Versions as 1000 · major + 10 · minor; 0 where there is no driver.
  Status (*versions)(int32_t* driver, int32_t* runtime);
  Status (*count_gpus)(int32_t* count);
  Status (*describe)(int32_t gpu, GpuFacts* facts);

  // A stream that does not synchronize with the default stream.
  Status (*new_stream)(Stream* stream);
  void (*free_stream)(Stream stream);
  // Blocks until all work enqueued on the stream is done.
  Status (*synchronize)(Stream stream);

  // Device memory, 256-byte aligned, uninitialized.
  Status (*new_memory)(int64_t bytes, std::byte** memory);
  void (*free_memory)(std::byte* memory);

  // Pinned host memory, which the GPU reads and writes directly.
  Status (*new_pinned)(int64_t bytes, std::byte** memory);
  void (*free_pinned)(std::byte* memory);
  // Between device and host memory in any combination, in stream order.
  Status (*copy)(void* to, const void* from, int64_t bytes, Stream stream);
  Status (*fill)(void* to, uint8_t value, int64_t bytes, Stream stream);

  // An event completes when all work enqueued before it on its stream is done.
  Status (*new_event)(Event* event);
  void (*free_event)(Event event);
  Status (*record)(Event event, Stream stream);
  // Blocks the calling thread until the event completes.
  Status (*await)(Event event);
  // Later work on `stream` waits for the event; no host thread does.
  Status (*wait_for_event)(Stream stream, Event event);

  // Work that this thread enqueues on `stream` between these two calls becomes a graph instead of
  // running. Nothing may allocate or synchronize in between.
  Status (*begin_capture)(Stream stream);
  Status (*end_capture)(Stream stream, Graph* graph);
  Status (*launch_graph)(Graph graph, Stream stream);
  void (*free_graph)(Graph graph);
};

}  // namespace sinkstream::cuda
