# The host's C compiler: it builds the launcher, and nvcc calls its C++ sibling.
include(CheckLanguage)
check_language(C)
if(NOT CMAKE_C_COMPILER)
  message(FATAL_ERROR "No C compiler was found; install one (Debian: apt-get install g++; Windows: the Visual Studio "
                      "Build Tools, in whose command prompt the build must run) or name one in CC.")
endif()
enable_language(C)

# The launcher must import nothing that a bare Windows doesn't have.
set(CMAKE_MSVC_RUNTIME_LIBRARY "MultiThreaded")
