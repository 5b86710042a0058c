# The library SHIPPED must not ask for fail points; the tests' own, TESTED, must, or this test would
# look for the wrong name.
foreach(library SHIPPED TESTED)
  execute_process(COMMAND ${NM} -C --undefined-only ${${library}} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "reach_fail_point|check_invariants" found_${library} "${symbols}")
endforeach()
if(found_SHIPPED)
  message(FATAL_ERROR "${SHIPPED} has fail points or invariants: ${found_SHIPPED}")
endif()
foreach(name reach_fail_point check_invariants)
  if(NOT "${found_TESTED}" MATCHES ${name})
    message(FATAL_ERROR "${TESTED} has no ${name}.")
  endif()
endforeach()
