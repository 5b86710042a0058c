// Threads that block all signals, so that the system delivers them to Python's threads.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>

namespace sinkstream {

// Starts a thread named `name`, at most 15 characters. Throws std::system_error if the system
// refuses.
std::thread start_quiet_thread(const char* name, std::function<void()> body);

// The same, but no one waits for the thread. Its stack has this size; it takes memory only where it
// is used.
void start_detached_thread(const char* name, size_t stack_bytes, std::function<void()> body);

}  // namespace sinkstream
