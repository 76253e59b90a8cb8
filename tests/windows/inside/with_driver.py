"""Inside Windows with the mock driver as nvcuda.dll: bad drivers, bad files, autograd, every kernel.

    python.exe with_driver.py TESTS REPORT LAUNCHES

The launcher asks again as long as no driver has answered well, so bad ones come first, in one process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), sys.argv[1]]

import modules
import report
import torch
from mock_driver import driver, replay
from mock_driver.driver import MockDriver
from mock_driver.launcher import Launcher, fwd_args

import flash_attn
from flash_attn import _checks, _launcher, _tensors

SYSTEM32 = Path(os.environ["SYSTEMROOT"]) / "System32"
STREAM = 0x5EED0


def bad_drivers(mock: MockDriver) -> dict[str, str]:
    def devices() -> str:
        return report.error_of(lambda: _launcher.launcher().devices())

    found = {}
    for name in driver.ENTRY_POINTS:
        mock.hide(name)
        found[name] = devices()
        mock.library.mock_cuda_reset()
    mock.set_driver_version(12080)
    found["old"] = devices()
    mock.library.mock_cuda_reset()
    mock.fail("cuInit", 100)
    found["no device"] = devices()
    mock.library.mock_cuda_reset()
    return found


@contextmanager
def renamed(path: Path) -> Any:
    aside = path.with_suffix(".aside")
    path.rename(aside)
    try:
        yield aside
    finally:
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        aside.rename(path)


@contextmanager
def locked(path: Path) -> Any:
    """Held open by a program that shares it with nobody."""
    kernel32 = ctypes.WinDLL("kernel32")
    kernel32.CreateFileW.restype = ctypes.c_void_p
    handle = kernel32.CreateFileW(str(path), 0x80000000, 0, None, 3, 0x80, None)
    try:
        yield
    finally:
        kernel32.CloseHandle(ctypes.c_void_p(handle))


def bad_files(launcher: Launcher, fatbin: Path) -> dict[str, str]:
    def launch() -> str:
        return report.error_of(lambda: launcher.run(fwd_args(head_dim=64)))

    found = {"fatbin": str(fatbin)}
    whole = fatbin.read_bytes()
    with renamed(fatbin):
        found["missing"] = launch()
        fatbin.write_bytes(whole[: len(whole) // 2])
        found["cut"] = launch()
        fatbin.write_bytes(b"")
        found["empty"] = launch()
        fatbin.unlink()
        fatbin.mkdir()  # Windows refuses to open it as it refuses a file without the right to read
        found["denied"] = launch()
    with locked(fatbin):
        found["locked"] = launch()
    found["whole"] = launch()
    return found


def autograd() -> dict[str, Any]:
    """CPU tensors that pass for CUDA tensors: everything but the arithmetic."""
    _checks.device_of = lambda q: 0
    _tensors.current_stream = lambda device: STREAM
    q, k, v = (torch.zeros(2, 9, heads, 64, dtype=torch.float16, requires_grad=True) for heads in (4, 2, 2))
    out = flash_attn.flash_attn_func(q, k, v, causal=True)
    out.backward(torch.zeros_like(out))
    gradients = [list(x.grad.shape) for x in (q, k, v) if x.grad is not None]
    return {"out": list(out.shape), "gradients": gradients}


def without_a_fatbin() -> str:
    """What the package says of it, beside CPU tensors that pass for CUDA tensors."""
    q = torch.zeros(1, 9, 4, 96, dtype=torch.float16)
    with renamed(_launcher.manifest().folder / "flash_fwd_hdim96_fp16.fatbin"):
        return report.error_of(lambda: flash_attn.flash_attn_func(q, q, q))


def main(tests: str, output: str, launches: str) -> None:
    mock = MockDriver(SYSTEM32 / "nvcuda.dll")
    found: dict[str, Any] = {"bad drivers": bad_drivers(mock)}
    mock = MockDriver(SYSTEM32 / "nvcuda.dll", *driver.DEVICES)
    found["devices"] = [info.name.decode() for info in _launcher.launcher().devices()]
    found["loaded"] = modules.named("nvcuda.dll", "flash_attn.dll")
    library = _launcher._places()[0] / "lib" / "flash_attn.dll"
    launcher = Launcher(library)
    found["bad files"] = bad_files(launcher, _launcher.manifest().folder / "flash_fwd_hdim64_bf16.fatbin")
    before = mock.launch_count
    found["autograd"] = autograd()
    found["autograd"]["launches"] = [launch.kernel for launch in mock.launches[before:]]
    found["without a fatbin"] = without_a_fatbin()
    replay.write_launches(Path(launches), launcher, mock)
    found["loads"] = mock.load_count
    report.write(output, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
