"""Builds the mock driver, and the launcher with the kernels of ``kernel_table``, with the C compiler."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from mock_driver.c_structs import REPOSITORY
from mock_driver.kernel_table import write_table

SOURCES = REPOSITORY / "csrc/flash_attn/src"
LAUNCHER = REPOSITORY / "csrc/flash_attn/launch"
MOCK = REPOSITORY / "tests/mock_driver"
_FLAGS = (
    "-std=c11",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Werror",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
)


def compiler() -> str | None:
    """A C compiler that takes gcc's options and links for ELF, or None if the machine has none."""
    if sys.platform == "win32":
        return None
    return shutil.which(os.environ.get("CC", "cc"))


def _compile(output: Path, sources: list[Path], *options: str) -> Path:
    found = compiler()
    if found is None:
        raise RuntimeError("there is no C compiler: install gcc or clang, or name one in CC")
    include = [f"-I{folder}" for folder in (SOURCES, LAUNCHER, output.parent)]
    subprocess.run(
        [found, *_FLAGS, *include, *map(str, sources), *options, "-o", str(output), "-ldl"], check=True
    )
    return output


@cache
def _folder() -> Path:
    inherited = os.environ.get("FLASH_ATTN_MOCK_FOLDER")  # an isolated test uses what its parent has built
    if inherited:
        return Path(inherited)
    folder = Path(tempfile.mkdtemp(prefix="flash_attn_mock_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["FLASH_ATTN_MOCK_FOLDER"] = str(folder)
    return folder


def _build_once(name: str, sources: list[Path], *options: str) -> Path:
    output = _folder() / name
    return output if output.exists() else _compile(output, sources, *options)


def mock_driver() -> Path:
    """The mock driver, named as the system names the real one."""
    return _build_once("libcuda.so.1", [MOCK / "mock_cuda.c"], "-Wl,-soname,libcuda.so.1")


def mock_driver_without_get_proc_address() -> Path:
    """The same, but its export table lacks cuGetProcAddress."""
    folder = _folder() / "incomplete"
    folder.mkdir(exist_ok=True)
    return _build_once(
        "incomplete/libcuda.so.1",
        [MOCK / "mock_cuda.c"],
        "-Wl,-soname,libcuda.so.1",
        "-DMOCK_CUDA_WITHOUT_GET_PROC_ADDRESS",
    )


def launcher() -> Path:
    """The launcher with the kernels of ``kernel_table``."""
    output = _folder() / "libflash_attn.so"
    if not output.exists():
        write_table(_folder() / "flash_attn_kernel_table.inc")
    return _build_once(
        output.name, [path for path in sorted(LAUNCHER.glob("*.c")) if not path.stem.endswith("_windows")]
    )
