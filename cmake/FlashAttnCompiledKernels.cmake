# Compiles one fatbin a (family, head dimension, dtype) with nvcc and writes the manifest beside them.
if(CMAKE_GENERATOR MATCHES "Visual Studio|Xcode")
  message(FATAL_ERROR "The generator \"${CMAKE_GENERATOR}\" can't build fatbins; ask for Ninja, with "
                      "CMAKE_GENERATOR or cmake's -G.")
endif()

include(FlashAttnToolkit)
include(FlashAttnArchitectures)
include(FlashAttnCudaFlags)

if(CMAKE_HOST_WIN32)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/nvcc_paths.py" "${CMAKE_CURRENT_SOURCE_DIR}"
            "${CMAKE_CURRENT_BINARY_DIR}" "${FLASH_ATTN_NVCC}" "${CMAKE_C_COMPILER}"
    ERROR_VARIABLE _error RESULT_VARIABLE _result ERROR_STRIP_TRAILING_WHITESPACE)
  if(NOT _result EQUAL 0)
    message(FATAL_ERROR "${_error}")
  endif()
endif()
set(CMAKE_CUDA_COMPILER "${FLASH_ATTN_NVCC}")
enable_language(CUDA)
list(JOIN FLASH_ATTN_SASS ", " _sass)
message(STATUS "Kernels: nvcc ${FLASH_ATTN_NVCC_VERSION} (${FLASH_ATTN_NVCC}, from ${FLASH_ATTN_NVCC_FROM}), "
               "SASS ${_sass}, PTX ${FLASH_ATTN_PTX}")

# sccache knows how to keep what nvcc makes for -fatbin. ccache (asked: 4.7) passes such compiles through.
find_program(_sccache NAMES sccache NO_CACHE)
if(_sccache AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER AND "$ENV{CMAKE_CUDA_COMPILER_LAUNCHER}" STREQUAL "")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${_sccache}")
  message(STATUS "Kernels: compiled through ${_sccache}")
endif()

set(_sources ${FLASH_ATTN_FATBINS})
list(TRANSFORM _sources PREPEND "${FLASH_ATTN_KERNEL_SOURCES_DIR}/")
list(TRANSFORM _sources APPEND ".cu")
add_library(flash_attn_fatbins OBJECT ${_sources})
set_target_properties(flash_attn_fatbins PROPERTIES
  CUDA_FATBIN_COMPILATION ON
  CUDA_STANDARD 17
  CUDA_STANDARD_REQUIRED ON
  CUDA_EXTENSIONS OFF)
target_include_directories(flash_attn_fatbins PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/csrc/flash_attn/src")
target_compile_options(flash_attn_fatbins PRIVATE ${FLASH_ATTN_DEVICE_FLAGS} ${FLASH_ATTN_HOST_FLAGS})

# A file of names, since a command line of them outgrows what Windows takes.
set(_objects "${FLASH_ATTN_GENERATED_DIR}/fatbins.txt")
file(GENERATE OUTPUT "${_objects}" CONTENT "$<JOIN:$<TARGET_OBJECTS:flash_attn_fatbins>,\n>\n")

# What the builder added through CUDAFLAGS or CMAKE_CUDA_FLAGS, without what only the host compiler sees.
separate_arguments(_extra_flags NATIVE_COMMAND "${CMAKE_CUDA_FLAGS}")
list(REMOVE_ITEM _extra_flags ${FLASH_ATTN_HOST_FLAGS})
list(FILTER _extra_flags EXCLUDE REGEX "^-Xcompiler|^-D_WINDOWS$")
list(JOIN FLASH_ATTN_SASS "," _sass)
file(GLOB _device_headers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/csrc/flash_attn/src/*")
set(_outputs ${FLASH_ATTN_FATBINS})
list(TRANSFORM _outputs PREPEND "${FLASH_ATTN_KERNELS_OUT}/")
list(TRANSFORM _outputs APPEND ".fatbin")
add_custom_command(
  OUTPUT "${FLASH_ATTN_KERNELS_OUT}/manifest.json" ${_outputs}
  COMMAND ${_manifest_command} write ${_manifest_common} --objects "${_objects}" --toolkit "${FLASH_ATTN_NVCC_VERSION}"
          --sass "${_sass}" --ptx "${FLASH_ATTN_PTX}" -- -std=c++17 ${FLASH_ATTN_DEVICE_FLAGS} ${_extra_flags}
  DEPENDS "$<TARGET_OBJECTS:flash_attn_fatbins>" "${_objects}" "${FLASH_ATTN_KERNEL_LIST}" "${FLASH_ATTN_KERNELS_JSON}"
          "${CMAKE_CURRENT_SOURCE_DIR}/cmake/manifest.py" ${_device_headers}
  COMMENT "Writing the kernels' manifest"
  COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(flash_attn_kernels ALL DEPENDS "${FLASH_ATTN_KERNELS_OUT}/manifest.json")
