// Named points at which a test makes a thread wait or fail, to force interleavings that happen by
// chance once in a million runs. They exist only in the tests' build of the engine, where
// SINKSTREAM_FAIL_POINTS is defined; everywhere else they compile to nothing.
#pragma once

#ifdef SINKSTREAM_FAIL_POINTS

namespace sinkstream {

constexpr bool kHasFailPoints = true;

// Does what a test has armed the point to do: it may wait or throw. Does nothing if it is not
// armed. Defined by the test programs, in tests/cpp/fail_points.
void reach_fail_point(const char* name);

}  // namespace sinkstream

#define SINKSTREAM_FAIL_POINT(name) ::sinkstream::reach_fail_point(name)

#else

namespace sinkstream {

constexpr bool kHasFailPoints = false;

}  // namespace sinkstream

#define SINKSTREAM_FAIL_POINT(name) static_cast<void>(0)

#endif
