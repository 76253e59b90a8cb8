"""The flags of a build that believes it is on Windows with MSVC."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# Spaces, letters of two Windows code pages, and one that means something to cmd; as long as Windows' limit of
# 260 characters for a path leaves room for.
DIFFICULT = "Programme für Łukasz & Jürgen " + "x" * 90
LONGEST_COMMAND = 8191  # of cmd, through which Ninja runs some

# Every compile command, in full: FOLDER is the stand-ins', TREE the build's, ROOT this project.
NVCC = """
FOLDER/nvcc -forward-unknown-to-host-compiler -D_MBCS -IROOT/csrc/flash_attn/src
-Xcompiler=/Zc:preprocessor -Xcompiler=/Zc:__cplusplus -D_WINDOWS '-Xcompiler= /EHsc' -std=c++17
--generate-code=arch=compute_80,code=[sm_80] --generate-code=arch=compute_90,code=[sm_90]
--generate-code=arch=compute_100,code=[sm_100] --generate-code=arch=compute_110,code=[sm_110]
--generate-code=arch=compute_120,code=[compute_120,sm_120]
-Xcompiler=-MT -O3 --compress-mode=size -Xcompiler=/Zc:preprocessor -Xcompiler=/Zc:__cplusplus
-x cu -fatbin TREE/kernel_sources/NAME.cu -o CMakeFiles/flash_attn_fatbins.dir/kernel_sources/NAME.fatbin
-Xcompiler=-FdCMakeFiles/flash_attn_fatbins.dir/,-FS
"""
CL = """
FOLDER/cl /nologo -D_MBCS -D_WINDLL -Dflash_attn_launcher_EXPORTS -IROOT/csrc/flash_attn/launch
-IROOT/csrc/flash_attn/src -ITREE/generated /DWIN32 /D_WINDOWS /O2 /Ob2 /DNDEBUG -std:c11 -MT
/W4 /utf-8 /Brepro /FoCMakeFiles/flash_attn_launcher.dir/csrc/flash_attn/launch/NAME.c.obj
/FdCMakeFiles/flash_attn_launcher.dir/ /FS -c ROOT/csrc/flash_attn/launch/NAME.c
"""


@pytest.fixture
def difficult(stand_ins: Any, tmp_path: Path) -> Any:
    """Stand-ins and a build tree in a folder with a difficult name."""
    folder = tmp_path / DIFFICULT
    folder.mkdir()
    return type(stand_ins)(folder, stand_ins.environment)


def generated(build: Path) -> dict[str, str]:
    """The commands that Ninja would run, by what each makes."""
    asked = subprocess.run(
        ["ninja", "-t", "compdb"], cwd=build, check=True, capture_output=True, text=True, encoding="utf-8"
    )
    return {Path(entry["output"]).name: entry["command"] for entry in json.loads(asked.stdout)}


def _place(places: dict[str, str], match: re.Match[str]) -> str:
    return places[match[0]]


def test_every_compile_command_in_full(difficult: Any) -> None:
    done = difficult.configure(CUDACXX=str(difficult.nvcc()))
    assert done.ok, done.text
    entries = json.loads((done.build / "compile_commands.json").read_text(encoding="utf-8"))
    kernels = json.loads((done.build / "generated" / "kernel_list.json").read_text(encoding="utf-8"))
    launcher = {path.name for path in (ROOT / "csrc/flash_attn/launch").glob("*.c")} - {"platform_posix.c"}
    wanted = {kernel["fatbin"].replace(".fatbin", ".cu") for kernel in kernels} | launcher
    assert {Path(entry["file"]).name for entry in entries} == wanted
    assert len(entries) == len(wanted)
    for entry in entries:
        source = Path(entry["file"])
        pinned = NVCC if source.suffix == ".cu" else CL
        places = {
            "NAME": source.stem, "FOLDER": str(difficult.folder), "TREE": str(done.build), "ROOT": str(ROOT),
        }  # fmt: skip
        filled = [
            re.sub("NAME|FOLDER|TREE|ROOT", partial(_place, places), word) for word in shlex.split(pinned)
        ]
        assert shlex.split(entry["command"]) == filled


def test_no_command_is_longer_than_windows_takes(difficult: Any) -> None:
    """Names of fatbins go through a file; what is left has room, and CMake has response files for more."""
    done = difficult.configure(CUDACXX=str(difficult.nvcc()))
    commands = generated(done.build)
    assert {"manifest.json", "flash_attn.dll"} <= set(commands)
    assert max(map(len, commands.values())) < LONGEST_COMMAND / 2
    manifest = shlex.split(commands["manifest.json"])
    objects = Path(manifest[manifest.index("--objects") + 1])
    assert len(objects.read_text(encoding="utf-8").split("\n")) > 30
    forced = difficult.configure("CMAKE_NINJA_FORCE_RESPONSE_FILE=ON", CUDACXX=str(difficult.nvcc()))
    rules = (forced.build / "CMakeFiles" / "rules.ninja").read_text(encoding="utf-8")
    for kind in ("C_COMPILER", "C_SHARED_LIBRARY_LINKER", "CUDA_COMPILER"):
        (rule,) = re.findall(rf"^rule {kind}__.*\n((?:  .*\n)+)", rules, re.MULTILINE)
        assert "rspfile = $RSP_FILE" in rule, kind


def test_the_dll_is_linked_without_a_time_of_day(difficult: Any) -> None:
    done = difficult.configure(CUDACXX=str(difficult.nvcc()))
    words = shlex.split(generated(done.build)["flash_attn.dll"])
    assert "/Brepro" in words
    assert "/INCREMENTAL:NO" in words
    assert "/dll" in words
    assert not [word for word in words if "debug" in word.lower() or "libdl" in word], words


def test_the_manifest_tells_no_flags_of_the_host(difficult: Any) -> None:
    """So that kernels compiled on Windows and on Linux say the same of themselves."""
    done = difficult.configure(CUDACXX=str(difficult.nvcc()))
    manifest = shlex.split(generated(done.build)["manifest.json"])
    assert manifest[manifest.index("--") + 1 :] == ["-std=c++17", "-O3", "--compress-mode=size"]


def test_sources_are_ascii() -> None:
    """MSVC reads a source in the code page of the machine that it is on."""
    for path in (ROOT / "csrc").rglob("*"):
        if path.suffix in {".c", ".h", ".cuh"}:
            assert path.read_bytes().isascii(), path


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
