"""Facts about the driver and the GPUs, asked of the driver itself: the launcher may be what is broken."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .facts import Driver, Gpu

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_SEARCH_SYSTEM32 = 0x800  # LOAD_LIBRARY_SEARCH_SYSTEM32
_MULTIPROCESSORS, _MAJOR, _MINOR, _SMEM_OPTIN = 16, 75, 76, 97  # of CUdevice_attribute


def driver_and_gpus() -> tuple[Driver, tuple[Gpu, ...]]:
    try:
        cuda = _system_library("libcuda.so.1", "nvcuda.dll")
    except OSError as error:
        return Driver(error=str(error)), ()
    release = _release()
    try:
        version = _number(cuda.cuDriverGetVersion)
        gpus = tuple(_gpus(cuda))
    except _CallError as error:
        version_found = None if error.call == "cuDriverGetVersion" else version
        is_empty = error.call == "cuInit" and error.code == NO_DEVICE
        return Driver(True, version_found, release, None if is_empty else str(error)), ()
    except AttributeError as error:  # a library of that name without these functions
        return Driver(True, None, release, str(error)), ()
    return Driver(True, version, release), gpus


class _CallError(Exception):
    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with error {code}")
        self.call, self.code = call, code


def _system_library(posix: str, windows: str) -> ctypes.CDLL:
    """The driver's library; on Windows from System32 and nowhere else, as the launcher takes it."""
    if sys.platform != "win32":
        return ctypes.CDLL(posix)
    room = ctypes.create_unicode_buffer(260)
    if not ctypes.windll.kernel32.GetSystemDirectoryW(room, len(room)):
        raise OSError("Windows doesn't tell where System32 is")
    return ctypes.CDLL(str(Path(room.value) / windows), winmode=_SEARCH_SYSTEM32)


def _call(function: Any, *arguments: Any) -> None:
    code = function(*arguments)
    if code:
        raise _CallError(function.__name__, code)


def _number(function: Any, *arguments: Any) -> int:
    value = ctypes.c_int()
    _call(function, ctypes.byref(value), *arguments)
    return value.value


def _gpus(cuda: ctypes.CDLL) -> Iterator[Gpu]:
    _call(cuda.cuInit, 0)
    for ordinal in range(_number(cuda.cuDeviceGetCount)):
        device = _number(cuda.cuDeviceGet, ordinal)
        name = ctypes.create_string_buffer(128)
        _call(cuda.cuDeviceGetName, name, len(name), device)
        major, minor, multiprocessors, smem = (
            _number(cuda.cuDeviceGetAttribute, attribute, device)
            for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS, _SMEM_OPTIN)
        )
        text = name.value.decode("utf-8", "replace")
        yield Gpu(ordinal, text, 10 * major + minor, multiprocessors, smem)


def _release() -> str | None:
    """The driver's own version, such as 580.95.05; None where NVML doesn't tell."""
    try:
        nvml = _system_library("libnvidia-ml.so.1", "nvml.dll")
        text = ctypes.create_string_buffer(96)
        _call(nvml.nvmlInit_v2)
        _call(nvml.nvmlSystemGetDriverVersion, text, len(text))
        nvml.nvmlShutdown()
    except (OSError, AttributeError, _CallError):
        return None
    return text.value.decode("ascii", "replace") or None
