// The exceptions that may leave the core. Each becomes the Python class of the same name.
// A message has the shape: where: `name` must <rule>, but is <value>. <remedy>
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace sinkstream {

struct Error : std::runtime_error {
  explicit Error(const std::string& message, std::string param_name = {})
      : std::runtime_error(message), param(std::move(param_name)) {}
  std::string param;  // the argument at fault; empty where there is none
};

// An argument has a value that the call cannot take.
struct InvalidArgument : Error {
  using Error::Error;
};
// A weight or a description in a checkpoint is wrong.
struct CheckpointError : Error {
  using Error::Error;
};
// The memory taken at load does not hold what is asked for.
struct CapacityError : Error {
  using Error::Error;
};
// Somebody else is using this stream right now.
struct SessionBusy : Error {
  using Error::Error;
};
// One sequence's logits hold NaN or infinity.
struct NonFiniteLogits : Error {
  explicit NonFiniteLogits(const std::string& message, int64_t index = -1)
      : Error(message, "logits"), index(index) {}
  int64_t index;  // of the token that they were for; below 0 where there is no stream
};
// The GPU, or its driver, has failed.
struct DeviceError : Error {
  using Error::Error;
};
// The generation thread has stopped after a failure.
struct EngineDead : Error {
  using Error::Error;
};
// The model belongs to the parent of this process.
struct ForkError : Error {
  using Error::Error;
};
// A promise of this package is broken.
struct InternalError : Error {
  using Error::Error;
};

// Joins its arguments as an output stream would print them.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace sinkstream
