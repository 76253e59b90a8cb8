"""Where an installed flash_attn lies, found without importing it, which would need torch."""

from __future__ import annotations

import sys
from pathlib import Path


def package() -> Path | None:
    """The folder of the first flash_attn on the path that holds kernels; the source tree's own holds none."""
    for entry in sys.path:
        folder = Path(entry or ".") / "flash_attn"
        if (folder / "kernels" / "manifest.json").is_file():
            return folder.resolve()
    return None


def library(package: Path) -> Path:
    """The launcher of an installed package."""
    return package / "lib" / ("flash_attn.dll" if sys.platform == "win32" else "libflash_attn.so")
