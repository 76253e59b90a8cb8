"""Three CPythons for Windows with the wheel installed, and what the scripts of ``inside/`` found in each.

``nox -s windows`` names the wheels; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from mock_driver import toolchain

from windows import dlls, interpreter
from windows.downloads import PYTHONS
from windows.interpreter import Interpreter
from windows.wine import Wine, installation, windows_path

CACHE = ROOT / "build" / "windows"
INSIDE = Path(__file__).with_name("inside")
PLANTED = ("nvcuda.dll", "flash_attn.dll")


def _wheel(variable: str) -> Path:
    if variable not in os.environ:
        pytest.skip(f"{variable} names no wheel; nox -s windows builds one and runs these tests")
    return Path(os.environ[variable])


@dataclass(frozen=True)
class Found:
    """What was found in one CPython."""

    version: str  # of the wheel
    interpreter: Interpreter
    folder: Path
    without_driver: dict[str, Any]
    with_driver: dict[str, Any]
    launches: list[str]
    # What `python -m flash_attn --no-gpu --json` wrote, without a driver and with one.
    diagnoses: tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def wine() -> Iterator[Wine]:
    made = installation(CACHE)
    (made.system32 / "nvcuda.dll").unlink(missing_ok=True)
    yield made
    made.close()


@pytest.fixture(scope="session")
def found(wine: Wine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """By minor version. Two at a time: first all without a driver, then all with one."""
    wheel = _wheel("FLASH_ATTN_WINDOWS_WHEEL")
    folder = tmp_path_factory.mktemp("windows")
    mock = dlls.mock_driver(folder)

    def make(kind: Any) -> Interpreter:
        return interpreter.make(kind, wine, wheel, CACHE, folder)

    def script(python: Interpreter, name: str, *more: str) -> dict[str, Any]:
        cwd = folder / f"working directory {python.kind.minor}"
        cwd.mkdir(exist_ok=True)
        report = folder / f"{name}-{python.kind.minor}.json"
        arguments = (INSIDE / f"{name}.py", INSIDE.parents[1], report)
        done = python.run(*map(windows_path, arguments), *more, cwd=cwd, seconds=300)
        assert done.returncode == 0, f"{name} on {python.kind.python}:\n{done.stdout}{done.stderr}"
        result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return result

    def without(python: Interpreter) -> dict[str, Any]:
        cwd = folder / f"working directory {python.kind.minor}"
        cwd.mkdir(exist_ok=True)
        for name in PLANTED:
            shutil.copy(mock, cwd / name)
            shutil.copy(mock, python.folder / name)
        return script(python, "without_driver")

    def diagnose(python: Interpreter, *more: str) -> subprocess.CompletedProcess[str]:
        return python.run("-m", "flash_attn", "--json", *more)

    def launches(python: Interpreter) -> Path:
        return folder / f"launches-{python.kind.minor}"

    with ThreadPoolExecutor(2) as pool:
        pythons = list(pool.map(make, PYTHONS))
        first = list(pool.map(without, pythons))
        ill = list(pool.map(diagnose, pythons))
        shutil.copy(mock, wine.system32 / "nvcuda.dll")
        second = list(
            pool.map(lambda python: script(python, "with_driver", windows_path(launches(python))), pythons)
        )
        well = list(pool.map(lambda python: diagnose(python, "--no-gpu"), pythons))
    return {
        python.kind.minor: Found(
            wheel.name.split("-")[1],
            python,
            folder,
            one,
            two,
            launches(python).read_text(encoding="utf-8").splitlines(),
            (before, after),
        )
        for python, one, two, before, after in zip(pythons, first, second, ill, well, strict=True)
    }


@pytest.fixture(params=[kind.minor for kind in PYTHONS])
def python(request: pytest.FixtureRequest, found: dict[str, Found]) -> Found:
    return found[request.param]


@pytest.fixture(scope="session")
def linux_launches(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Those of the Linux wheel's launcher for the same calls."""
    folder = tmp_path_factory.mktemp("linux")
    with zipfile.ZipFile(_wheel("FLASH_ATTN_WHEEL")) as archive:
        archive.extractall(folder)
    package, output = folder / "flash_attn", folder / "launches"
    command = [sys.executable, "-m", "mock_driver.replay", package / "lib/libflash_attn.so"]
    subprocess.run(
        [*map(str, command), str(toolchain.mock_driver()), str(package), str(output)],
        cwd=INSIDE.parents[1], check=True, timeout=300,
    )  # fmt: skip
    return output.read_text(encoding="utf-8").splitlines()
