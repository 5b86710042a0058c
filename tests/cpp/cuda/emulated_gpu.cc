#include "cuda/emulated_gpu.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "cuda_emulator/capture.h"

namespace sinkstream::cuda {

namespace {

using emulator::Capture;
using emulator::capturing;

constexpr int64_t kMemory = int64_t{1} << 33;
constexpr Status kOutOfMemory = 2;  // cudaErrorMemoryAllocation

// Does the work, or records it for a graph.
template <typename Work>
Status in_order(const Work& work) {
  if (capturing != nullptr) {
    capturing->push_back(work);
    return kSuccess;
  }
  return work();
}

const Runtime kRuntime = {
    .message =
        [](Status status) { return status == kSuccess ? "no error" : "an emulated failure"; },
    .versions =
        [](int32_t* driver, int32_t* runtime) {
          *driver = *runtime = 13000;
          return kSuccess;
        },
    .count_gpus =
        [](int32_t* count) {
          *count = 1;
          return kSuccess;
        },
    .describe =
        [](int32_t, GpuFacts* facts) {
          *facts = {"an emulated GPU", 9, 0, 132, kMemory, kMemory};
          return kSuccess;
        },
    .new_stream =
        [](Stream* stream) {
          *stream = nullptr;
          return kSuccess;
        },
    .free_stream = [](Stream) {},
    .synchronize = [](Stream) { return kSuccess; },
    .new_memory =
        [](int64_t bytes, std::byte** memory) {
          if (bytes > kMemory) return kOutOfMemory;
          const int64_t rounded = (bytes + 255) / 256 * 256;
          *memory = static_cast<std::byte*>(std::aligned_alloc(256, rounded));
          std::memset(*memory, 0xff, rounded);
          return kSuccess;
        },
    .free_memory = [](std::byte* memory) { std::free(memory); },
    .new_pinned =
        [](int64_t bytes, std::byte** memory) {
          if (bytes > kMemory) return kOutOfMemory;
          *memory = new std::byte[bytes];
          std::memset(*memory, 0xff, bytes);
          return kSuccess;
        },
    .free_pinned = [](std::byte* memory) { delete[] memory; },
    .copy =
        [](void* to, const void* from, int64_t bytes, Stream) {
          return in_order([=] {
            std::memcpy(to, from, bytes);
            return kSuccess;
          });
        },
    .fill =
        [](void* to, uint8_t value, int64_t bytes, Stream) {
          return in_order([=] {
            std::memset(to, value, bytes);
            return kSuccess;
          });
        },
    .new_event =
        [](Event* event) {
          *event = nullptr;
          return kSuccess;
        },
    .free_event = [](Event) {},
    .record = [](Event, Stream) { return kSuccess; },
    .await = [](Event) { return kSuccess; },
    .wait_for_event = [](Stream, Event) { return kSuccess; },
    .begin_capture =
        [](Stream) {
          capturing = new Capture;
          return kSuccess;
        },
    .end_capture =
        [](Stream, Graph* graph) {
          *graph = reinterpret_cast<Graph>(std::exchange(capturing, nullptr));
          return kSuccess;
        },
    .launch_graph =
        [](Graph graph, Stream) {
          for (const auto& step : *reinterpret_cast<Capture*>(graph)) {
            if (const Status status = step(); status != kSuccess) return status;
          }
          return kSuccess;
        },
    .free_graph = [](Graph graph) { delete reinterpret_cast<Capture*>(graph); },
};

}  // namespace

const Plugin& emulated_plugin() {
  static const Plugin plugin = {
      .machine_code = "90a", .has_ptx = true, .runtime = kRuntime, .ops = all_ops()};
  return plugin;
}

}  // namespace sinkstream::cuda
