# Looks into OBJECT, which the table amx was compiled to; fails if it lacks an instruction of the
# tile unit.
execute_process(COMMAND ${OBJDUMP} -d ${OBJECT} OUTPUT_VARIABLE code COMMAND_ERROR_IS_FATAL ANY)
foreach(instruction ldtilecfg tilezero tileloadd tdpbf16ps tilestored tilerelease)
  if(NOT code MATCHES "\t${instruction}")
    message(FATAL_ERROR "${OBJECT} holds no ${instruction}.")
  endif()
endforeach()
