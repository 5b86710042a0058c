# Runs PROGRAM with FAULT. The sanitizer must print REPORT and name SUSPECT, where the fault is, and the
# program must fail: a report that fails nothing would be overlooked.
execute_process(COMMAND ${PROGRAM} ${FAULT} RESULT_VARIABLE status OUTPUT_VARIABLE output
                ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "The sanitizer is silent about a planted ${FAULT}:\n${output}")
endif()
foreach(part "${REPORT}" "${SUSPECT}")
  if(NOT output MATCHES "${part}")
    message(FATAL_ERROR "A planted ${FAULT} ends with ${status}, but without \"${part}\":\n${output}")
  endif()
endforeach()
