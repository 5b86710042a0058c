// Threads that block all signals, so that the system delivers them to Python's threads.
#pragma once

#include <functional>
#include <thread>

namespace sinkstream {

// Starts a thread named `name`, at most 15 characters. Throws std::system_error if the system
// refuses.
std::thread start_quiet_thread(const char* name, std::function<void()> body);

}  // namespace sinkstream
