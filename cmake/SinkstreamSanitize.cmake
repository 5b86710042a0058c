# SINKSTREAM_SANITIZE=thread finds data races; address finds memory errors, leaks and undefined
# behavior. All findings are fatal, and none are suppressed. Such a build is for the C++ tests:
# Python itself is not built with sanitizers and could not load the module.
set(SINKSTREAM_SANITIZE "" CACHE STRING "Find faults while tests run: thread, address, or nothing")

if(NOT SINKSTREAM_SANITIZE MATCHES "^(thread|address|)$")
  message(FATAL_ERROR "SINKSTREAM_SANITIZE must be address, thread or empty, but is "
                      "\"${SINKSTREAM_SANITIZE}\".")
endif()
if(SINKSTREAM_SANITIZE AND SINKSTREAM_PYTHON)
  message(FATAL_ERROR "SINKSTREAM_SANITIZE is for the C++ tests: Python cannot load a module built "
                      "with sanitizers. Add -DSINKSTREAM_PYTHON=OFF -DSINKSTREAM_TESTS=ON.")
endif()

if(SINKSTREAM_SANITIZE)
  set(sanitizers_thread -fsanitize=thread)
  set(sanitizers_address -fsanitize=address,undefined -fno-sanitize-recover=all)
  # -O1, so that reports name the right source lines. -g1 is enough for that, and compiles a third
  # faster than full debug information. Kernel tables keep their own -O3.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  add_compile_options(${sanitizers_${SINKSTREAM_SANITIZE}} -fno-omit-frame-pointer)
  # Tables are -O3 and mostly intrinsics: with inline checks, one takes minutes to compile. So their
  # memory accesses are checked by calls, and undefined behavior is checked in the reference only.
  if(SINKSTREAM_SANITIZE STREQUAL "address")
    set(sanitize_tables -fno-sanitize=undefined --param=asan-instrumentation-with-call-threshold=0)
  endif()
  add_link_options(${sanitizers_${SINKSTREAM_SANITIZE}})
endif()
