// The event loops to wake at the end of a step: each once, however many of its streams have output.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine/loop_bell.h"

namespace sinkstream {

// Used by the engine's thread only; shared with its streams, which may outlive the engine.
class WakeList {
 public:
  void add(std::shared_ptr<LoopBell> bell) noexcept {
    if (std::find(bells_.begin(), bells_.end(), bell) != bells_.end()) return;
    try {
      bells_.push_back(bell);
    } catch (const std::bad_alloc&) {  // no memory to store it
      bell->ring();
    }
  }

  void ring_all() noexcept {
    for (const std::shared_ptr<LoopBell>& bell : bells_) bell->ring();
    bells_.clear();
  }

 private:
  std::vector<std::shared_ptr<LoopBell>> bells_;  // at most one for each waiting loop
};

}  // namespace sinkstream
