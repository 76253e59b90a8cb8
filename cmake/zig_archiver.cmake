# A compiler check makes a static library, and Windows has no archiver: zig's own, once CMake has read what the target's
# platform would use. CMAKE_C_COMPILER is zig alone by then, without "cc".
set(CMAKE_C_ARCHIVE_CREATE "\"${CMAKE_C_COMPILER}\" ar qc <TARGET> <OBJECTS>")
set(CMAKE_C_ARCHIVE_FINISH "")
