// Finds the GPU for a model, or says why there is none.
#pragma once

#include <string>

#include "kernels/cuda/plugin.h"

namespace sinkstream::cuda {

// Result of a search. Finding no GPU is not an error.
struct GpuSearch {
  const Plugin* plugin = nullptr;  // null: `problem` says why there is none
  GpuFacts facts;
  bool driver_compiles = false;  // the driver has to compile the kernels for this GPU
  std::string problem;           // "there is no NVIDIA driver."; empty if there is a usable GPU
};

// Searches through the library `_cuda` at `path`, which is loaded once per process.
GpuSearch find_gpu(const std::string& path);

// The same for a library that is already loaded.
GpuSearch find_gpu(const Plugin& plugin);

// Owns a stream.
class UniqueStream {
 public:
  explicit UniqueStream(const Runtime& runtime);
  ~UniqueStream() { runtime_.free_stream(stream_); }
  UniqueStream(const UniqueStream&) = delete;
  UniqueStream& operator=(const UniqueStream&) = delete;
  Stream get() const { return stream_; }

 private:
  const Runtime& runtime_;
  Stream stream_ = nullptr;
};

// Owns an event.
class UniqueEvent {
 public:
  explicit UniqueEvent(const Runtime& runtime);
  ~UniqueEvent() { runtime_.free_event(event_); }
  UniqueEvent(const UniqueEvent&) = delete;
  UniqueEvent& operator=(const UniqueEvent&) = delete;
  Event get() const { return event_; }

 private:
  const Runtime& runtime_;
  Event event_ = nullptr;
};

// Throws DeviceError if `status` is not success; `what` names the call.
void check(const Runtime& runtime, Status status, const char* what);

}  // namespace sinkstream::cuda
