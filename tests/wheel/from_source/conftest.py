"""Copies of this project to build in, and stand-ins for compilers that aren't here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = (
    "CMakeLists.txt",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "ci/matrix.toml",
    "cmake",
    "csrc",
    "flash_attn",
    "flash_attn_2_cuda.py",
)

# What decides which toolkit and which architectures a build takes.
DECIDING = (
    "CUDACXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "FLASH_ATTN_CUDA_ARCHS",
    "FLASH_ATTN_KERNELS_DIR",
    "CMAKE_ARGS",
)

# Kernels that compile in a second: two families in two headers, one of them with a stage and a smaller tile.
TINY_HEADER = """#pragma once
#include "shared.h"
#define FLASH_KERNEL(name, element, head_dim, block_m, block_n, warps, smem_bytes, variant) \\
    extern "C" __global__ void name(int *out) { *out = VALUE + head_dim * block_m; }
"""
TINY_KERNELS = {
    "schema": 1,
    "dtypes": {"fp16": "__half"},
    "families": {
        "one": {
            "header": "one.h",
            "variants": ["plain", "other"],
            "stages": [{"name": "prepare", "header": "prepare.h", "struct": "Params"}],
            "sass": {"*": ["STG"]},
            "tiles": [
                {"head_dim": 32, "block_m": 64, "block_n": 32, "warps": 4, "smem_bytes": 4096},
                {
                    "head_dim": 32,
                    "block_m": 32,
                    "block_n": 32,
                    "warps": 4,
                    "smem_bytes": 2048,
                    "spill_bytes": 8,
                },
            ],
        },
        "two": {
            "header": "two.h",
            "variants": ["plain"],
            "tiles": [{"head_dim": 64, "block_m": 64, "block_n": 32, "warps": 4, "smem_bytes": 4096}],
        },
    },
}


def copy_project(folder: Path) -> Path:
    """The parts of this tree that a build needs."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, folder / part)
    return folder


def make_tiny(project: Path) -> Path:
    """Replaces the kernels of a copy by ones that compile in a second."""
    (project / "csrc/flash_attn/kernels.json").write_text(json.dumps(TINY_KERNELS))
    source = project / "csrc/flash_attn/src"
    for name in ("one", "two", "prepare"):
        # GCC takes files with the same bytes for one under #pragma once.
        (source / f"{name}.h").write_text(f"// {name}\n{TINY_HEADER}")
    (source / "shared.h").write_text("#pragma once\n#define VALUE 1\n#include <cuda_fp16.h>\n")
    return project


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """An environment that decides nothing: this Python's programs first, no toolkit named."""
    clean = {name: value for name, value in os.environ.items() if name not in DECIDING}
    clean["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
    return clean


@pytest.fixture(scope="session")
def without_nvcc(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same, with a PATH of compilers (by other names than Python's own), cmake and ninja but no CUDA."""
    folder = tmp_path_factory.mktemp("bin")
    for name in (
        "cmake",
        "ninja",
        "cc",
        "c++",
        "ld",
        "as",
        "ar",
        "ranlib",
        "strip",
        "sh",
        "uname",
    ):
        if found := shutil.which(name, path=environment["PATH"]):
            (folder / name).symlink_to(found)
    return {**environment, "PATH": str(folder)}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A copy of this project with kernels that compile in a second."""
    return make_tiny(copy_project(tmp_path / "project"))


@dataclass(frozen=True)
class Configured:
    """How a configure step ended."""

    ok: bool
    text: str  # everything it printed, with line breaks folded away
    build: Path

    def commands(self, ending: str) -> list[str]:
        """The compile commands of the sources with this ending."""
        entries = json.loads((self.build / "compile_commands.json").read_text())
        return [entry["command"] for entry in entries if entry["file"].endswith(ending)]


@dataclass(frozen=True)
class StandIns:
    """A configure step that believes it is on Windows with MSVC and some CUDA toolkit."""

    folder: Path
    environment: dict[str, str]
    toolchain: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "toolchain", self.folder / "windows-msvc.cmake")
        cl = self.folder / "cl"
        cl.write_text("#!/bin/sh\nexit 0\n")
        cl.chmod(0o755)
        self.toolchain.write_text(WINDOWS_TOOLCHAIN.replace("@FOLDER@", str(self.folder)))

    def nvcc(
        self, version: str = "13.4.92", archs: str = "75 80 86 90 100 103 110 120 121", name: str = "nvcc"
    ) -> Path:
        """A program that answers what the configure step asks an nvcc of this version, and nothing else."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        listed = "".join(f"compute_{arch}\\n" for arch in archs.split())
        release = ".".join(version.split(".")[:2])
        path.write_text(
            "#!/bin/sh\n"
            'case "$*" in\n'
            f'  --version) echo "Cuda compilation tools, release {release}, V{version}" ;;\n'
            f"  --list-gpu-arch) printf '{listed}' ;;\n"
            "  *) exit 1 ;;\n"
            "esac\n"
        )
        path.chmod(0o755)
        return path

    def configure(self, *defines: str, **variables: str) -> Configured:
        """Configures this project with these CMake definitions and environment variables."""
        build = self.folder / "tree"
        shutil.rmtree(build, ignore_errors=True)
        ran = subprocess.run(
            ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(build),
             f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_TOOLCHAIN_FILE={self.toolchain}",
             *(f"-D{define}" for define in defines)],
            env={**self.environment, **variables}, stdin=subprocess.DEVNULL, timeout=120,
            capture_output=True, text=True,
        )  # fmt: skip
        return Configured(ran.returncode == 0, re.sub(r"\s+", " ", ran.stdout + ran.stderr), build)


@pytest.fixture
def stand_ins(tmp_path: Path, without_nvcc: dict[str, str]) -> StandIns:
    return StandIns(tmp_path, without_nvcc)


@pytest.fixture(scope="session")
def build_wheel(environment: dict[str, str]) -> Callable[..., Path]:
    """Builds a wheel (or, with --sdist, a source distribution) of a project for sm_90 and gives its path."""

    def build(project: Path, output: Path, *arguments: str, **variables: str) -> Path:
        ran = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check",
             "--outdir", str(output), *(arguments or ("--wheel",)), str(project)],
            env={**environment, "FLASH_ATTN_CUDA_ARCHS": "90", "CMAKE_BUILD_PARALLEL_LEVEL": "2",
                 **variables},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        (built,) = output.iterdir()
        return built

    return build


# What CMake would ask cl.exe and nvcc.exe, answered beforehand.
WINDOWS_TOOLCHAIN = r"""
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)

set(CMAKE_C_COMPILER "@FOLDER@/cl")
set(CMAKE_C_COMPILER_ID MSVC)
set(CMAKE_C_COMPILER_ID_RUN TRUE)
set(CMAKE_C_COMPILER_VERSION 19.44)
set(CMAKE_C_COMPILER_ARCHITECTURE_ID x64)
set(CMAKE_C_COMPILER_FORCED TRUE)
set(CMAKE_C_STANDARD_COMPUTED_DEFAULT 90)
set(MSVC_C_ARCHITECTURE_ID x64)
set(CMAKE_AR "@FOLDER@/cl")
set(CMAKE_LINKER "@FOLDER@/cl")
set(CMAKE_MT "@FOLDER@/cl")
set(CMAKE_RC_COMPILER "@FOLDER@/cl")

set(CMAKE_CUDA_COMPILER_ID NVIDIA)
set(CMAKE_CUDA_COMPILER_ID_RUN TRUE)
set(CMAKE_CUDA_COMPILER_VERSION 13.4.92)
set(CMAKE_CUDA_COMPILER_FORCED TRUE)
set(CMAKE_CUDA_STANDARD_COMPUTED_DEFAULT 17)
set(CMAKE_CUDA_HOST_COMPILER_ID MSVC)
set(CMAKE_CUDA_HOST_COMPILER_VERSION 19.44)
set(CMAKE_CUDA_SIMULATE_ID MSVC)
set(CMAKE_CUDA_SIMULATE_VERSION 19.44)
set(CMAKE_CUDA_ARCHITECTURES_DEFAULT 80)
set(CMAKE_CUDA_COMPILER_TOOLKIT_ROOT "@FOLDER@")
set(CMAKE_CUDA_COMPILER_TOOLKIT_VERSION 13.4.92)
set(CMAKE_CUDA_COMPILER_LIBRARY_ROOT "@FOLDER@")
set(_libraries "\"/LIBPATH:@FOLDER@/lib\"")
string(CONCAT CMAKE_CUDA_COMPILER_PRODUCED_OUTPUT
  "#$ PATH=@FOLDER@\n"
  "#$ LIBRARIES=${_libraries}\n"
  "#$ INCLUDES=\"-I@FOLDER@/include\"\n"
  "#$ link.exe /OUT:CompilerIdCUDA.exe cudart_static.lib ${_libraries} CompilerIdCUDA.exe\n")
"""
