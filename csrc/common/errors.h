// The exceptions that may leave the core. Each becomes the Python class of the same name.
// A message has the shape: where: `name` must <rule>, but is <value>. <remedy>
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

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

// Appends a text, an address, or a number: %g for one with a fraction. Without streams, whose
// locale fails where this module carries its own C++ library next to another one's.
template <typename Part>
void append_to(std::string& text, const Part& part) {
  if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else if constexpr (std::is_floating_point_v<Part>) {
    char digits[32];
    text.append(digits, std::snprintf(digits, sizeof(digits), "%g", static_cast<double>(part)));
  } else if constexpr (std::is_integral_v<Part>) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof(digits), +part).ptr;
    text.append(digits, end);
  } else if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else {
    static_assert(std::is_pointer_v<Part>);
    char digits[24];
    text.append(digits,
                std::snprintf(digits, sizeof(digits), "%p", static_cast<const void*>(part)));
  }
}

// Concatenates its arguments.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::string text;
  (append_to(text, parts), ...);
  return text;
}

}  // namespace sinkstream
