"""Parts of wheels, made once a session: real kernels, real launchers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Behind everything else, so that flash_attn stays the installed one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from wheel_parts import PE_LIBRARY, Kernels, Parts, elf_library, zig_library

from tools.verify.cuobjdump import find_cuobjdump
from tools.verify.expected import read_kernel_list
from tools.verify.inspector import Inspector
from tools.verify.report import judge

Refused = Callable[..., list[str]]


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def parts(kernels: Kernels, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A wheel for this Linux machine that has nothing wrong with it."""
    library = elf_library(tmp_path_factory.mktemp("library"))
    return Parts(kernels, kernels.fatbin("90", "100", "ptx"), library)


@pytest.fixture(scope="session")
def windows_parts(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A wheel for Windows that has nothing wrong with it."""
    library = zig_library(tmp_path_factory.mktemp("dll"), "x86_64-windows-gnu")
    return parts.but(library=library, library_path=PE_LIBRARY, tag="py3-none-win_amd64")


@pytest.fixture(scope="session")
def inspector(kernels: Kernels) -> Inspector:
    """One for all tests: it reads each fatbin once."""
    return Inspector(find_cuobjdump(), read_kernel_list(kernels.list_path), ())


@pytest.fixture
def refused(inspector: Inspector, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Builds a wheel, has it judged, returns the lines that say what is wrong; the exit status fits them."""

    def judge_one(parts: Parts) -> list[str]:
        path = parts.build(tmp_path)
        capfd.readouterr()
        status = judge(inspector, [path], json_wanted=False)
        lines = capfd.readouterr().err.splitlines()
        assert status == (1 if lines else 0)
        prefix = f"error: {path.name}: "
        assert all(line.startswith(prefix) for line in lines)
        return [line.removeprefix(prefix) for line in lines]

    return judge_one
