"""Which folder a command may fill that replaces what is there: a new one, an empty one, or one of its own."""

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
