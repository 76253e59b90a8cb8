"""The mock driver as ``nvcuda.dll``, built by the compiler and for the target of the launcher itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mock_driver.toolchain import LAUNCHER, MOCK, SOURCES

from tools.cross import TARGETS, zig_program

# As CMake compiles the launcher: otherwise zig would first compile another C runtime, for minutes.
_FLAGS = ("-O3", "-DNDEBUG", "-std=c11", "-Wall", "-Wextra", "-Werror", "-s", "-shared")


def mock_driver(folder: Path) -> Path:
    target = TARGETS["win_amd64"]
    output = folder / "nvcuda.dll"
    include = [f"-I{path}" for path in (SOURCES, LAUNCHER)]
    command = [str(zig_program()), "cc", "-target", target.zig, *_FLAGS, *include]
    done = subprocess.run(
        [*command, str(MOCK / "mock_cuda.c"), "-o", str(output)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return output
