// An emulated GPU that counts what is allocated and freed, and whose memory can be made small. For
// any threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "kernels/cuda/plugin.h"

#include "cuda/emulated_gpu.h"

namespace sinkstream::cuda {

// A runtime's functions have no state, so the counts are the process's. One at a time.
class CountingGpu {
 public:
  CountingGpu() { state() = {}; }

  const Plugin& plugin() const {
    static const Plugin plugin = [] {
      Plugin counting = emulated_plugin();
      counting.runtime.new_memory = new_memory;
      counting.runtime.free_memory = free_memory;
      counting.runtime.new_pinned = new_pinned;
      counting.runtime.free_pinned = free_pinned;
      counting.runtime.synchronize = [](Stream) {
        locked([](State& s) { return ++s.synchronizes; });
        return kSuccess;
      };
      return counting;
    }();
    return plugin;
  }
  const Runtime& runtime() const { return plugin().runtime; }

  // Allocated and freed so far, device memory and pinned memory.
  int64_t calls() const {
    return locked([](const State& s) { return s.calls; });
  }
  int64_t bytes() const {
    return locked([](const State& s) { return s.bytes; });
  }  // on the GPU
  int64_t pinned_bytes() const {
    return locked([](const State& s) { return s.pinned_bytes; });
  }
  int64_t most_pinned_bytes() const {
    return locked([](const State& s) { return s.most_pinned_bytes; });
  }
  int64_t synchronizes() const {
    return locked([](const State& s) { return s.synchronizes; });
  }
  // From now on the GPU has this much memory.
  void set_memory(int64_t bytes) {
    locked([=](State& s) { return s.memory = bytes; });
  }

 private:
  struct State {
    std::map<std::byte*, int64_t> sizes, pinned_sizes;
    int64_t calls = 0, bytes = 0, pinned_bytes = 0, most_pinned_bytes = 0;
    int64_t memory = int64_t{1} << 40;
    int64_t synchronizes = 0;
  };
  static State& state() {
    static State state;
    return state;
  }
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  template <typename Function>
  static int64_t locked(const Function& function) {
    const std::lock_guard lock(mutex());
    return function(state());
  }

  static Status new_memory(int64_t bytes, std::byte** memory) {
    const std::lock_guard lock(mutex());
    if (state().bytes + bytes > state().memory) return 2;  // cudaErrorMemoryAllocation
    const Status status = emulated_plugin().runtime.new_memory(bytes, memory);
    if (status != kSuccess) return status;
    state().sizes[*memory] = bytes;
    state().bytes += bytes;
    ++state().calls;
    return status;
  }
  static void free_memory(std::byte* memory) {
    const std::lock_guard lock(mutex());
    state().bytes -= state().sizes.at(memory);
    state().sizes.erase(memory);
    ++state().calls;
    emulated_plugin().runtime.free_memory(memory);
  }
  static Status new_pinned(int64_t bytes, std::byte** memory) {
    const std::lock_guard lock(mutex());
    const Status status = emulated_plugin().runtime.new_pinned(bytes, memory);
    if (status != kSuccess) return status;
    State& now = state();
    now.pinned_sizes[*memory] = bytes;
    now.pinned_bytes += bytes;
    now.most_pinned_bytes = std::max(now.most_pinned_bytes, now.pinned_bytes);
    ++now.calls;
    return status;
  }
  static void free_pinned(std::byte* memory) {
    const std::lock_guard lock(mutex());
    state().pinned_bytes -= state().pinned_sizes.at(memory);
    state().pinned_sizes.erase(memory);
    ++state().calls;
    emulated_plugin().runtime.free_pinned(memory);
  }
};

}  // namespace sinkstream::cuda
