"""Other platforms than this machine's: how each is named to pip, to zig and to setuptools' conventions."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ZIG_TOOLCHAIN = ROOT / "cmake" / "zig.cmake"


@dataclass(frozen=True)
class Target:
    """One platform that wheels are built for. ``host_platform`` is what sysconfig would call it there."""

    name: str
    zig: str
    host_platform: str
    is_windows: bool


# glibc 2.17, as the tag manylinux_2_17 (manylinux2014) promises.
TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("manylinux_x86_64", "x86_64-linux-gnu.2.17", "linux-x86_64", is_windows=False),
        Target("manylinux_aarch64", "aarch64-linux-gnu.2.17", "linux-aarch64", is_windows=False),
        Target("win_amd64", "x86_64-windows-gnu", "win-amd64", is_windows=True),
        Target("win_arm64", "aarch64-windows-gnu", "win-arm64", is_windows=True),
    )
}


def zig_program() -> Path:
    """zig, from the package ziglang; ImportError when that is not installed."""
    import ziglang

    assert ziglang.__file__ is not None
    return Path(ziglang.__file__).with_name("zig.exe" if sys.platform == "win32" else "zig")


def environment_for(target: Target) -> dict[str, str]:
    """What makes scikit-build-core and CMake build for the target with zig."""
    return {
        "CMAKE_TOOLCHAIN_FILE": str(ZIG_TOOLCHAIN),
        "FLASH_ATTN_ZIG": str(zig_program()),
        "FLASH_ATTN_ZIG_TARGET": target.zig,
        "_PYTHON_HOST_PLATFORM": target.host_platform,
        "ZIG_GLOBAL_CACHE_DIR": os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(Path.home() / ".cache" / "zig")),
    }
