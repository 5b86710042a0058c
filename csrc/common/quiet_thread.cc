#include "common/quiet_thread.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <utility>

namespace sinkstream {

// A thread inherits the signal mask of the thread that starts it.
std::thread start_quiet_thread(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  std::exception_ptr failure;
  try {
    thread = std::thread(std::move(body));
  } catch (...) {
    failure = std::current_exception();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure) std::rethrow_exception(failure);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace sinkstream
