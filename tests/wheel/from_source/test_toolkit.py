"""Which nvcc a build takes, what it refuses, and when the package index is asked for one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The build backend on a machine that names no toolkit."""
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH", "FLASH_ATTN_KERNELS_DIR", "CMAKE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT / "cmake"))  # as backend-path does
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / "cmake/build_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def toolkits(requirements: list[str]) -> list[str]:
    return [requirement for requirement in requirements if requirement.startswith("cuda-toolkit")]


@pytest.mark.parametrize("hook", ["get_requires_for_build_wheel", "get_requires_for_build_editable"])
def test_the_pinned_toolkit_is_required_when_there_is_no_other(backend: ModuleType, hook: str) -> None:
    (pinned,) = toolkits(getattr(backend, hook)())
    assert re.fullmatch(r"cuda-toolkit\[nvcc,cudart,cccl,crt,nvvm\]==13\.\d+\.\d+", pinned)


@pytest.mark.parametrize("name", ["CUDACXX", "CUDA_HOME", "CUDA_PATH", "FLASH_ATTN_KERNELS_DIR"])
def test_a_named_toolkit_replaces_it(backend: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/somewhere")
    assert toolkits(backend.get_requires_for_build_wheel()) == []


def test_nvcc_on_path_replaces_it(backend: ModuleType, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.touch(mode=0o755)
    assert toolkits(backend.get_requires_for_build_wheel()) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"cmake.define.CMAKE_CUDA_COMPILER": "/x/nvcc"},
        {"skbuild.cmake.define.FLASH_ATTN_KERNELS_DIR": "/x"},
        {"cmake.args": ["-GNinja", "-DCMAKE_CUDA_COMPILER:FILEPATH=/x/nvcc"]},
    ],
)
def test_a_cmake_definition_replaces_it(backend: ModuleType, settings: dict[str, Any]) -> None:
    assert toolkits(backend.get_requires_for_build_wheel(settings)) == []
    assert toolkits(backend.get_requires_for_build_wheel({"cmake.define.OTHER": "1"})) != []


def test_cmake_args_replace_it(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DOTHER=1 -DCMAKE_CUDA_COMPILER=/x/nvcc")
    assert toolkits(backend.get_requires_for_build_wheel()) == []


def test_source_distributions_need_no_toolkit(backend: ModuleType) -> None:
    assert toolkits(backend.get_requires_for_build_sdist()) == []


def test_order_of_the_search(stand_ins: Any) -> None:
    by_cmake = stand_ins.nvcc("13.1.1", name="cmake/bin/nvcc")
    by_cudacxx = stand_ins.nvcc("13.2.1", name="cudacxx/bin/nvcc")
    home = stand_ins.nvcc("13.3.1", name="home/bin/nvcc").parents[1]
    other = stand_ins.nvcc("13.4.1", name="path/bin/nvcc").parents[1]
    on_path = stand_ins.nvcc("13.5.1", name="search/nvcc").parent
    names = {
        "CUDACXX": str(by_cudacxx), "CUDA_HOME": str(home), "CUDA_PATH": str(other),
        "PATH": f"{on_path}{os.pathsep}{stand_ins.environment['PATH']}",
    }  # fmt: skip
    first = stand_ins.configure(f"CMAKE_CUDA_COMPILER={by_cmake}", **names)
    assert "Kernels: nvcc 13.1.1" in first.text
    for name, version in (
        ("CUDACXX", "13.2.1"),
        ("CUDA_HOME", "13.3.1"),
        ("CUDA_PATH", "13.4.1"),
        ("PATH", "13.5.1"),
    ):
        done = stand_ins.configure(**names)
        assert done.ok, done.text
        assert f"Kernels: nvcc {version} (" in done.text
        assert f", from {name})" in done.text
        del names[name]


@pytest.mark.parametrize("version", ["11.8.89", "12.9.86"])
def test_an_old_toolkit_stops(stand_ins: Any, version: str) -> None:
    nvcc = stand_ins.nvcc(version)
    done = stand_ins.configure(CUDACXX=str(nvcc))
    assert not done.ok
    assert f"{nvcc} (from CUDACXX) is CUDA {version}, but toolkits from 13.0 on are supported" in done.text


def test_13_0_is_new_enough(stand_ins: Any) -> None:
    done = stand_ins.configure(CUDACXX=str(stand_ins.nvcc("13.0.48")))
    assert done.ok, done.text


def test_a_program_that_is_no_nvcc_stops(stand_ins: Any) -> None:
    done = stand_ins.configure(CUDACXX=str(stand_ins.folder / "cl"))
    assert not done.ok
    assert "does not answer to --version as nvcc does" in done.text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CUDACXX", 'CUDACXX is "/no/such/place", which is no program'),
        ("CUDA_HOME", 'CUDA_HOME is "/no/such/place", which holds no bin/nvcc'),
        ("CUDA_PATH", 'CUDA_PATH is "/no/such/place", which holds no bin/nvcc'),
    ],
)
def test_a_named_toolkit_that_is_not_there_stops(stand_ins: Any, name: str, said: str) -> None:
    stand_ins.nvcc(name="search/nvcc")
    path = f"{stand_ins.folder / 'search'}{os.pathsep}{stand_ins.environment['PATH']}"
    done = stand_ins.configure(PATH=path, **{name: "/no/such/place"})
    assert not done.ok
    assert said in done.text


def test_no_compiler_at_all_stops_early(stand_ins: Any, tmp_path: Path) -> None:
    """A Python without the toolkit package, so that there is nothing left to find."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    start = time.monotonic()
    done = stand_ins.configure(f"Python_EXECUTABLE={bare / 'bin/python'}")
    assert not done.ok
    assert (
        "No CUDA compiler was found: set CUDACXX or CUDA_HOME, put nvcc on PATH, or let pip install"
        in done.text
    )
    assert time.monotonic() - start < 20


def test_no_host_compiler_stops(tmp_path: Path, without_nvcc: dict[str, str]) -> None:
    only = tmp_path / "bin"
    only.mkdir()
    for name in ("cmake", "ninja"):
        (only / name).symlink_to(Path(without_nvcc["PATH"]) / name)
    environment = {**without_nvcc, "PATH": str(only)}
    environment.pop("CC", None)
    ran = subprocess.run(
        ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tmp_path / "tree"),
         f"-DPython_EXECUTABLE={sys.executable}"],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode != 0
    assert "No C compiler was found; install one" in re.sub(r"\s+", " ", ran.stderr)
