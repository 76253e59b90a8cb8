# The launcher: a shared library with a plain C interface and no runtime of its own. Files ending in _posix.c or
# _windows.c belong to that platform alone.
file(GLOB _sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/csrc/flash_attn/launch/*.c")
if(WIN32)
  list(FILTER _sources EXCLUDE REGEX "_posix\\.c$")
else()
  list(FILTER _sources EXCLUDE REGEX "_windows\\.c$")
endif()

add_library(flash_attn_launcher SHARED ${_sources})
set_target_properties(flash_attn_launcher PROPERTIES
  OUTPUT_NAME flash_attn
  C_STANDARD 11
  C_STANDARD_REQUIRED ON
  C_EXTENSIONS OFF
  C_VISIBILITY_PRESET hidden)
if(WIN32)
  set_target_properties(flash_attn_launcher PROPERTIES PREFIX "")
endif()
target_include_directories(flash_attn_launcher PRIVATE
  "${CMAKE_CURRENT_SOURCE_DIR}/csrc/flash_attn/launch"
  "${CMAKE_CURRENT_SOURCE_DIR}/csrc/flash_attn/src"
  "${FLASH_ATTN_GENERATED_DIR}")
if(MSVC)
  # /Brepro: no time of day in the DLL, which the verifier would refuse.
  target_compile_options(flash_attn_launcher PRIVATE /W4 /utf-8 /Brepro)
  target_link_options(flash_attn_launcher PRIVATE /Brepro)
else()
  target_compile_options(flash_attn_launcher PRIVATE -Wall -Wextra)
endif()
target_link_libraries(flash_attn_launcher PRIVATE ${CMAKE_DL_LIBS})
if(NOT WIN32)
  include(FlashAttnOldGlibc)
endif()

install(TARGETS flash_attn_launcher
  LIBRARY DESTINATION flash_attn/lib
  RUNTIME DESTINATION flash_attn/lib)
