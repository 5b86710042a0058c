#include "kernels/cuda/plugin.h"

#include <cuda_runtime.h>

#include <cstring>

namespace sinkstream::cuda {

namespace {

cudaEvent_t native(Event event) { return reinterpret_cast<cudaEvent_t>(event); }
cudaGraphExec_t native(Graph graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }

// Calls that fail leave a note that the next one would find.
Status settled(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
  return status;
}

const char* message(Status status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }

Status versions(int32_t* driver, int32_t* runtime) {
  const cudaError_t status = cudaDriverGetVersion(driver);
  return settled(status != cudaSuccess ? status : cudaRuntimeGetVersion(runtime));
}

Status count_gpus(int32_t* count) { return settled(cudaGetDeviceCount(count)); }

Status describe(int32_t gpu, GpuFacts* facts) {
  cudaDeviceProp properties;
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, gpu); status != cudaSuccess)
    return settled(status);
  std::strncpy(facts->name, properties.name, sizeof(facts->name) - 1);
  facts->major = properties.major;
  facts->minor = properties.minor;
  facts->multiprocessors = properties.multiProcessorCount;
  int before = 0;
  if (const cudaError_t status = cudaGetDevice(&before); status != cudaSuccess)
    return settled(status);
  size_t free_bytes = 0, total_bytes = 0;
  cudaError_t status = cudaSetDevice(gpu);
  if (status == cudaSuccess) status = cudaMemGetInfo(&free_bytes, &total_bytes);
  facts->free_bytes = static_cast<int64_t>(free_bytes);
  facts->total_bytes = static_cast<int64_t>(total_bytes);
  const cudaError_t restored = cudaSetDevice(before);
  return settled(status != cudaSuccess ? status : restored);
}

Status new_stream(Stream* stream) {
  return settled(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
}
void free_stream(Stream stream) { cudaStreamDestroy(stream); }
Status finish(Stream stream) { return settled(cudaStreamSynchronize(stream)); }

Status new_memory(int64_t bytes, std::byte** memory) {
  return settled(cudaMalloc(reinterpret_cast<void**>(memory), bytes));
}
void free_memory(std::byte* memory) { cudaFree(memory); }

Status new_pinned(int64_t bytes, std::byte** memory) {
  return settled(cudaHostAlloc(reinterpret_cast<void**>(memory), bytes, cudaHostAllocDefault));
}
void free_pinned(std::byte* memory) { cudaFreeHost(memory); }

Status copy(void* to, const void* from, int64_t bytes, Stream stream) {
  return settled(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}
Status fill(void* to, uint8_t value, int64_t bytes, Stream stream) {
  return settled(cudaMemsetAsync(to, value, bytes, stream));
}

Status new_event(Event* event) {
  return settled(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event),
                                          cudaEventDisableTiming | cudaEventBlockingSync));
}
void free_event(Event event) { cudaEventDestroy(native(event)); }
Status record(Event event, Stream stream) {
  return settled(cudaEventRecord(native(event), stream));
}
Status await(Event event) { return settled(cudaEventSynchronize(native(event))); }
Status let_wait(Stream stream, Event event) {
  return settled(cudaStreamWaitEvent(stream, native(event)));
}

// Of this thread alone: what others do on the GPU meanwhile is none of the graph's business.
Status begin_capture(Stream stream) {
  return settled(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

Status end_capture(Stream stream, Graph* graph) {
  cudaGraph_t captured = nullptr;
  cudaError_t status = cudaStreamEndCapture(stream, &captured);
  if (status == cudaSuccess) {
    status = cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(graph), captured, 0);
  }
  if (captured != nullptr) cudaGraphDestroy(captured);
  return settled(status);
}

Status launch_graph(Graph graph, Stream stream) {
  return settled(cudaGraphLaunch(native(graph), stream));
}
void free_graph(Graph graph) { cudaGraphExecDestroy(native(graph)); }

}  // namespace

const Runtime& gpu_runtime() {
  static constexpr Runtime runtime = {
      .message = message,
      .versions = versions,
      .count_gpus = count_gpus,
      .describe = describe,
      .new_stream = new_stream,
      .free_stream = free_stream,
      .finish = finish,
      .new_memory = new_memory,
      .free_memory = free_memory,
      .new_pinned = new_pinned,
      .free_pinned = free_pinned,
      .copy = copy,
      .fill = fill,
      .new_event = new_event,
      .free_event = free_event,
      .record = record,
      .await = await,
      .let_wait = let_wait,
      .begin_capture = begin_capture,
      .end_capture = end_capture,
      .launch_graph = launch_graph,
      .free_graph = free_graph,
  };
  return runtime;
}

}  // namespace sinkstream::cuda
