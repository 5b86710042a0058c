// The process that created an object, the only one that has the threads the object relies on. A
// forked child has a copy of its memory but no threads, and locks may be held there forever.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include "common/errors.h"

namespace sinkstream {

class OwnerProcess {
 public:
  bool is_here() const { return getpid() == pid_; }
  // Throws ForkError in any other process; its message starts with `where`.
  void check(const char* where) const {
    if (is_here()) return;
    throw ForkError(cat(where,
                        ": the model was loaded before this process was forked, and its generation "
                        "thread lives in the parent. Load the model in the child."));
  }

 private:
  const pid_t pid_ = getpid();
};

}  // namespace sinkstream
