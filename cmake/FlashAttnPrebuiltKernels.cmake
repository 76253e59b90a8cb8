# Takes fatbins that were built elsewhere. The CUDA language stays off: neither toolkit nor host C++ is needed.
execute_process(COMMAND ${_manifest_command} adopt ${_manifest_common} --prebuilt "${_prebuilt}"
                ERROR_VARIABLE _error RESULT_VARIABLE _result ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT _result EQUAL 0)
  message(FATAL_ERROR "${_error}")
endif()
message(STATUS "Kernels: taken from ${_prebuilt}")
