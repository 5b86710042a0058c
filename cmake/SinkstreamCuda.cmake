# The CUDA kernels as a library, `_cuda`, next to `_core`, loaded if there is a GPU. It knows neither
# torch nor Python, links the CUDA runtime statically, exports one symbol, and loads without a driver.
# Compiling needs nvcc, but no GPU.

set(SINKSTREAM_CUDA AUTO CACHE STRING
    "Build the CUDA kernels: ON, OFF, or AUTO (if there are a GPU and an nvcc that compiles them)")
set(SINKSTREAM_CUDA_CODE QUICK CACHE STRING
    "Machine code for GPUs: QUICK (those of this machine), or RELEASE (every generation)")
set(SINKSTREAM_DEVICES /dev CACHE INTERNAL "Where GPUs have their device nodes; tests name another")
option(SINKSTREAM_CUDA_WERROR "Let a warning of nvcc fail the build" OFF)
if(NOT SINKSTREAM_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "SINKSTREAM_CUDA must be AUTO, OFF or ON, but is \"${SINKSTREAM_CUDA}\".")
endif()
if(NOT SINKSTREAM_CUDA_CODE MATCHES "^(QUICK|RELEASE)$")
  message(FATAL_ERROR "SINKSTREAM_CUDA_CODE must be QUICK or RELEASE, but is "
                      "\"${SINKSTREAM_CUDA_CODE}\".")
endif()
if(SINKSTREAM_CUDA STREQUAL "OFF")
  return()
endif()

# The kernels take as long to compile as all the rest, so a machine without a GPU does without them.
# dxg: WSL.
file(GLOB gpus ${SINKSTREAM_DEVICES}/nvidia[0-9]* ${SINKSTREAM_DEVICES}/dxg)
if(SINKSTREAM_CUDA STREQUAL "AUTO" AND NOT gpus)
  message(STATUS "Building without the CUDA kernels: this machine has no NVIDIA GPU. For them: "
                 "SINKSTREAM_CUDA=ON")
  return()
endif()

# Machine code for the GPUs of this machine, if the driver names them. Otherwise for compute
# capability 9.0 or all, and PTX that the driver compiles for any other GPU from Ampere on.
set(least_nvcc 12.4)
set(machine_code "")
set(ptx "")
if(SINKSTREAM_CUDA_CODE STREQUAL "RELEASE")
  set(least_nvcc 12.8)
  set(machine_code 80 86 89 90a 100 120)
  set(ptx 80-virtual)
elseif(gpus)
  # From 8.0 on: no older GPU runs the kernels.
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    string(REGEX MATCHALL "([89]|[1-9][0-9])[.][0-9]" machine_code "${said}")
    list(TRANSFORM machine_code REPLACE "[.]" "")
    list(TRANSFORM machine_code REPLACE "^90$" 90a)
    list(REMOVE_DUPLICATES machine_code)
  endif()
endif()
if(NOT machine_code)
  set(machine_code 90a)
  set(ptx 80-virtual)
endif()
list(TRANSFORM machine_code APPEND -real OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
list(APPEND CMAKE_CUDA_ARCHITECTURES ${ptx})

# relaxed-constexpr: constants come from headers shared with host code. fmad=false: kernels call fma
# where they need it; other fusions would differ from the emulator, which compiles the same sources.
set(cuda_options --expt-relaxed-constexpr -fmad=false -Xcompiler=-fvisibility=hidden)

# Returns why this nvcc cannot compile the kernels, or nothing: its version, and a small kernel
# compiled and linked. enable_language would end the build instead.
function(why_not_nvcc nvcc result)
  set(${result} "" PARENT_SCOPE)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT said MATCHES "release ([0-9]+[.][0-9]+)")
    set(${result} "${nvcc} does not say its version" PARENT_SCOPE)
  elseif(CMAKE_MATCH_1 VERSION_LESS ${least_nvcc})
    set(${result} "${nvcc} is ${CMAKE_MATCH_1}, but the kernels need ${least_nvcc} or newer"
        PARENT_SCOPE)
  else()
    set(host "")
    if(DEFINED ENV{CUDAHOSTCXX})
      set(host -ccbin $ENV{CUDAHOSTCXX})
    endif()
    execute_process(
      COMMAND ${nvcc} ${host} -std=c++20 ${cuda_options} -arch=compute_80 -Xcompiler=-fPIC -shared
              -I${CMAKE_CURRENT_SOURCE_DIR}/csrc -o ${CMAKE_CURRENT_BINARY_DIR}/nvcc_works.so
              ${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels/cuda/embedding.cu
      RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(failed)
      string(REGEX MATCH "[^\n]*(error|fatal|unsupported)[^\n]*" error "${said}")
      if(NOT error)
        string(REGEX MATCH "[^\n]+" error "${said}")
      endif()
      set(${result} "${nvcc} cannot compile them: ${error}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

if(CMAKE_CUDA_COMPILER)
  set(nvcc ${CMAKE_CUDA_COMPILER})
elseif(DEFINED ENV{CUDACXX})
  set(nvcc $ENV{CUDACXX})
else()
  find_program(SINKSTREAM_NVCC nvcc NO_CACHE)
  set(nvcc ${SINKSTREAM_NVCC})
endif()
if(NOT nvcc)
  set(problem "nvcc was not found")
elseif(NOT CMAKE_CUDA_COMPILER_LOADED AND NOT nvcc STREQUAL "${SINKSTREAM_NVCC_WORKS}")
  why_not_nvcc(${nvcc} problem)
endif()
if(problem)
  set(remedy "Add the folder of nvcc to PATH, or set CUDACXX=/usr/local/cuda/bin/nvcc.")
  if(SINKSTREAM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SINKSTREAM_CUDA is ON, but ${problem}. ${remedy} Without the CUDA kernels: "
                        "SINKSTREAM_CUDA=OFF")
  endif()
  message(STATUS "Building without the CUDA kernels: ${problem}. For them: ${remedy}")
  return()
endif()
set(SINKSTREAM_NVCC_WORKS ${nvcc} CACHE INTERNAL "This nvcc has compiled a kernel")

enable_language(CUDA)
# CMake 3.25 does not know that nvcc speaks C++20.
foreach(kind STANDARD EXTENSION)
  if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
  endif()
endforeach()

# What has no device code is not compiled by nvcc, which would take five times as long.
file(GLOB cuda_sources CONFIGURE_DEPENDS csrc/kernels/cuda/*.cu csrc/kernels/cuda/*/*.cu)
add_library(_cuda MODULE ${cuda_sources} ${plugin_sources})
target_include_directories(_cuda PRIVATE csrc ${CMAKE_CURRENT_BINARY_DIR}/generated)
target_include_directories(_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
list(JOIN machine_code " " machine_code)
set(has_ptx false)
if(ptx)
  set(has_ptx true)
endif()
set_source_files_properties(
  csrc/kernels/cuda/plugin.cc PROPERTIES COMPILE_DEFINITIONS
  "SINKSTREAM_MACHINE_CODE=\"${machine_code}\";SINKSTREAM_HAS_PTX=${has_ptx}")
target_compile_options(_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_options}>"
                                     "$<$<COMPILE_LANGUAGE:CXX>:${core_options}>")
if(SINKSTREAM_CUDA_WERROR)
  target_compile_options(_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
set_target_properties(_cuda PROPERTIES PREFIX "" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                                       CUDA_RUNTIME_LIBRARY Static)
