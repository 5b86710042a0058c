// Wakes an event loop that watches a file descriptor, as asyncio's does, from any thread and
// without the GIL. Does not know why it rings.
#pragma once

#include "common/owner_process.h"

namespace sinkstream {

// Shared by the loop and everything that may ring it. The last owner closes the descriptor, so that
// no ring can go to a descriptor number that has been reused.
class LoopBell {
 public:
  // Throws std::system_error if the process cannot open more files.
  LoopBell();
  ~LoopBell();
  LoopBell(const LoopBell&) = delete;
  LoopBell& operator=(const LoopBell&) = delete;

  // The descriptor that the loop watches: readable from a ring until the next `clear`.
  int fd() const { return fd_; }
  // Any thread; never blocks.
  void ring() noexcept;
  // The loop's thread calls this before it checks why it was woken. Does nothing in a forked child,
  // which shares the descriptor and would clear the parent's ring.
  void clear() noexcept;

 private:
  const OwnerProcess owner_;
  const int fd_;
};

}  // namespace sinkstream
