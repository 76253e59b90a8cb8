"""The libraries that this process has loaded, as Windows lists them."""

from __future__ import annotations

import ctypes


def loaded() -> list[str]:
    """Their full paths."""
    kernel32 = ctypes.WinDLL("kernel32")
    kernel32.GetCurrentProcess.restype = ctypes.c_void_p
    kernel32.K32EnumProcessModules.argtypes = (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p,
    )  # fmt: skip
    kernel32.GetModuleFileNameW.argtypes = (ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_uint32)
    handles = (ctypes.c_void_p * 1024)()
    needed = ctypes.c_uint32()
    process = kernel32.GetCurrentProcess()
    if not kernel32.K32EnumProcessModules(process, handles, ctypes.sizeof(handles), ctypes.byref(needed)):
        raise ctypes.WinError()
    paths = []
    for handle in handles[: needed.value // ctypes.sizeof(ctypes.c_void_p)]:
        name = ctypes.create_unicode_buffer(1024)
        kernel32.GetModuleFileNameW(handle, name, len(name))
        paths.append(name.value)
    return paths


def named(*names: str) -> list[str]:
    """The paths of those with one of these names."""
    return [path for path in loaded() if path.replace("/", "\\").rsplit("\\", 1)[-1].lower() in names]
