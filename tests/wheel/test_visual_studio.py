"""Which compiler a build on Windows takes from a plain shell. A shell of this machine stands in for cmd."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tools.compile_steps import error_in

ROOT = Path(__file__).parents[2]
COMPONENT = "Microsoft.VisualStudio.Component.VC.Tools"
# Spaces, and letters of two Windows code pages.
DIFFICULT = "Programme für Łukasz (x86) & mehr"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")


@pytest.fixture
def msvc(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("msvc", ROOT / "cmake/msvc.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "msvc", module)  # dataclasses looks there
    spec.loader.exec_module(module)

    def in_shell(machine: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
        script = '. "$FLASH_ATTN_VCVARSALL" >&2; "$FLASH_ATTN_PYTHON" -I -S -c "$PRINT"'
        return subprocess.run(
            ["/bin/sh", "-c", f"set -- {machine}; {script}"],
            env={**environment, "PRINT": module._PRINT}, capture_output=True,
        )  # fmt: skip

    monkeypatch.setattr(module, "in_cmd", in_shell)
    return module


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


class Machine:
    """A machine with a Visual Studio, whose parts a test takes away."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / DIFFICULT
        self.studio = self.programs / "Microsoft Visual Studio" / "2022" / "BuildTools"
        self.bin = self.studio / "VC" / "bin"
        self.asked = folder / "asked"
        self.vswhere(f'echo "{self.studio}"')
        self.vcvarsall(
            f'echo "[vcvarsall.bat] for: $1"; export INCLUDE="{self.studio}/include" MACHINE="$1" '
            f'PATH="{self.bin}:$PATH"'
        )
        program(self.bin / "cl", "exit 1")
        self.environment = {"ProgramFiles(x86)": str(self.programs), "PATH": str(folder / "empty"), "A": "1"}

    def vswhere(self, script: str) -> None:
        path = self.programs / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
        program(path, f"printf '%s\\n' \"$@\" > '{self.asked}'\n{script}")

    def vcvarsall(self, script: str) -> None:
        program(self.studio / "VC" / "Auxiliary" / "Build" / "vcvarsall.bat", script)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def added(msvc: ModuleType, machine: Machine, *defined: str, **variables: str) -> dict[str, str]:
    options = {"system": "win32", "platform": "win-amd64"}
    found: dict[str, str] = msvc.additions({**machine.environment, **variables}, defined, **options)
    return found


class TestFound:
    def test_ninja_and_the_environment_of_vcvarsall(self, msvc: ModuleType, machine: Machine) -> None:
        found = added(msvc, machine)
        assert found["CMAKE_GENERATOR"] == "Ninja"
        assert found["INCLUDE"] == f"{machine.studio}/include"
        assert found["PATH"] == f"{machine.bin}:{machine.environment['PATH']}"
        assert found["MACHINE"] == "amd64"
        assert "A" not in found, "what did not change is left alone"
        assert not [name for name in found if name.startswith("FLASH_ATTN_")]

    def test_vswhere_is_asked_for_the_newest_with_the_tools_for_the_target(
        self, msvc: ModuleType, machine: Machine
    ) -> None:
        added(msvc, machine)
        asked = machine.asked.read_text().split("\n")
        assert asked[: asked.index("-property")] == [
            "-latest", "-products", "*", "-version", "[17.0,", "-requires", f"{COMPONENT}.x86.x64",
        ]  # fmt: skip
        assert "-utf8" in asked

    @pytest.mark.parametrize(
        ("platform", "variables", "argument"),
        [
            ("win-arm64", {"PROCESSOR_ARCHITECTURE": "ARM64"}, "arm64"),
            ("win-arm64", {"PROCESSOR_ARCHITECTURE": "AMD64"}, "amd64_arm64"),
            ("win-amd64", {"SETUPTOOLS_EXT_SUFFIX": ".cp311-win_arm64.pyd"}, "amd64_arm64"),
            ("win-amd64", {"PROCESSOR_ARCHITECTURE": "ARM64"}, "arm64_amd64"),
        ],
    )
    def test_for_arm(
        self, msvc: ModuleType, machine: Machine, platform: str, variables: dict[str, str], argument: str
    ) -> None:
        environment = {**machine.environment, **variables}
        found = msvc.additions(environment, system="win32", platform=platform)
        assert found["MACHINE"] == argument
        component = "x86.x64" if argument.endswith("amd64") else "ARM64"
        assert f"{COMPONENT}.{component}" in machine.asked.read_text().split("\n")

    def test_a_generator_named_by_hand_stays(self, msvc: ModuleType, machine: Machine) -> None:
        found = added(msvc, machine, CMAKE_GENERATOR="Ninja Multi-Config")
        assert "CMAKE_GENERATOR" not in found
        assert "INCLUDE" in found


class TestNotLookedFor:
    """vswhere would say that there is none."""

    @pytest.fixture(autouse=True)
    def _no_studio(self, machine: Machine) -> None:
        machine.vswhere("exit 0")

    def test_on_another_system(self, msvc: ModuleType, machine: Machine) -> None:
        assert msvc.additions(machine.environment, system="linux") == {}
        assert msvc.generator({}, system="linux") == {}

    @pytest.mark.parametrize("name", ["CC", "CMAKE_TOOLCHAIN_FILE", "FLASH_ATTN_ZIG_TARGET"])
    def test_when_a_compiler_is_named(self, msvc: ModuleType, machine: Machine, name: str) -> None:
        assert added(msvc, machine, **{name: "x"}) == {"CMAKE_GENERATOR": "Ninja"}

    @pytest.mark.parametrize("name", ["CMAKE_C_COMPILER", "CMAKE_TOOLCHAIN_FILE"])
    def test_when_cmake_is_told_one(self, msvc: ModuleType, machine: Machine, name: str) -> None:
        assert added(msvc, machine, name) == {"CMAKE_GENERATOR": "Ninja"}

    def test_when_visual_studio_s_generator_is_named(self, msvc: ModuleType, machine: Machine) -> None:
        assert added(msvc, machine, CMAKE_GENERATOR="Visual Studio 17 2022") == {}
        assert added(msvc, machine, "CMAKE_GENERATOR") == {}

    def test_in_a_visual_studio_prompt(self, msvc: ModuleType, machine: Machine) -> None:
        inside = {"PATH": str(machine.bin), "VSCMD_ARG_TGT_ARCH": "x64"}
        assert added(msvc, machine, **inside) == {"CMAKE_GENERATOR": "Ninja"}


class TestRefused:
    """Each in one sentence that says what to do."""

    @pytest.fixture
    def sentence(self, msvc: ModuleType, machine: Machine) -> Any:
        def said(**variables: str) -> str:
            with pytest.raises(msvc.MsvcError) as caught:
                added(msvc, machine, **variables)
            text = str(caught.value)
            assert text.endswith(".")
            assert "\n" not in text
            return text

        return said

    def test_no_vswhere(self, sentence: Any) -> None:
        said = sentence(**{"ProgramFiles(x86)": "/no/folder"})
        assert said.startswith("No C compiler was found: cl.exe is not on PATH, and there is no vswhere.exe")
        assert "install the Build Tools for Visual Studio 2022" in said

    def test_no_studio_with_the_tools(self, machine: Machine, sentence: Any) -> None:
        machine.vswhere("exit 0")
        assert "no Visual Studio 2022 or newer with C++ tools for amd64" in sentence()

    def test_vswhere_fails(self, machine: Machine, sentence: Any) -> None:
        machine.vswhere("echo Error 0x57: The parameter is incorrect; exit 87")
        assert "vswhere.exe failed (Error 0x57: The parameter is incorrect)" in sentence()

    def test_vswhere_is_no_program(self, machine: Machine, sentence: Any) -> None:
        next(machine.programs.rglob("vswhere.exe")).chmod(0o644)
        assert "vswhere.exe can't be run (" in sentence()

    def test_no_vcvarsall(self, machine: Machine, sentence: Any) -> None:
        next(machine.programs.rglob("vcvarsall.bat")).unlink()
        assert sentence().startswith("Visual Studio has no ")

    def test_vcvarsall_fails(self, machine: Machine, sentence: Any) -> None:
        machine.vcvarsall("echo '[ERROR:vcvarsall.bat] Windows SDK not found'; exit 1")
        assert "put no cl.exe on PATH ([ERROR:vcvarsall.bat] Windows SDK not found)" in sentence()

    def test_vcvarsall_sets_no_compiler(self, machine: Machine, sentence: Any) -> None:
        machine.vcvarsall("true")
        assert "vcvarsall.bat amd64 put no cl.exe on PATH (and said nothing)" in sentence()

    def test_a_32_bit_prompt(self, machine: Machine, sentence: Any) -> None:
        said = sentence(PATH=str(machine.bin), VSCMD_ARG_TGT_ARCH="x86")
        assert said.startswith("This Visual Studio command prompt compiles for 32-bit Windows (x86)")

    def test_a_32_bit_python(self, msvc: ModuleType, machine: Machine) -> None:
        with pytest.raises(msvc.MsvcError, match=r"^This Python is for win32,.* use a 64-bit Python\.$"):
            msvc.additions(machine.environment, system="win32", platform="win32")


class TestBackend:
    """The hooks of the build, on a machine that believes it is Windows."""

    @pytest.fixture
    def backend(self, msvc: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        for name in ("CC", "CMAKE_GENERATOR", "CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE", "SKBUILD_CMAKE_ARGS"):
            monkeypatch.delenv(name, raising=False)
        for name, text in machine.environment.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("CMAKE_GENERATOR", "")  # so that monkeypatch takes back what the hooks set
        monkeypatch.setattr(msvc.additions, "__kwdefaults__", {"system": "win32", "platform": "win-amd64"})
        monkeypatch.setattr(msvc.generator, "__defaults__", ((), "win32"))
        spec = importlib.util.spec_from_file_location("build_backend", ROOT / "cmake/build_backend.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @pytest.mark.parametrize("hook", ["build_wheel", "build_editable"])
    def test_a_build_ends_with_the_sentence(self, backend: ModuleType, machine: Machine, hook: str) -> None:
        machine.vswhere("exit 0")
        with pytest.raises(SystemExit) as caught:
            getattr(backend, hook)("dist")
        said = str(caught.value)
        assert said.startswith("flash-attn can't be built: vswhere.exe knows no Visual Studio 2022")
        # nox -s wheel shows that sentence, not the log around it.
        assert error_in(f"* Building wheel...\n{said}\n\nERROR Backend subprocess exited\n") == said

    @pytest.mark.parametrize("hook", ["build_wheel", "build_editable"])
    def test_a_build_gets_the_environment(
        self, backend: ModuleType, machine: Machine, hook: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from scikit_build_core import build

        seen: list[dict[str, str]] = []

        def hook_of_scikit_build_core(*_: object) -> str:
            seen.append(dict(os.environ))
            return "name.whl"

        monkeypatch.setattr(build, hook, hook_of_scikit_build_core)
        for name in ("INCLUDE", "MACHINE"):
            monkeypatch.setenv(name, "")
        assert getattr(backend, hook)("dist") == "name.whl"
        assert seen[0]["INCLUDE"] == f"{machine.studio}/include"
        assert seen[0]["CMAKE_GENERATOR"] == "Ninja"

    @pytest.mark.parametrize("arguments", ["-G 'Visual Studio 17 2022'", "-DCMAKE_C_COMPILER=clang-cl"])
    def test_what_cmake_is_told_has_a_say(
        self, backend: ModuleType, machine: Machine, arguments: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from scikit_build_core import build

        machine.vswhere("exit 0")
        monkeypatch.setattr(build, "build_wheel", lambda *_: "name.whl")
        monkeypatch.setenv("CMAKE_ARGS", arguments)
        assert backend.build_wheel("dist") == "name.whl"

    def test_ninja_is_a_build_requirement(
        self, backend: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from scikit_build_core import build

        asked: list[str] = []

        def requirements(*_: object) -> list[str]:
            asked.append(os.environ["CMAKE_GENERATOR"])
            return []

        monkeypatch.setattr(build, "get_requires_for_build_wheel", requirements)
        backend.get_requires_for_build_wheel()
        assert asked == ["Ninja"]


@pytest.mark.parametrize(
    ("code_page", "path", "lacking"),
    [
        ("cp1252", r"C:\Programme für Jürgen & Co (x86)", ""),
        ("cp1252", r"C:\Łukasz", r"'\u0141'"),
        ("cp1250", r"C:\Łukasz für Jürgen", ""),
        ("cp932", r"C:\für", r"'\xfc'"),
    ],
)
def test_paths_that_nvcc_for_windows_can_be_given(code_page: str, path: str, lacking: str) -> None:
    spec = importlib.util.spec_from_file_location("nvcc_paths", ROOT / "cmake/nvcc_paths.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = module.problem([r"C:\plain", path], code_page)
    if not lacking:
        assert said == ""
        return
    assert f"this Windows' code page lacks {lacking}; move it" in said
    assert f"nvcc can't find {path!a}" in said
    assert said.isascii()
