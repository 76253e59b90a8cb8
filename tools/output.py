"""Where a command may write: a file, or a folder that it fills, which is new, empty or of its own making."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class OutputError(Exception):
    """Why nothing may be written there, in one sentence."""


def is_of_kernels(name: str) -> bool:
    """Whether a folder of fatbins, such as FLASH_ATTN_KERNELS_DIR takes, holds a file of this name."""
    return name == "manifest.json" or name.endswith(".fatbin")


def check_output(folder: Path, what: str, ours: Callable[[str], bool]) -> None:
    """Raises OutputError when the folder holds a name that is not ``ours``; ``what`` is to be there."""
    try:
        if not folder.is_dir():
            if folder.exists() or folder.is_symlink():
                raise OutputError(f"{folder} is no folder; name another output.")
            return
        foreign = sorted(path.name for path in folder.iterdir() if not ours(path.name))
    except OSError as error:
        raise OutputError(f"{folder} can't be read ({error.strerror}); name another output.") from None
    if foreign:
        raise OutputError(
            f"{folder} holds {foreign[0]}, which no {what} has; name a folder that is empty, new or such a "
            f"{what}."
        )


def check_file(path: Path) -> None:
    """Raises OutputError when a file of this name can't be: it is a folder, or would lie in none."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file to write.")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is no folder; name a file in one.")


def write_file(path: Path, data: bytes) -> None:
    """Raises OutputError when that can't be."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OutputError(f"{path} can't be written ({error.strerror}); name another file.") from None
