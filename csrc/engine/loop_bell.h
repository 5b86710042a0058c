// Wakes an event loop that watches a file descriptor, as asyncio's does, from any thread and
// without a lock of Python's. Knows nothing of why it rings.
#pragma once

#include "common/owner_process.h"

namespace sinkstream {

// Shared by the loop and by whoever may ring: the last one closes the descriptor, so that nobody
// ever writes to a number that has become somebody else's.
class LoopBell {
 public:
  // Throws std::system_error where the process may open no more files.
  LoopBell();
  ~LoopBell();
  LoopBell(const LoopBell&) = delete;
  LoopBell& operator=(const LoopBell&) = delete;

  // What the loop watches: readable from a ring to the next `clear`.
  int fd() const { return fd_; }
  // Any thread; never blocks.
  void ring() noexcept;
  // The loop's thread, and before it looks for what it was woken for. Does nothing in a forked
  // child, which shares the descriptor: it would take the parent's ring away.
  void clear() noexcept;

 private:
  const OwnerProcess owner_;
  const int fd_;
};

}  // namespace sinkstream
