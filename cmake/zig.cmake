# Builds the launcher for another platform with zig, which carries every platform's C library. The environment says which:
#   FLASH_ATTN_ZIG          zig's own program; unset, that of the package ziglang of the Python that builds
#   FLASH_ATTN_ZIG_TARGET   such as x86_64-windows-gnu or aarch64-linux-gnu.2.17
set(_target "$ENV{FLASH_ATTN_ZIG_TARGET}")
if(NOT _target MATCHES "^([a-z0-9_]+)-(windows|linux)-gnu")
  message(FATAL_ERROR "FLASH_ATTN_ZIG_TARGET is \"${_target}\"; it must be a zig target such as x86_64-windows-gnu.")
endif()
set(CMAKE_SYSTEM_PROCESSOR "${CMAKE_MATCH_1}")
if(CMAKE_MATCH_2 STREQUAL "windows")
  set(CMAKE_SYSTEM_NAME Windows)
  set(CMAKE_SYSTEM_VERSION 10.0)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
if(NOT DEFINED ENV{FLASH_ATTN_ZIG})
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'), end='')"
    OUTPUT_VARIABLE _zig ERROR_QUIET)
  if(CMAKE_HOST_WIN32 AND _zig)
    string(APPEND _zig ".exe")
  endif()
  if(NOT _zig)
    message(FATAL_ERROR "FLASH_ATTN_ZIG_TARGET asks for zig, but FLASH_ATTN_ZIG names none and the Python that builds has "
                        "no package ziglang; install it.")
  endif()
  set(ENV{FLASH_ATTN_ZIG} "${_zig}")
endif()
file(TO_CMAKE_PATH "$ENV{FLASH_ATTN_ZIG}" _zig)
set(CMAKE_C_COMPILER "${_zig}" cc -target "${_target}")
set(CMAKE_USER_MAKE_RULES_OVERRIDE "${CMAKE_CURRENT_LIST_DIR}/zig_archiver.cmake")
# No debug information: it would name the files of the machine that built it.
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s")
# Nor a second stripping when installed: GNU's strip and LLVM's leave different bytes, and machines have either.
set(CMAKE_STRIP "" CACHE FILEPATH "Program that strips what is installed" FORCE)
# The programs that CMake would look for beside the compiler are the host's, and a shared library needs none of them.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# A compiler check that links a program would have zig build a second C runtime, which takes minutes on Windows. None of them
# links; CMake's question which compiler this is does, so it is answered here.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
if(CMAKE_SYSTEM_NAME STREQUAL "Windows")
  set(CMAKE_C_COMPILER_ID_RUN TRUE)
  set(CMAKE_C_COMPILER_ID Clang)
  set(CMAKE_C_COMPILER_FRONTEND_VARIANT GNU)
  set(CMAKE_C_PLATFORM_ID MinGW)
  set(CMAKE_C_STANDARD_COMPUTED_DEFAULT 17)
  set(CMAKE_C_EXTENSIONS_COMPUTED_DEFAULT ON)
  execute_process(
    COMMAND "${_zig}" cc -dumpversion
    OUTPUT_VARIABLE CMAKE_C_COMPILER_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
