# Lets a launcher that is built beside a new glibc run beside an old one. glibc 2.34 moved dlopen and dlsym from libdl to
# libc under a new symbol version, and kept the old ones for programs built before. Asking for the old ones, and for the
# library that held them, is all that keeps the wheel from being bound to the glibc of the machine that built it.
include(CheckCSourceCompiles)
check_c_source_compiles("
#include <features.h>
#if !defined(__GLIBC__) || !__GLIBC_PREREQ(2, 34)
#error older, or another C library
#endif
int main(void) { return 0; }" FLASH_ATTN_NEW_GLIBC)

if(FLASH_ATTN_NEW_GLIBC)
  set_property(SOURCE "${CMAKE_CURRENT_SOURCE_DIR}/csrc/flash_attn/launch/platform_posix.c" APPEND PROPERTY
    COMPILE_OPTIONS -include "${CMAKE_CURRENT_SOURCE_DIR}/cmake/old_glibc.h")
  target_link_options(flash_attn_launcher PRIVATE "LINKER:--push-state,--no-as-needed,-l:libdl.so.2,--pop-state")
endif()
