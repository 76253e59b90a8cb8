"""Programs for Windows, built by the compiler and for the target of the launcher: the mock driver as
``nvcuda.dll``, and stand-ins."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mock_driver.toolchain import LAUNCHER, MOCK, SOURCES

from tools.cross import targets, zig_program

# As CMake compiles the launcher: otherwise zig would first compile another C runtime, for minutes.
_FLAGS = ("-O3", "-DNDEBUG", "-std=c11", "-Wall", "-Wextra", "-Werror", "-s")


def build(source: Path, output: Path, *flags: str) -> Path:
    """Compiles one C file for 64-bit Windows on x86."""
    command = [str(zig_program()), "cc", "-target", targets()["win_amd64"].zig, *_FLAGS, *flags]
    output.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*command, str(source), "-o", str(output)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return output


def mock_driver(folder: Path) -> Path:
    include = [f"-I{path}" for path in (SOURCES, LAUNCHER)]
    return build(MOCK / "mock_cuda.c", folder / "nvcuda.dll", "-shared", *include)
