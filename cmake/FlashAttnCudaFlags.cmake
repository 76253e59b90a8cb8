# How the kernels are compiled: the same device code whatever the host, the build type or the shell's environment.
#
# Sets FLASH_ATTN_DEVICE_FLAGS (what decides the kernels' bytes) and FLASH_ATTN_HOST_FLAGS (what only the host compiler
# sees); call it after the host compiler is known and before CUDA is enabled.

set(FLASH_ATTN_DEVICE_FLAGS -O3 --compress-mode=size)

option(FLASH_ATTN_ALLOW_UNSUPPORTED_COMPILER "Let nvcc call a host compiler that it doesn't know" OFF)

set(FLASH_ATTN_HOST_FLAGS "")
if(MSVC)
  # CCCL refuses MSVC's traditional preprocessor from 13.2 on, and __cplusplus is 199711L without the second.
  list(APPEND FLASH_ATTN_HOST_FLAGS -Xcompiler=/Zc:preprocessor -Xcompiler=/Zc:__cplusplus)
endif()
if(FLASH_ATTN_ALLOW_UNSUPPORTED_COMPILER)
  list(APPEND FLASH_ATTN_HOST_FLAGS --allow-unsupported-compiler)
endif()

# CMake's own compiler checks are CUDA compiles too.
list(JOIN FLASH_ATTN_HOST_FLAGS " " _flags)
string(APPEND CMAKE_CUDA_FLAGS_INIT " ${_flags}")

# A build type would add -g or a second -O.
foreach(_config IN ITEMS DEBUG RELEASE RELWITHDEBINFO MINSIZEREL)
  set(CMAKE_CUDA_FLAGS_${_config} "")
endforeach()
