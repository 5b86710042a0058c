#include "common/quiet_thread.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <memory>
#include <system_error>
#include <utility>

namespace sinkstream {

namespace {

// Calls `start` while all signals are blocked: a thread inherits the signal mask of its starter.
template <typename Start>
void with_signals_blocked(const Start& start) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::exception_ptr failure;
  try {
    start();
  } catch (...) {
    failure = std::current_exception();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure) std::rethrow_exception(failure);
}

struct Detached {
  const char* name;
  std::function<void()> body;
};

void* run_detached(void* argument) {
  const std::unique_ptr<Detached> thread(static_cast<Detached*>(argument));
  pthread_setname_np(pthread_self(), thread->name);
  thread->body();
  return nullptr;
}

}  // namespace

std::thread start_quiet_thread(const char* name, std::function<void()> body) {
  std::thread thread;
  with_signals_blocked([&] { thread = std::thread(std::move(body)); });
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

void start_detached_thread(const char* name, size_t stack_bytes, std::function<void()> body) {
  auto kept = std::make_unique<Detached>(Detached{name, std::move(body)});
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  int error = 0;
  with_signals_blocked([&] {
    pthread_t thread;
    error = pthread_create(&thread, &attributes, run_detached, kept.get());
  });
  pthread_attr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), "starting a thread");
  kept.release();  // the thread's now
}

}  // namespace sinkstream
