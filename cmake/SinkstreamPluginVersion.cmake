# The version of the interface between `_core` and `_cuda`: a hash of kernels/cuda/plugin.h and all
# headers of ours that it includes, so that a library from another build is rejected, not called.

# Returns plugin.h and what it includes, as paths below `folder`, sorted.
function(plugin_headers folder result)
  set(found "")
  set(unread kernels/cuda/plugin.h)
  while(unread)
    list(POP_FRONT unread header)
    if(header IN_LIST found OR NOT EXISTS "${folder}/${header}")  # the generated one does not exist
      continue()
    endif()
    list(APPEND found ${header})
    file(STRINGS "${folder}/${header}" lines REGEX "^#include \"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
      list(APPEND unread ${included})
    endforeach()
  endwhile()
  list(SORT found)
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Returns the version: 16 hexadecimal digits.
function(plugin_version folder result)
  plugin_headers("${folder}" headers)
  set(hashes "")
  foreach(header IN LISTS headers)
    file(SHA256 "${folder}/${header}" hash)
    list(APPEND hashes ${header} ${hash})
  endforeach()
  string(SHA256 whole "${hashes}")
  string(SUBSTRING ${whole} 0 16 version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()

# Writes <build>/generated/kernels/cuda/plugin_version.h, again whenever one of the headers changes.
function(write_plugin_version folder)
  plugin_headers("${folder}" headers)
  list(TRANSFORM headers PREPEND "${folder}/")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
  plugin_version("${folder}" PLUGIN_VERSION)
  configure_file("${folder}/kernels/cuda/plugin_version.h.in"
                 "${CMAKE_BINARY_DIR}/generated/kernels/cuda/plugin_version.h" @ONLY)
endfunction()
