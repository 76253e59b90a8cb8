# The host's C compiler: it builds the launcher, and nvcc calls its C++ sibling.
include(CheckLanguage)
check_language(C)
if(NOT CMAKE_C_COMPILER)
  message(FATAL_ERROR "No C compiler was found; install one (Debian: apt-get install g++; Windows: the Visual Studio "
                      "Build Tools, which pip and nox find; cmake alone has to run in their command prompt) or name one "
                      "in CC.")
endif()
enable_language(C)

# The launcher must import nothing that a bare Windows doesn't have.
set(CMAKE_MSVC_RUNTIME_LIBRARY "MultiThreaded")
