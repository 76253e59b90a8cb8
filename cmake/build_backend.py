"""scikit-build-core, plus the pinned CUDA toolkit as a build requirement when no other one is there.

The order is that of FlashAttnToolkit.cmake. On Windows, Visual Studio's compiler is found too (msvc.py).
Run as a program, it prints the folder of the installed toolkit.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msvc

TOOLKIT_REQUIREMENTS = Path(__file__).with_name("cuda-toolkit.txt")
TOOLKIT_PACKAGE = "nvidia.cu13"

Settings = dict[str, str | list[str]]


def _defined_by(arguments: Iterable[str]) -> Iterator[str]:
    """Names of the CMake variables that arguments of cmake set; -G is one more way to set CMAKE_GENERATOR."""
    for argument in arguments:
        if argument.startswith("-D"):
            yield argument[2:].partition("=")[0].partition(":")[0]
        elif argument.startswith("-G"):
            yield "CMAKE_GENERATOR"


def _defines(config_settings: Settings | None) -> Iterator[str]:
    """Names of the CMake variables that this build sets from outside."""
    for variable in ("CMAKE_ARGS", "SKBUILD_CMAKE_ARGS"):
        yield from _defined_by(shlex.split(os.environ.get(variable, "").replace(";", " ")))
    for entry in os.environ.get("SKBUILD_CMAKE_DEFINE", "").split(";"):
        yield entry.partition("=")[0]
    for key, value in (config_settings or {}).items():
        name = key.removeprefix("skbuild.")
        if name.startswith("cmake.define."):
            yield name.removeprefix("cmake.define.")
        elif name == "cmake.args":
            yield from _defined_by([value] if isinstance(value, str) else value)


def toolkit_requirements(config_settings: Settings | None = None) -> list[str]:
    """What pip must install for the kernels to compile; nothing where a toolkit or fatbins are named."""
    variables = ("CUDACXX", "CUDA_HOME", "CUDA_PATH", "FLASH_ATTN_KERNELS_DIR")
    if any(os.environ.get(name) for name in variables) or shutil.which("nvcc"):
        return []
    if {"CMAKE_CUDA_COMPILER", "FLASH_ATTN_KERNELS_DIR"} & set(_defines(config_settings)):
        return []
    return [line for line in TOOLKIT_REQUIREMENTS.read_text(encoding="utf-8").splitlines() if line]


def packaged_toolkit() -> Path | None:
    """The folder of the toolkit that the package index installed for this Python."""
    try:
        spec = importlib.util.find_spec(TOOLKIT_PACKAGE)
    except ModuleNotFoundError:
        return None
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    nvcc = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    return next((folder for folder in folders if (folder / "bin" / nvcc).is_file()), None)


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    from scikit_build_core import build

    _choose_generator(config_settings)
    return [*build.get_requires_for_build_wheel(config_settings), *toolkit_requirements(config_settings)]


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    from scikit_build_core import build

    _choose_generator(config_settings)
    return [*build.get_requires_for_build_editable(config_settings), *toolkit_requirements(config_settings)]


def _choose_generator(config_settings: Settings | None) -> None:
    """scikit-build-core asks for Ninja only when it is chosen by then."""
    os.environ.update(msvc.generator(os.environ, set(_defines(config_settings))))


def _find_compiler(config_settings: Settings | None) -> None:
    try:
        msvc.prepare(set(_defines(config_settings)))
    except msvc.MsvcError as error:
        raise SystemExit(f"flash-attn can't be built: {error}") from None


def build_wheel(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    from scikit_build_core import build

    _find_compiler(config_settings)
    return build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    from scikit_build_core import build

    _find_compiler(config_settings)
    return build.build_editable(wheel_directory, config_settings, metadata_directory)


def __getattr__(name: str) -> Any:
    """Every other hook is scikit-build-core's own."""
    if name.startswith("__"):
        raise AttributeError(name)
    from scikit_build_core import build

    return getattr(build, name)


if __name__ == "__main__":
    sys.stdout.write(f"{packaged_toolkit() or ''}\n")
