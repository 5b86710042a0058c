// A library that is loaded while the program runs, where there is one. Knows nothing of what it is
// for.
#pragma once

#include <string>

namespace sinkstream {

// Stays loaded until the process ends: what it has handed out may be used anywhere.
class SharedLibrary {
 public:
  // Loads nothing if it cannot; `problem` says why, in the system's words.
  explicit SharedLibrary(const std::string& path);

  bool is_loaded() const { return handle_ != nullptr; }
  const std::string& problem() const { return problem_; }
  // Null if it has no such symbol.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string problem_;
};

}  // namespace sinkstream
