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
  std::string param;  // the argument at fault; may be empty
};

// An argument has a value that the call does not accept.
struct InvalidArgument : Error {
  using Error::Error;
};
// A weight or a description in a checkpoint is wrong.
struct CheckpointError : Error {
  using Error::Error;
};
// The memory allocated at load is too small for the request.
struct CapacityError : Error {
  using Error::Error;
};
// Another caller is using this stream or session.
struct SessionBusy : Error {
  using Error::Error;
};
// One sequence's logits hold NaN or infinity.
struct NonFiniteLogits : Error {
  explicit NonFiniteLogits(const std::string& message, int64_t index = -1)
      : Error(message, "logits"), index(index) {}
  int64_t index;  // of the token to be sampled from them; negative outside a stream
};
// The GPU or its driver failed.
struct DeviceError : Error {
  using Error::Error;
};
// The generation thread has stopped.
struct EngineDead : Error {
  using Error::Error;
};
// The model was loaded in a parent of this process.
struct ForkError : Error {
  using Error::Error;
};
// An invariant of this package is broken.
struct InternalError : Error {
  using Error::Error;
};

// Concatenates its arguments as an output stream prints them.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace sinkstream
