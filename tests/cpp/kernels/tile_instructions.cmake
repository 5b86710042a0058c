# Fails if OBJECT, the compiled table amx, lacks an instruction of the tile unit.
execute_process(COMMAND ${OBJDUMP} -d ${OBJECT} OUTPUT_VARIABLE code COMMAND_ERROR_IS_FATAL ANY)
foreach(instruction ldtilecfg tilezero tileloadd tdpbf16ps tdpbssd tilestored tilerelease)
  if(NOT code MATCHES "\t${instruction}")
    message(FATAL_ERROR "${OBJECT} has no ${instruction}.")
  endif()
endforeach()
