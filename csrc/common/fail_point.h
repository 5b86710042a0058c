// Named places at which a test makes a thread wait or fail, so that threads meet in the orders that
// chance brings about once in a million times. They exist in the tests' own build of the engine,
// where SINKSTREAM_FAIL_POINTS is defined; everywhere else they are nothing.
#pragma once

#ifdef SINKSTREAM_FAIL_POINTS

namespace sinkstream {

constexpr bool kHasFailPoints = true;

// Does what a test has armed the place with: may wait, may throw. Nothing if it is not armed.
// Defined by the test programs, in tests/cpp/fail_points.
void reach_fail_point(const char* place);

}  // namespace sinkstream

#define SINKSTREAM_FAIL_POINT(place) ::sinkstream::reach_fail_point(place)

#else

namespace sinkstream {

constexpr bool kHasFailPoints = false;

}  // namespace sinkstream

#define SINKSTREAM_FAIL_POINT(place) static_cast<void>(0)

#endif
