"""Other platforms than this machine's: how each is named to pip, to zig and to setuptools' conventions."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.matrix.definition import definition

ROOT = Path(__file__).parent.parent
ZIG_TOOLCHAIN = ROOT / "cmake" / "zig.cmake"


@dataclass(frozen=True)
class Target:
    """One platform that wheels are built for. ``host_platform`` is what sysconfig would call it there."""

    name: str
    zig: str
    host_platform: str


def targets() -> Mapping[str, Target]:
    """Those of ``ci/matrix.toml``, by name. Raises MatrixError when that is wrong."""
    return {name: Target(name, row.zig, row.host) for name, row in definition().platforms.items()}


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
