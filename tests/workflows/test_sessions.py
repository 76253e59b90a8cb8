"""What the sessions of noxfile.py run, take from the environment and refuse, with nothing installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = ("FLASH_ATTN_KERNELS_DIR", "FLASH_ATTN_LOCKED", "FLASH_ATTN_WINDOWS_WHEEL", "CUDACXX")
Command = tuple[str, ...]


class RefusedError(Exception):
    pass


class Session:
    """Writes down what a session would install and run. What builds a wheel leaves an empty one."""

    def __init__(self, dist: Path, posargs: tuple[str, ...]) -> None:
        self.dist, self.posargs = dist, list(posargs)
        self.installed: list[str] = []
        self.ran: list[tuple[Command, dict[str, str]]] = []
        self.toolkit = Path()

    def error(self, sentence: str) -> NoReturn:
        raise RefusedError(sentence)

    def install(self, *requirements: str, **_: object) -> None:
        self.installed += requirements

    def run(self, *command: str, env: dict[str, str] | None = None, **_: object) -> str:
        self.ran.append((command, env or {}))
        if command[-1].endswith("build_backend.py"):
            return f"{self.toolkit}\n"
        platform = "manylinux_2_17_x86_64"
        if "--platform" in command:
            platform = command[command.index("--platform") + 1].replace("manylinux_", "manylinux_2_17_")
        if {"tools.build_wheel", "wheel"} & set(command):
            self.dist.mkdir(exist_ok=True)
            (self.dist / f"flash_attn-2.9.0-py3-none-{platform}.whl").touch()
        return ""

    def commands(self, word: str) -> list[Command]:
        return [command for command, _ in self.ran if word in command]


@pytest.fixture
def noxfile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, on an x86-64 Linux that names nothing, its dist/ in the test's folder."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("nox.registry._REGISTRY", {})  # which takes a session of one name once
    spec = importlib.util.spec_from_file_location("noxfile_of_tests", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DIST", tmp_path / "dist")
    monkeypatch.setattr(module, "kernels_of", lambda built: tmp_path / "kernels of the wheel")
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    return module


def run(noxfile: Any, name: str, *posargs: str) -> Session:
    session = Session(noxfile.DIST, posargs)
    getattr(noxfile, name)(session)
    return session


def refused(noxfile: Any, name: str, *posargs: str, toolkit: Path | None = None) -> tuple[str, Session]:
    session = Session(noxfile.DIST, posargs)
    session.toolkit = toolkit or Path()
    with pytest.raises(RefusedError) as error:
        getattr(noxfile, name)(session)
    return str(error.value), session


def test_windows_tests_the_wheel_that_is_named(noxfile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTN_WINDOWS_WHEEL", "released.whl")
    session = run(noxfile, "windows")
    assert not session.commands("win_amd64")
    command, environment = session.ran[-1]
    assert command == ("pytest", str(ROOT / "tests/windows"))
    assert environment["FLASH_ATTN_WINDOWS_WHEEL"] == "released.whl"
    assert environment["FLASH_ATTN_WHEEL"].endswith("-manylinux_2_17_x86_64.whl")


def test_windows_builds_the_wheel_where_none_is_named(noxfile: Any) -> None:
    session = run(noxfile, "windows")
    assert len(session.commands("win_amd64")) == 1
    assert session.ran[-1][1]["FLASH_ATTN_WINDOWS_WHEEL"].endswith("-win_amd64.whl")


@pytest.mark.parametrize("program", ["wine", "wineserver", "cc"])
def test_windows_names_the_program_that_is_missing(
    noxfile: Any, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(noxfile.shutil, "which", lambda name: None if name == program else name)
    said, session = refused(noxfile, "windows")
    assert said.startswith(f"{program} is missing, which these tests need: apt-get install ")
    assert not session.installed


@pytest.mark.parametrize("option", ["--platform", "--platform=win_amd64", "--plat"])
def test_wheels_is_for_no_one_platform(noxfile: Any, option: str) -> None:
    noxfile.DIST.mkdir()
    said, session = refused(noxfile, "wheels", option, "win_amd64")
    assert said == "nox -s wheels builds every platform: for one, run nox -s wheel -- --platform NAME."
    assert not session.installed
    assert noxfile.DIST.is_dir()


@pytest.mark.parametrize("version", ["12.9.1", "9", "newest", ""])
def test_kernels_are_not_compiled_with_an_old_toolkit(noxfile: Any, version: str) -> None:
    said, session = refused(noxfile, "kernels", "--arch", "90", "--toolkit", version)
    assert said == f"--toolkit is {version!r}, but kernels need CUDA 13.0 or newer: name such a version."
    assert not session.ran


def test_a_toolkit_without_nvcc_is_refused(noxfile: Any, tmp_path: Path) -> None:
    sentence = "The CUDA toolkit 13.0.3 of the package index has no nvcc: name another version."
    for toolkit in (Path(), tmp_path):
        said, session = refused(noxfile, "kernels", "--toolkit", "13.0.3", "--arch", "90", toolkit=toolkit)
        assert said == sentence
        assert not session.commands("tools.kernels")


def test_kernels_are_compiled_with_the_toolkit_that_is_named(noxfile: Any, tmp_path: Path) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.touch()
    session = Session(noxfile.DIST, ("--toolkit", "13.0.3", "--arch", "90"))
    session.toolkit = tmp_path
    noxfile.kernels(session)
    assert "cuda-toolkit[nvcc,cudart,cccl,crt,nvvm]==13.0.3" in session.installed
    command, environment = session.ran[-1]
    tree = str(ROOT / "build" / "kernels-cuda-13.0.3")
    assert command == ("python", "-m", "tools.kernels", "--arch", "90", "--tree", tree)
    assert environment == {"CUDACXX": str(nvcc)}


ARCHS = pytest.mark.parametrize("archs", [("--archs", "90;80"), ("--archs=90;80",)])


@ARCHS
def test_a_wheel_for_another_platform_has_the_kernels_that_are_asked_for(
    noxfile: Any, archs: tuple[str, ...]
) -> None:
    session = run(noxfile, "wheel", "--platform", "win_amd64", *archs)
    (native, cross) = (command for command, _ in session.ran)
    assert native[-len(archs) - 2 :] == ("wheel", "--", *archs)
    assert cross[-len(archs) - 2 :] == ("--platform", "win_amd64", *archs)


@ARCHS
@pytest.mark.parametrize("named", [False, True])
def test_wheels_compiles_what_is_asked_for_or_has_it_compared(
    noxfile: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, archs: tuple[str, ...], named: bool
) -> None:
    """With the kernels that are named; tools.build_wheel refuses those of other architectures."""
    if named:
        monkeypatch.setenv("FLASH_ATTN_KERNELS_DIR", str(tmp_path))
    session = run(noxfile, "wheels", *archs, "--jobs", "1")
    compiled = session.commands("wheel")
    assert [command[-len(archs) - 4 :] for command in compiled] == (
        [] if named else [("wheel", "--", *archs, "--jobs", "1")]
    )
    built = session.commands("tools.build_wheel")
    assert len(built) == len(noxfile.PLATFORMS)
    assert {command[-len(archs) :] == archs for command in built} == {named}
