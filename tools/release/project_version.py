"""The version literal in ``flash_attn/__init__.py``, which everything else takes the version from."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tools.output import write_file
from tools.reading import read_text

ROOT = Path(__file__).parents[2]
VERSION_FILE = Path("flash_attn") / "__init__.py"
_LITERAL = re.compile(r'^__version__ = "([^"\n]*)"$', re.MULTILINE)
_FINISHED = re.compile(r"\d+\.\d+\.\d+")


class VersionError(Exception):
    """Why there is no version, or it can't be changed, in one sentence."""


def read_version(root: Path) -> str:
    """Raises VersionError unless the file has exactly one version line, and a version in it."""
    path = root / VERSION_FILE
    try:
        found = _LITERAL.findall(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise VersionError(f"{path} can't be read ({why}); name a checkout of flash-attn.") from None
    if len(found) != 1:
        raise VersionError(f'{path} has {len(found)} lines __version__ = "X.Y.Z"; exactly one must be there.')
    version = str(found[0])
    try:
        if str(Version(version)) == version:
            return version
    except InvalidVersion:
        pass
    raise VersionError(f"{path} has version {version!r}, which is none; write one such as 2.9.0.")


def dev_version(version: str, day: str) -> str:
    """``2.9.0.dev20261202`` for 2.9.0 and 20261202; VersionError for no day or an unfinished version."""
    if not _FINISHED.fullmatch(version):
        raise VersionError(
            f"The version is {version}, but a nightly is made of a finished one such as 2.9.0."
        )
    if not re.fullmatch(r"[0-9]{8}", day):
        raise VersionError(f"{day!r} is no day; write it as YYYYMMDD, such as 20261202.")
    try:
        datetime.strptime(day, "%Y%m%d")
    except ValueError:
        raise VersionError(f"{day!r} is no day of the calendar; write it as YYYYMMDD.") from None
    return f"{version}.dev{day}"


def write_version(root: Path, version: str) -> None:
    """Puts the version in place of the one that is there, and changes nothing else. Raises OutputError."""
    path = root / VERSION_FILE
    text = path.read_bytes().decode("utf-8")
    write_file(path, _LITERAL.sub(f'__version__ = "{version}"', text).encode())
