"""A build on Windows finds Visual Studio from a plain shell. Wine's cmd runs a made-up vcvarsall.bat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windows import dlls
from windows.conftest import CACHE, INSIDE, ROOT
from windows.downloads import PYTHONS
from windows.interpreter import unpack
from windows.wine import Wine, windows_path

# Spaces, letters of two Windows code pages, and a letter that means something to cmd.
PROGRAMS = "Programme (x86) für Łukasz & Jürgen"
# Microsoft's is ASCII too, finds its folders by its own, and talks.
VCVARSALL = r"""@echo off
echo [made-up vcvarsall.bat] Environment for: %1
if not "%MADE_UP_FAILURE%"=="" (
    echo [ERROR:vcvarsall.bat] %MADE_UP_FAILURE%
    exit /b 1
)
set "VSCMD_ARG_TGT_ARCH=x64"
set "MACHINE=%1"
set "INCLUDE=%~dp0include"
set "PATH=%~dp0bin;%PATH%"
exit /b 0
"""


@pytest.fixture(scope="module")
def found(wine: Wine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("studio")
    python = unpack(PYTHONS[0], CACHE, folder / "Python für Windows")
    studio = folder / PROGRAMS / "Microsoft Visual Studio" / "2022" / "Community"
    build = studio / "VC" / "Auxiliary" / "Build"
    vswhere = folder / PROGRAMS / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
    dlls.build(INSIDE / "vswhere.c", vswhere, "-nostdlib", "-Wl,-e,start", "-lkernel32")
    (build / "bin").mkdir(parents=True)
    (build / "bin" / "cl.exe").touch()
    (build / "vcvarsall.bat").write_text(VCVARSALL, encoding="ascii", newline="\r\n")
    report = folder / "report.json"
    arguments: tuple[Path, ...] = (INSIDE / "visual_studio.py", ROOT / "cmake", folder / PROGRAMS, report)
    done = wine.run(
        python / "python.exe", *map(windows_path, arguments), cwd=folder,
        MADE_UP_STUDIO=windows_path(studio), MADE_UP_FAILURE="",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    assert result["system"] == "win32"
    return {**result, "build": windows_path(build)}


def test_ninja_and_the_environment_of_vcvarsall(found: dict[str, Any]) -> None:
    added = found["found"]
    assert isinstance(added, dict), added
    assert added["CMAKE_GENERATOR"] == "Ninja"
    assert added["MACHINE"] == "amd64"
    assert added["INCLUDE"] == found["build"] + "\\include"
    assert added["PATH"] == found["build"] + "\\bin;" + found["path"]
    assert not [name for name in added if name.startswith("FLASH_ATTN_")]


def test_a_path_that_nvcc_cannot_find_is_named(found: dict[str, Any]) -> None:
    """Wine's code page is that of Western Europe. nvcc.exe itself does not find a folder like these there."""
    plain, polish, greek = found["nvcc"]
    assert plain == ""
    assert polish.startswith(
        r"nvcc can't find 'C:\\\u0141ukasz', since this Windows' code page lacks '\u0141'; move"
    )
    assert greek.startswith("nvcc can't find ")


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (
            "vcvarsall fails",
            "vcvarsall.bat amd64 put no cl.exe on PATH ([ERROR:vcvarsall.bat] no Windows SDK); repair",
        ),
        ("no tools", "vswhere.exe knows no Visual Studio 2022 or newer with C++ tools for amd64; install"),
        ("no vswhere", "there is no vswhere.exe of a Visual Studio; install the Build Tools"),
    ],
)
def test_one_sentence_says_what_is_missing(found: dict[str, Any], case: str, sentence: str) -> None:
    assert isinstance(found[case], str), found[case]
    assert sentence in found[case]
