# Collects the tests of a folder that carry a mark, as a filter of GoogleTest:
#   TEST(Suite, Name) {  // <mark>
# The mark and the name share a line, so that a test keeps its mark under a new name. A mark that is
# not at a test, and a folder without a marked test, are errors.
function(marked_tests result folder mark)
  set(filter "")
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*_test.cc)
  foreach(source ${sources})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(READ ${source} text)
    string(REGEX MATCHALL "// ${mark}\n" marks "${text}")
    string(REGEX MATCHALL "\nTEST(_F|_P)?\\([A-Za-z0-9]+,[ \n]+[A-Za-z0-9]+\\) {  // ${mark}\n" tests
           "${text}")
    list(LENGTH marks mark_count)
    list(LENGTH tests test_count)
    if(NOT mark_count EQUAL test_count)
      message(FATAL_ERROR "${source} must mark tests with \"// ${mark}\", but has ${mark_count} "
                          "marks and ${test_count} marked tests.")
    endif()
    foreach(test ${tests})
      string(REGEX REPLACE ".*\\(([A-Za-z0-9]+),[ \n]+([A-Za-z0-9]+)\\).*" "\\1.\\2" name "${test}")
      list(APPEND filter ${name} */${name}/*)  # by itself, and in each of its instances
    endforeach()
  endforeach()
  if(NOT filter)
    message(FATAL_ERROR "No test of tests/cpp/${folder} is marked with \"// ${mark}\".")
  endif()
  list(JOIN filter ":" filter)
  set(${result} "${filter}" PARENT_SCOPE)
endfunction()
