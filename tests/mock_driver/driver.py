"""The mock driver from Python: its devices, its failures, and what was loaded and launched."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mock_driver.c_structs import structs


@dataclass(frozen=True)
class Device:
    compute_capability: int
    multiprocessors: int
    smem_optin: int
    l2_bytes: int
    name: str = "Mock GPU"


KIB = 1024
MIB = 1024 * KIB
AMPERE = Device(80, 108, 163 * KIB, 40 * MIB, "NVIDIA A100")
RTX_3090 = Device(86, 82, 99 * KIB, 6 * MIB, "NVIDIA GeForce RTX 3090")
RTX_4090 = Device(89, 128, 99 * KIB, 72 * MIB, "NVIDIA GeForce RTX 4090")
HOPPER = Device(90, 132, 227 * KIB, 60 * MIB, "NVIDIA H200")
B200 = Device(100, 148, 227 * KIB, 126 * MIB, "NVIDIA B200")
B300 = Device(103, 160, 227 * KIB, 126 * MIB, "NVIDIA B300")
THOR = Device(110, 20, 227 * KIB, 32 * MIB, "NVIDIA Thor")
RTX_5090 = Device(120, 170, 99 * KIB, 96 * MIB, "NVIDIA GeForce RTX 5090")
SPARK = Device(121, 48, 99 * KIB, 24 * MIB, "NVIDIA GB10")
TURING = Device(75, 68, 64 * KIB, 5 * MIB, "NVIDIA GeForce RTX 2080 Ti")
DEVICES = (AMPERE, RTX_3090, RTX_4090, HOPPER, B200, B300, THOR, RTX_5090, SPARK)
# What the launcher asks cuGetProcAddress for.
ENTRY_POINTS = (
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuKernelSetAttribute",
    "cuKernelGetFunction",
    "cuLaunchKernel",
)


@dataclass(frozen=True)
class Launch:
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    smem_bytes: int
    device: int
    stream: int
    thread: int
    params: bytes

    def decode(self) -> Any:
        """The parameter block as the struct that the kernel takes."""
        name = "Flash_fwd_params"
        if self.kernel.startswith("flash_bwd"):
            name = "Flash_bwd_params"
        elif "_append" in self.kernel:
            name = "Flash_append_params"
        kind = structs()[name]
        assert ctypes.sizeof(kind) == len(self.params)
        return kind.from_buffer_copy(self.params)


class MockDriver:
    """Loaded for the whole process under the name of the real driver, so that the launcher finds this one."""

    def __init__(self, library: Path, *devices: Device) -> None:
        self.library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self.library.mock_cuda_other_context.restype = ctypes.c_void_p
        self.library.mock_cuda_reset()
        if devices:
            self.library.mock_cuda_clear_devices()
        for device in devices:
            self.library.mock_cuda_add_device(
                device.name.encode(),
                device.compute_capability,
                device.multiprocessors,
                device.smem_optin,
                device.l2_bytes,
            )

    def fail(self, call: str, result: int, successes: int = 0) -> None:
        self.library.mock_cuda_fail(call.encode(), result, successes)

    def hide(self, call: str) -> None:
        self.library.mock_cuda_hide(call.encode())

    def count(self, call: str) -> int:
        return int(self.library.mock_cuda_call_count(call.encode()))

    def set_driver_version(self, version: int) -> None:
        self.library.mock_cuda_set_driver_version(version)

    def set_capturing(self, is_capturing: bool) -> None:
        self.library.mock_cuda_set_capturing(int(is_capturing))

    def set_recording(self, is_on: bool) -> None:
        self.library.mock_cuda_set_recording(int(is_on))

    @property
    def current_context(self) -> int | None:
        context = ctypes.c_void_p()
        assert self.library.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    @current_context.setter
    def current_context(self, context: int | None) -> None:
        assert self.library.cuCtxSetCurrent(ctypes.c_void_p(context)) == 0

    def other_context(self, device: int) -> int:
        return int(self.library.mock_cuda_other_context(device))

    @property
    def launch_count(self) -> int:
        return int(self.library.mock_cuda_launch_count())

    @property
    def load_count(self) -> int:
        return int(self.library.mock_cuda_load_count())

    @property
    def loaded_bytes(self) -> list[int]:
        """The size of each fatbin, by its own header, in the order of loading."""
        result: list[int] = []
        raw = structs()["Mock_load"]()
        while self.library.mock_cuda_get_load(len(result), ctypes.byref(raw)) == 0:
            result.append(raw.bytes)
        return result

    @property
    def launches(self) -> list[Launch]:
        return self.launches_from(0)

    def launches_from(self, first: int) -> list[Launch]:
        """Those after the first ones."""
        result: list[Launch] = []
        raw = structs()["Mock_launch"]()
        while self.library.mock_cuda_get_launch(first + len(result), ctypes.byref(raw)) == 0:
            result.append(
                Launch(
                    raw.kernel.decode(),
                    tuple(raw.grid),
                    tuple(raw.block),
                    raw.smem_bytes,
                    raw.device,
                    raw.stream,
                    raw.thread,
                    bytes(raw.params)[: raw.param_bytes],
                )
            )
        return result
