// What of the CUDA runtime the core needs, as a table of functions: the plugin fills it on a GPU,
// and tests fill it with an emulated one. No CUDA header here.
//
// Every function that can fail gives a Status, 0 for success, which `message` explains.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

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

  // A stream that does not wait for the default one.
  Status (*new_stream)(Stream* stream);
  void (*free_stream)(Stream stream);
  // Until everything that was given to the stream has been done.
  Status (*synchronize)(Stream stream);

  // Memory of the GPU, 256-byte aligned, holding anything.
  Status (*new_memory)(int64_t bytes, std::byte** memory);
  void (*free_memory)(std::byte* memory);

  // Host memory that a GPU reads and writes by itself.
  Status (*new_pinned)(int64_t bytes, std::byte** memory);
  void (*free_pinned)(std::byte* memory);
  // Between any two memories, in the stream's order.
  Status (*copy)(void* to, const void* from, int64_t bytes, Stream stream);
  Status (*fill)(void* to, uint8_t value, int64_t bytes, Stream stream);

  // An event is there once everything that its stream was given before it has been done.
  Status (*new_event)(Event* event);
  void (*free_event)(Event event);
  Status (*record)(Event event, Stream stream);
  // The calling thread sleeps until it is there.
  Status (*await)(Event event);
  // What `stream` is given from now on waits for it; no thread does.
  Status (*wait_for_event)(Stream stream, Event event);

  // What this thread gives to `stream` between the two becomes a graph instead of being done.
  // Nothing may allocate or wait meanwhile.
  Status (*begin_capture)(Stream stream);
  Status (*end_capture)(Stream stream, Graph* graph);
  Status (*launch_graph)(Graph graph, Stream stream);
  void (*free_graph)(Graph graph);
};

}  // namespace sinkstream::cuda
