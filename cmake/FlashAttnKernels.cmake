# The kernels' folder of the wheel, made in ${FLASH_ATTN_KERNELS_OUT}: compiled here, or built elsewhere and checked.

set(FLASH_ATTN_KERNELS_OUT "${CMAKE_CURRENT_BINARY_DIR}/kernels")
set(FLASH_ATTN_KERNELS_DIR "" CACHE PATH "Folder of fatbins built elsewhere, with their manifest.json (empty: the \
environment variable of the same name, else compile)")
set(_prebuilt "${FLASH_ATTN_KERNELS_DIR}")
if(_prebuilt STREQUAL "")
  file(TO_CMAKE_PATH "$ENV{FLASH_ATTN_KERNELS_DIR}" _prebuilt)
endif()
set(_manifest_command "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/manifest.py")
set(_manifest_common --kernel-list "${FLASH_ATTN_KERNEL_LIST}" --source "${CMAKE_CURRENT_SOURCE_DIR}"
                     --version "${FLASH_ATTN_VERSION}" --output "${FLASH_ATTN_KERNELS_OUT}")

if(NOT _prebuilt STREQUAL "")
  include(FlashAttnPrebuiltKernels)
else()
  include(FlashAttnCompiledKernels)
endif()

set(_files ${FLASH_ATTN_FATBINS})
list(TRANSFORM _files PREPEND "${FLASH_ATTN_KERNELS_OUT}/")
list(TRANSFORM _files APPEND ".fatbin")
install(FILES ${_files} "${FLASH_ATTN_KERNELS_OUT}/manifest.json" DESTINATION flash_attn/kernels)
