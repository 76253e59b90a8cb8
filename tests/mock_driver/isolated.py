"""Runs a test in an interpreter of its own: driver and launcher keep their state as long as it lives."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mock_driver import toolchain

_SECONDS = 120


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """The test's arguments must be JSON values or paths; it gets paths as text."""
    file = Path(test.__code__.co_filename)

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        if toolchain.compiler() is None:
            pytest.skip("the mock driver needs a C compiler")
        toolchain.mock_driver()
        toolchain.launcher()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MOCK_CUDA_")}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = (sys.executable, "-m", "mock_driver.isolated")
        result = subprocess.run(
            [*command, str(file), test.__name__, json.dumps(arguments, default=str)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if result.returncode != 0:
            raise AssertionError(f"exit code {result.returncode}\n{result.stdout}{result.stderr}")

    return run


def main(file: str, name: str, arguments: str) -> None:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    getattr(module, name).__wrapped__(**json.loads(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
