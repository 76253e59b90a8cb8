"""The flags of a build that believes it is on Windows with MSVC."""

from __future__ import annotations

import re
from typing import Any

import pytest


@pytest.mark.parametrize("variables", [{}, {"DISTUTILS_USE_SDK": "1"}, {"CUDAFLAGS": "-DX=1"}])
def test_every_cuda_compile_gets_the_conforming_preprocessor(
    stand_ins: Any, variables: dict[str, str]
) -> None:
    done = stand_ins.configure(CUDACXX=str(stand_ins.nvcc()), **variables)
    assert done.ok, done.text
    commands = done.commands(".cu")
    assert commands
    for command in commands:
        assert "-Xcompiler=/Zc:preprocessor" in command
        assert "-Xcompiler=/Zc:__cplusplus" in command


def test_flags_of_the_builder_do_not_drop_them(stand_ins: Any) -> None:
    done = stand_ins.configure("CMAKE_CUDA_FLAGS=-DX=1", CUDACXX=str(stand_ins.nvcc()))
    for command in done.commands(".cu"):
        assert "-DX=1" in command
        assert "-Xcompiler=/Zc:preprocessor" in command


def test_unknown_host_compilers_are_let_through_on_request_only(stand_ins: Any) -> None:
    nvcc = str(stand_ins.nvcc())
    assert "--allow-unsupported-compiler" not in stand_ins.configure(CUDACXX=nvcc).commands(".cu")[0]
    asked = stand_ins.configure("FLASH_ATTN_ALLOW_UNSUPPORTED_COMPILER=ON", CUDACXX=nvcc)
    assert "--allow-unsupported-compiler" in asked.commands(".cu")[0]


def test_the_dll_links_the_static_runtime(stand_ins: Any) -> None:
    done = stand_ins.configure(CUDACXX=str(stand_ins.nvcc()))
    commands = done.commands(".c")
    assert commands
    for command in commands:
        assert re.search(r"[-/]MT\b", command)
        assert not re.search(r"[-/]MD\b", command)
    sources = " ".join(commands)
    assert "_windows.c" in sources
    assert "_posix.c" not in sources
    assert "build flash_attn.dll" in (done.build / "build.ninja").read_text()
