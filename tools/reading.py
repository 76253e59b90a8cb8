"""Reads files that anybody may have put there: a device, a pipe or an endless one can't stop or fill us."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

MOST = 512 * 2**20  # bytes; the largest file that we make has a twentieth of it


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """All of a file. Raises OSError, with a strerror to show, also for what is no file or too long."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most / 2**20:.0f} MiB", str(path))
    return data


def read_text(path: Path) -> str:
    """UTF-8, with or without a mark in front, its lines' ends as Python has them.

    Raises OSError as read_bytes does, or UnicodeDecodeError.
    """
    return read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n")


def read_json(path: Path, most: int = MOST) -> Any:
    """A JSON document. Raises OSError as read_bytes does, ValueError as parse_json does."""
    return parse_json(read_bytes(path, most))


def parse_json(data: bytes) -> Any:
    """Raises ValueError for what is no JSON, or nested endlessly."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
