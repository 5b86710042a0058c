// Finds the GPU that a model is to run on, or says in a sentence why there is none.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/cuda/plugin.h"

namespace sinkstream::cuda {

// What this machine offers, without an error: for those who ask.
struct GpuSearch {
  const Plugin* plugin = nullptr;  // null: `problem` says why nothing runs on a GPU here
  GpuFacts facts;
  std::string problem;  // "there is no NVIDIA driver."; empty if there is a GPU that serves
};

// The library `_cuda` at `path`. Loads it once for a process.
GpuSearch find_gpu(const std::string& path);

// The same of a library that is loaded already.
GpuSearch find_gpu(const Plugin& plugin);

// Memory of the GPU. Goes back with its last owner.
using GpuBlock = std::shared_ptr<std::byte>;

// Throws CapacityError, which says what was asked for, what for, and what is free.
GpuBlock take_memory(const Runtime& runtime, int64_t bytes, const char* purpose);

// Host memory that a GPU reads and writes by itself, likewise. Throws CapacityError.
GpuBlock take_pinned(const Runtime& runtime, int64_t bytes, const char* purpose);

// A stream of its own.
class OwnStream {
 public:
  explicit OwnStream(const Runtime& runtime);
  ~OwnStream() { runtime_.free_stream(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Stream get() const { return stream_; }

 private:
  const Runtime& runtime_;
  Stream stream_ = nullptr;
};

// An event of its own.
class OwnEvent {
 public:
  explicit OwnEvent(const Runtime& runtime);
  ~OwnEvent() { runtime_.free_event(event_); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  Event get() const { return event_; }

 private:
  const Runtime& runtime_;
  Event event_ = nullptr;
};

// Throws DeviceError if `status` is not success; `what` was asked for.
void check(const Runtime& runtime, Status status, const char* what);

}  // namespace sinkstream::cuda
