# The CUDA kernels as a library, `_cuda`, next to `_core`, loaded if there is a GPU. It knows neither
# torch nor Python, links the CUDA runtime statically, exports one symbol, and loads without a driver.
# Built if nvcc is found; the build machine needs no GPU.

set(SINKSTREAM_CUDA AUTO CACHE STRING "Build the CUDA kernels: ON, OFF, or AUTO (if nvcc is found)")
if(NOT SINKSTREAM_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "SINKSTREAM_CUDA must be AUTO, OFF or ON, but is \"${SINKSTREAM_CUDA}\".")
endif()
if(SINKSTREAM_CUDA STREQUAL "OFF")
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(SINKSTREAM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SINKSTREAM_CUDA is ON, but nvcc was not found. Add its folder to PATH or "
                        "set CUDACXX=/usr/local/cuda/bin/nvcc")
  endif()
  message(STATUS "nvcc not found: building without the CUDA kernels")
  return()
endif()

# Machine code for Hopper, and PTX that the driver compiles for any GPU from Ampere on.
set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
  message(FATAL_ERROR "The CUDA kernels need nvcc 12.4 or newer, but ${CMAKE_CUDA_COMPILER} is "
                      "${CMAKE_CUDA_COMPILER_VERSION}. Set CUDACXX to another one, or build "
                      "without them: -DSINKSTREAM_CUDA=OFF")
endif()
# CMake 3.25 does not know that nvcc speaks C++20.
foreach(kind STANDARD EXTENSION)
  if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
  endif()
endforeach()

file(GLOB cuda_sources CONFIGURE_DEPENDS csrc/kernels/cuda/*.cu csrc/kernels/cuda/*/*.cu)
add_library(_cuda MODULE ${cuda_sources})
target_include_directories(_cuda PRIVATE csrc)
# relaxed-constexpr: constants come from headers shared with host code. fmad=false: kernels call fma
# where they need it; other fusions would differ from the emulator, which compiles the same sources.
target_compile_options(_cuda PRIVATE --expt-relaxed-constexpr -fmad=false -Werror=all-warnings
                                     -Xcompiler=-fvisibility=hidden)
set_target_properties(_cuda PROPERTIES PREFIX "" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                                       CUDA_RUNTIME_LIBRARY Static)
