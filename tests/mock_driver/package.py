"""The Python package on the mock driver, with CPU tensors that pass for CUDA tensors. Nothing is computed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from mock_driver import driver, toolchain
from mock_driver.driver import MockDriver
from mock_driver.kernel_table import kernels, write_fatbins

STREAM = 0x5EED0


def install(folder: Path, families: Iterable[str] | None = None) -> Path:
    """Writes what a wheel holds beside its Python files: launcher, fatbins, manifest."""
    from flash_attn import __version__

    (folder / "lib").mkdir(parents=True)
    (folder / "kernels").mkdir()
    shutil.copy(toolchain.launcher(), folder / "lib")
    digests = write_fatbins(folder / "kernels")
    chosen = [kernel for kernel in kernels() if families is None or kernel.family in families]
    manifest = {
        "schema": 1,
        "version": __version__,
        "toolkit": "mock",
        "architectures": {"sass": ["90"], "ptx": ["90"]},
        "fatbins": [
            {
                "name": name,
                "sha256": digest,
                "kernels": [
                    {"name": kernel.name, "family": kernel.family}
                    for kernel in chosen
                    if kernel.fatbin == name
                ],
            }
            for name, digest in digests.items()
        ],
    }
    (folder / "kernels" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def pretend(
    folder: Path, device: driver.Device = driver.HOPPER, families: Iterable[str] | None = None
) -> MockDriver:
    """From here on flash_attn takes CPU tensors for CUDA tensors of device 0. For an isolated test."""
    from flash_attn import _checks, _launcher, _tensors

    mock = MockDriver(toolchain.mock_driver(), device)
    places = (install(folder, families),)
    _launcher._places = lambda: places
    _checks.device_of = lambda q: 0
    _tensors.current_stream = lambda device: STREAM
    return mock
