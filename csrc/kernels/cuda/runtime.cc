#include "kernels/cuda/plugin.h"

#include <cuda_runtime.h>

#include <cstring>

#include "kernels/cuda/current_gpu.h"

namespace sinkstream::cuda {

namespace {

cudaEvent_t native(Event event) { return reinterpret_cast<cudaEvent_t>(event); }
cudaGraphExec_t native(Graph graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }

// Clears the error of a failed call, which the next one would report again.
Status clear_error(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
  return status;
}

const char* message(Status status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }

Status versions(int32_t* driver, int32_t* runtime) {
  const cudaError_t status = cudaDriverGetVersion(driver);
  return clear_error(status != cudaSuccess ? status : cudaRuntimeGetVersion(runtime));
}

Status count_gpus(int32_t* count) { return clear_error(cudaGetDeviceCount(count)); }

Status describe(int32_t gpu, GpuFacts* facts) {
  cudaDeviceProp properties;
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, gpu); status != cudaSuccess)
    return clear_error(status);
  const size_t length = strnlen(properties.name, sizeof(facts->name) - 1);
  std::memcpy(facts->name, properties.name, length);
  facts->name[length] = '\0';
  facts->major = properties.major;
  facts->minor = properties.minor;
  facts->multiprocessors = properties.multiProcessorCount;
  const CurrentGpu current(gpu);
  size_t free_bytes = 0, total_bytes = 0;
  const cudaError_t status = cudaMemGetInfo(&free_bytes, &total_bytes);
  facts->free_bytes = static_cast<int64_t>(free_bytes);
  facts->total_bytes = static_cast<int64_t>(total_bytes);
  return clear_error(status);
}

Status new_stream(Stream* stream) {
  const CurrentGpu current;
  return clear_error(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
}
void free_stream(Stream stream) { cudaStreamDestroy(stream); }
Status synchronize(Stream stream) {
  const RelaxedCaptureMode relaxed;
  return clear_error(cudaStreamSynchronize(stream));
}

Status new_memory(int64_t bytes, std::byte** memory) {
  const CurrentGpu current;
  const RelaxedCaptureMode relaxed;
  return clear_error(cudaMalloc(reinterpret_cast<void**>(memory), bytes));
}
void free_memory(std::byte* memory) {
  const RelaxedCaptureMode relaxed;
  cudaFree(memory);
}

Status new_pinned(int64_t bytes, std::byte** memory) {
  const CurrentGpu current;
  const RelaxedCaptureMode relaxed;
  return clear_error(cudaHostAlloc(reinterpret_cast<void**>(memory), bytes, cudaHostAllocDefault));
}
void free_pinned(std::byte* memory) {
  const RelaxedCaptureMode relaxed;
  cudaFreeHost(memory);
}

Status copy(void* to, const void* from, int64_t bytes, Stream stream) {
  const CurrentGpu current;
  return clear_error(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}
Status fill(void* to, uint8_t value, int64_t bytes, Stream stream) {
  const CurrentGpu current;
  return clear_error(cudaMemsetAsync(to, value, bytes, stream));
}

Status new_event(Event* event) {
  const CurrentGpu current;
  return clear_error(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event),
                                              cudaEventDisableTiming | cudaEventBlockingSync));
}
void free_event(Event event) { cudaEventDestroy(native(event)); }
Status record(Event event, Stream stream) {
  return clear_error(cudaEventRecord(native(event), stream));
}
Status await(Event event) {
  const RelaxedCaptureMode relaxed;
  return clear_error(cudaEventSynchronize(native(event)));
}
Status wait_for_event(Stream stream, Event event) {
  return clear_error(cudaStreamWaitEvent(stream, native(event)));
}

// Thread-local, so that other threads' GPU calls do not affect the capture.
Status begin_capture(Stream stream) {
  const CurrentGpu current;
  return clear_error(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

Status end_capture(Stream stream, Graph* graph) {
  const CurrentGpu current;
  cudaGraph_t captured = nullptr;
  cudaError_t status = cudaStreamEndCapture(stream, &captured);
  if (status == cudaSuccess) {
    status = cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(graph), captured, 0);
  }
  if (captured != nullptr) cudaGraphDestroy(captured);
  return clear_error(status);
}

Status launch_graph(Graph graph, Stream stream) {
  const CurrentGpu current;
  return clear_error(cudaGraphLaunch(native(graph), stream));
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
      .synchronize = synchronize,
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
      .wait_for_event = wait_for_event,
      .begin_capture = begin_capture,
      .end_capture = end_capture,
      .launch_graph = launch_graph,
      .free_graph = free_graph,
  };
  return runtime;
}

}  // namespace sinkstream::cuda
