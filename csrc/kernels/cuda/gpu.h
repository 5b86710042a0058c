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
using MemoryBlock = std::shared_ptr<std::byte>;

// Throws CapacityError, which says what was asked for, what for, and what is free.
MemoryBlock allocate_device(const Runtime& runtime, int64_t bytes, const char* purpose);

// Host memory that a GPU reads and writes by itself, likewise. Throws CapacityError.
MemoryBlock allocate_pinned(const Runtime& runtime, int64_t bytes, const char* purpose);

// A stream of its own.
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

// An event of its own.
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

// Throws DeviceError if `status` is not success; `what` was asked for.
void check(const Runtime& runtime, Status status, const char* what);

}  // namespace sinkstream::cuda
