#include "engine/loop_bell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace sinkstream {

namespace {

int open_counter() {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

}  // namespace

LoopBell::LoopBell() : fd_(open_counter()) {}

LoopBell::~LoopBell() { ::close(fd_); }

// Fails only after 2^64 − 2 rings without a clear, when it is readable anyway.
void LoopBell::ring() noexcept { eventfd_write(fd_, 1); }

void LoopBell::clear() noexcept {
  eventfd_t rings;
  if (owner_.is_here()) eventfd_read(fd_, &rings);
}

}  // namespace sinkstream
