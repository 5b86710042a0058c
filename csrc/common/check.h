// Checks our own invariants. A user's mistake throws InvalidArgument with a sentence instead.
#pragma once

#include "common/errors.h"

#define SINKSTREAM_CHECK(condition, ...)                                          \
  do {                                                                            \
    if (!(condition)) [[unlikely]]                                                \
      throw ::sinkstream::InternalError(                                          \
          ::sinkstream::cat(__func__, ": ", ::sinkstream::cat(__VA_ARGS__),       \
                            ". This is a bug in sinkstream; please report it.")); \
  } while (false)
