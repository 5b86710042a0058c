// The process that something was made in, the only one that has the threads it relies on: a child
// that is forked later has a copy of its memory and none of them, and locks may be held for ever.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include "common/errors.h"

namespace sinkstream {

class OwnerProcess {
 public:
  bool is_here() const { return getpid() == pid_; }
  // Throws ForkError anywhere else; `where` begins its sentence.
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
