# Finds torch for the Python interpreter of this build, without importing it.
#
# Defines `sinkstream_torch` (include directories and four libraries) and SINKSTREAM_TORCH_VERSION,
# and installs _torch_version.py, which holds the same version for `import sinkstream` to check.
# find_package(Torch) is avoided on purpose: on CUDA builds it asks for a toolkit and for targets
# that no longer exist, and we need none of them (docs/decisions/0001).

set(finder ${CMAKE_CURRENT_LIST_DIR}/../backend/find_torch.py)
execute_process(
  COMMAND ${Python_EXECUTABLE} ${finder}
  RESULT_VARIABLE finder_result
  OUTPUT_VARIABLE finder_output
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT finder_result EQUAL 0)
  message(FATAL_ERROR "build: torch is not installed for ${Python_EXECUTABLE}. "
                      "Install it first: pip install \"torch>=2.11\"")
endif()
string(REPLACE "\n" ";" finder_output "${finder_output}")
list(GET finder_output 0 torch_folder)
list(GET finder_output 1 SINKSTREAM_TORCH_VERSION)
if(SINKSTREAM_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "build: torch must be at least 2.11, but is ${SINKSTREAM_TORCH_VERSION}. "
                      "Upgrade it: pip install \"torch>=2.11\"")
endif()
message(STATUS "Found torch ${SINKSTREAM_TORCH_VERSION}: ${torch_folder}")
# Another torch in the same place means another C++ interface: configure again.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${torch_folder}/version.py)

add_library(sinkstream_torch INTERFACE)
# SYSTEM: no warnings from torch's headers, and they are searched after our own and pybind11's.
target_include_directories(sinkstream_torch SYSTEM INTERFACE
  ${torch_folder}/include
  ${torch_folder}/include/torch/csrc/api/include)
foreach(library c10 torch_cpu torch torch_python)
  set(library_file ${torch_folder}/lib/lib${library}.so)
  if(NOT EXISTS ${library_file})
    message(FATAL_ERROR "build: torch ${SINKSTREAM_TORCH_VERSION} must carry ${library_file}, but "
                        "does not. Reinstall torch.")
  endif()
  add_library(sinkstream_torch_${library} SHARED IMPORTED)
  set_target_properties(sinkstream_torch_${library} PROPERTIES IMPORTED_LOCATION ${library_file})
  target_link_libraries(sinkstream_torch INTERFACE sinkstream_torch_${library})
endforeach()

# `import sinkstream` compares this with the torch that runs, before it loads the core.
set(torch_version_file ${CMAKE_CURRENT_BINARY_DIR}/_torch_version.py)
file(CONFIGURE OUTPUT ${torch_version_file} CONTENT
  "\"\"\"Written by the build: the torch release that the core was compiled against.\"\"\"

BUILT_AGAINST = \"${SINKSTREAM_TORCH_VERSION}\"
")
install(FILES ${torch_version_file} DESTINATION sinkstream)
