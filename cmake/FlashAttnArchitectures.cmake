# The GPU architectures to compile for. FLASH_ATTN_CUDA_ARCHS comes from the cache, else from the environment, else from
# ci/matrix.toml, whose shards they are; each entry gets SASS, the newest PTX too.
#
# Sets FLASH_ATTN_SASS (80;90;...), FLASH_ATTN_PTX (120) and CMAKE_CUDA_ARCHITECTURES.

set(_matrix "${CMAKE_CURRENT_SOURCE_DIR}/ci/matrix.toml")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_matrix}")
file(STRINGS "${_matrix}" _line REGEX "^architectures *=")
string(REGEX MATCHALL "[0-9]+[af]?" FLASH_ATTN_DEFAULT_CUDA_ARCHS "${_line}")
if(NOT FLASH_ATTN_DEFAULT_CUDA_ARCHS)
  message(FATAL_ERROR "ci/matrix.toml has no line such as: architectures = [\"80\", \"90\"]; add it.")
endif()
set(_oldest 80)  # Ampere: mma.m16n8k16, ldmatrix and cp.async are what the kernels are made of

set(FLASH_ATTN_CUDA_ARCHS "" CACHE STRING "GPU architectures, such as 80;90;120 or native (empty: the environment \
variable of the same name, else ${FLASH_ATTN_DEFAULT_CUDA_ARCHS})")

if(NOT FLASH_ATTN_CUDA_ARCHS STREQUAL "")
  set(_asked "${FLASH_ATTN_CUDA_ARCHS}")
elseif(NOT "$ENV{FLASH_ATTN_CUDA_ARCHS}" STREQUAL "")
  set(_asked "$ENV{FLASH_ATTN_CUDA_ARCHS}")
else()
  set(_asked "${FLASH_ATTN_DEFAULT_CUDA_ARCHS}")
endif()
string(REGEX MATCHALL "[^ ,;\t]+" _entries "${_asked}")

# What the person typed, where a tool passes it on.
set(_setting "$ENV{FLASH_ATTN_ARCHS_OPTION}")
if(_setting STREQUAL "")
  set(_setting FLASH_ATTN_CUDA_ARCHS)
endif()

set(_supported ${FLASH_ATTN_NVCC_ARCHS})
list(FILTER _supported EXCLUDE REGEX "^[0-7]?[0-9]$")
list(JOIN _supported ", " _supported_text)
set(_supported_text "nvcc ${FLASH_ATTN_NVCC_VERSION} supports ${_supported_text}; native stands for this machine's GPUs")

# The architectures of this machine's GPUs, as the driver's own tool gives them.
function(_flash_attn_native_archs result)
  unset(_smi)
  find_program(_smi NAMES nvidia-smi NO_CACHE)
  set(_answer "")
  if(_smi)
    execute_process(COMMAND "${_smi}" --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE _answer ERROR_QUIET)
  endif()
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" _found "${_answer}")
  list(TRANSFORM _found REPLACE "\\." "")
  if(NOT _found)
    message(FATAL_ERROR "${_setting} has \"native\", but nvidia-smi finds no GPU on this machine; name the "
                        "architectures instead: ${_supported_text}.")
  endif()
  set(${result} "${_found}" PARENT_SCOPE)
endfunction()

set(FLASH_ATTN_SASS "")
foreach(_entry IN LISTS _entries)
  if(_entry STREQUAL "native")
    _flash_attn_native_archs(_archs)
  else()
    set(_archs "${_entry}")
  endif()
  foreach(_arch IN LISTS _archs)
    string(REGEX REPLACE "^([0-9]+)[af]$" "\\1" _number "${_arch}")
    if(NOT _number IN_LIST _supported)
      message(FATAL_ERROR "${_setting} has \"${_arch}\", which can't be compiled: ${_supported_text}.")
    endif()
    list(APPEND FLASH_ATTN_SASS "${_arch}")
  endforeach()
endforeach()
if(NOT FLASH_ATTN_SASS)
  message(FATAL_ERROR "${_setting} names no architecture: ${_supported_text}.")
endif()
list(REMOVE_DUPLICATES FLASH_ATTN_SASS)
list(SORT FLASH_ATTN_SASS COMPARE NATURAL)

# PTX of a feature-specific target such as 90a runs on nothing newer, so PTX is made for the plain number.
list(GET FLASH_ATTN_SASS -1 _newest)
string(REGEX REPLACE "[af]$" "" FLASH_ATTN_PTX "${_newest}")

set(CMAKE_CUDA_ARCHITECTURES "${FLASH_ATTN_SASS}")
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES APPEND "-real")
if(FLASH_ATTN_PTX IN_LIST FLASH_ATTN_SASS)
  list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^${FLASH_ATTN_PTX}-real$" "${FLASH_ATTN_PTX}")
else()
  list(APPEND CMAKE_CUDA_ARCHITECTURES "${FLASH_ATTN_PTX}-virtual")
endif()
