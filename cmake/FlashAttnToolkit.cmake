# Which nvcc compiles the kernels. In this order: CUDACXX or CMAKE_CUDA_COMPILER; CUDA_HOME or CUDA_PATH; nvcc on PATH;
# the toolkit that the package index installed for this build's Python (build_backend.py asks for it only when none of
# the others is there, in this same order).
#
# Sets FLASH_ATTN_NVCC, FLASH_ATTN_NVCC_VERSION (13.4.92) and FLASH_ATTN_NVCC_ARCHS (80;86;...).

set(FLASH_ATTN_MINIMUM_TOOLKIT 13.0)

# A path or a command name, as CUDACXX may hold either.
function(_flash_attn_resolve_nvcc setting value)
  unset(_program)
  find_program(_program NAMES "${value}" NO_CACHE)
  if(NOT _program)
    message(FATAL_ERROR "${setting} is \"${value}\", which is no program; set it to a CUDA compiler (nvcc) or unset it.")
  endif()
  set(FLASH_ATTN_NVCC "${_program}" PARENT_SCOPE)
  set(FLASH_ATTN_NVCC_FROM "${setting}" PARENT_SCOPE)
endfunction()

function(_flash_attn_nvcc_in_toolkit setting folder)
  unset(_program)
  find_program(_program NAMES nvcc PATHS "${folder}/bin" NO_DEFAULT_PATH NO_CACHE)
  if(NOT _program)
    message(FATAL_ERROR "${setting} is \"${folder}\", which holds no bin/nvcc; set it to a CUDA toolkit or unset it.")
  endif()
  set(FLASH_ATTN_NVCC "${_program}" PARENT_SCOPE)
  set(FLASH_ATTN_NVCC_FROM "${setting}" PARENT_SCOPE)
endfunction()

function(_flash_attn_packaged_nvcc)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/build_backend.py"
    OUTPUT_VARIABLE _folder OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT _folder)
    message(FATAL_ERROR "No CUDA compiler was found: set CUDACXX or CUDA_HOME, put nvcc on PATH, or let pip install "
                        "the requirements in cmake/cuda-toolkit.txt for this Python (${Python_EXECUTABLE}).")
  endif()
  _flash_attn_nvcc_in_toolkit("The installed cuda-toolkit package" "${_folder}")
  return(PROPAGATE FLASH_ATTN_NVCC FLASH_ATTN_NVCC_FROM)
endfunction()

if(CMAKE_CUDA_COMPILER)
  _flash_attn_resolve_nvcc(CMAKE_CUDA_COMPILER "${CMAKE_CUDA_COMPILER}")
elseif(NOT "$ENV{CUDACXX}" STREQUAL "")
  _flash_attn_resolve_nvcc(CUDACXX "$ENV{CUDACXX}")
elseif(NOT "$ENV{CUDA_HOME}" STREQUAL "")
  _flash_attn_nvcc_in_toolkit(CUDA_HOME "$ENV{CUDA_HOME}")
elseif(NOT "$ENV{CUDA_PATH}" STREQUAL "")
  _flash_attn_nvcc_in_toolkit(CUDA_PATH "$ENV{CUDA_PATH}")
else()
  find_program(FLASH_ATTN_NVCC NAMES nvcc NO_CACHE NO_PACKAGE_ROOT_PATH NO_CMAKE_PATH NO_CMAKE_SYSTEM_PATH)
  set(FLASH_ATTN_NVCC_FROM "PATH")
  if(NOT FLASH_ATTN_NVCC)
    _flash_attn_packaged_nvcc()
  endif()
endif()

execute_process(COMMAND "${FLASH_ATTN_NVCC}" --version
                OUTPUT_VARIABLE _output ERROR_VARIABLE _error RESULT_VARIABLE _result)
if(NOT _result EQUAL 0 OR NOT _output MATCHES "release [0-9.]+, V([0-9]+\\.[0-9]+\\.[0-9]+)")
  message(FATAL_ERROR "${FLASH_ATTN_NVCC} (from ${FLASH_ATTN_NVCC_FROM}) does not answer to --version as nvcc does; set "
                      "CUDACXX to the nvcc of a CUDA toolkit from ${FLASH_ATTN_MINIMUM_TOOLKIT} on.")
endif()
set(FLASH_ATTN_NVCC_VERSION "${CMAKE_MATCH_1}")
if(FLASH_ATTN_NVCC_VERSION VERSION_LESS FLASH_ATTN_MINIMUM_TOOLKIT)
  message(FATAL_ERROR "${FLASH_ATTN_NVCC} (from ${FLASH_ATTN_NVCC_FROM}) is CUDA ${FLASH_ATTN_NVCC_VERSION}, but toolkits "
                      "from ${FLASH_ATTN_MINIMUM_TOOLKIT} on are supported; set CUDACXX to a newer nvcc, or remove this "
                      "one from the search so that the one of the package index is used.")
endif()

execute_process(COMMAND "${FLASH_ATTN_NVCC}" --list-gpu-arch OUTPUT_VARIABLE _output COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "compute_[0-9]+" FLASH_ATTN_NVCC_ARCHS "${_output}")
list(TRANSFORM FLASH_ATTN_NVCC_ARCHS REPLACE "compute_" "")
list(SORT FLASH_ATTN_NVCC_ARCHS COMPARE NATURAL)
