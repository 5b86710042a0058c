// A shared library that is loaded at run time, if it exists. Knows nothing about its purpose.
#pragma once

#include <string>

namespace sinkstream {

// Stays loaded until the process ends, so that its symbols stay valid.
class SharedLibrary {
 public:
  // Never throws: if loading fails, `problem` has the system's message.
  explicit SharedLibrary(const std::string& path);

  bool is_loaded() const { return handle_ != nullptr; }
  const std::string& problem() const { return problem_; }
  // Null if there is no such symbol.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string problem_;
};

}  // namespace sinkstream
