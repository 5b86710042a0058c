// Threads that take no signal, so that the system gives each to a thread of Python's.
#pragma once

#include <functional>
#include <thread>

namespace sinkstream {

// Starts a thread of this name, at most 15 characters. Throws std::system_error if the system gives
// none.
std::thread start_quiet_thread(const char* name, std::function<void()> body);

}  // namespace sinkstream
