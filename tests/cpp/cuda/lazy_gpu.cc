#include "cuda/lazy_gpu.h"

#include <utility>

#include "cuda/emulated_gpu.h"
#include "cuda_emulator/capture.h"

namespace sinkstream::cuda {

struct EventBody {
  int64_t at = 0;  // how much work had been enqueued before
};

namespace {

using emulator::Capture;
using emulator::capturing;

// A runtime's functions have no state, so the GPU's state is per thread.
struct State {
  Capture queue;
  int64_t done = 0;  // of all work ever enqueued; the queue has the rest
  bool ignores_graphs = false;
  CallCounts counts;
  int64_t counted = 0;  // of what was enqueued
};
thread_local State state;

int64_t enqueued() { return state.done + std::ssize(state.queue); }

Status catch_up(int64_t until) {
  capturing = nullptr;  // work done now is not enqueued again
  Status status = kSuccess;
  const auto count = until - state.done;
  for (int64_t i = 0; i < count && status == kSuccess; ++i) status = state.queue[i]();
  if (count > 0) {
    state.queue.erase(state.queue.begin(), state.queue.begin() + count);
    state.done = until;
  }
  capturing = &state.queue;
  return status;
}

Runtime lazy_runtime() {
  Runtime runtime = emulated_plugin().runtime;
  runtime.synchronize = [](Stream) {
    ++state.counts.synchronizes;
    return catch_up(enqueued());
  };
  // Like cudaFree, these wait for all work that may use the memory.
  runtime.free_memory = [](std::byte* memory) {
    catch_up(enqueued());
    emulated_plugin().runtime.free_memory(memory);
  };
  runtime.free_pinned = [](std::byte* memory) {
    catch_up(enqueued());
    emulated_plugin().runtime.free_pinned(memory);
  };
  runtime.copy = [](void* to, const void* from, int64_t bytes, Stream stream) {
    ++state.counts.copies;
    return emulated_plugin().runtime.copy(to, from, bytes, stream);
  };
  runtime.fill = [](void* to, uint8_t value, int64_t bytes, Stream stream) {
    ++state.counts.fills;
    return emulated_plugin().runtime.fill(to, value, bytes, stream);
  };
  runtime.new_event = [](Event* event) {
    *event = new EventBody;
    return kSuccess;
  };
  runtime.free_event = [](Event event) { delete event; };
  runtime.record = [](Event event, Stream) {
    ++state.counts.records;
    event->at = enqueued();
    return kSuccess;
  };
  runtime.await = [](Event event) {
    ++state.counts.awaits;
    return catch_up(event->at);
  };
  runtime.end_capture = [](Stream stream, Graph* graph) {
    const Status status = emulated_plugin().runtime.end_capture(stream, graph);
    capturing = &state.queue;
    return status;
  };
  runtime.launch_graph = [](Graph graph, Stream stream) {
    ++state.counts.graphs;
    if (!state.ignores_graphs) {
      state.queue.push_back([=] { return emulated_plugin().runtime.launch_graph(graph, stream); });
    }
    return kSuccess;
  };
  return runtime;
}

}  // namespace

LazyGpu::LazyGpu() {
  state = {};
  capturing = &state.queue;
}

LazyGpu::~LazyGpu() {
  capturing = nullptr;
  state = {};
}

const Plugin& LazyGpu::plugin() const {
  static const Plugin plugin = {.runtime = lazy_runtime(), .ops = all_ops()};
  return plugin;
}

CallCounts LazyGpu::take_counts() {
  CallCounts counts = std::exchange(state.counts, {});
  counts.enqueued = enqueued() - std::exchange(state.counted, enqueued());
  return counts;
}

void LazyGpu::ignore_graphs() { state.ignores_graphs = true; }

}  // namespace sinkstream::cuda
