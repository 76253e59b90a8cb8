"""Judges whether this tree may be released under a tag, and writes the notes of that release."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path

from tools.index.distribution import Distribution
from tools.reading import read_text
from tools.release.project_version import read_version

CHANGELOG = "CHANGELOG.md"
_HEADING = re.compile(r"^## +(.+?)\s*$", re.MULTILINE)
_DATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class ReleaseError(Exception):
    """Why nothing may be released, in one sentence."""


def check_tag(root: Path, tag: str) -> str:
    """The version; ReleaseError unless the tag is ``v`` and it. VersionError as for read_version."""
    version = read_version(root)
    if tag != f"v{version}":
        raise ReleaseError(
            f"The tag is {tag!r}, but flash_attn/__init__.py has version {version}; tag v{version}, or "
            "change the version, commit and tag again. Nothing was published."
        )
    return version


def section(root: Path, version: str) -> str:
    """What CHANGELOG.md says of the version; ReleaseError when it says nothing, or gives no date."""
    path = root / CHANGELOG
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ReleaseError(f"{path} can't be read ({why}); the notes of a release come from it.") from None
    for heading, following in pairwise([*_HEADING.finditer(text), None]):
        assert heading
        name, _, rest = heading[1].partition(",")
        if name.strip() != version:
            continue
        if not _is_day(rest.strip()):
            raise ReleaseError(
                f"{path}: the heading {heading[0].strip()!r} gives no day; write '## {version}, YYYY-MM-DD'."
            )
        content = text[heading.end() : following.start() if following else len(text)].strip()
        if content:
            return content
        raise ReleaseError(f"{path}: the section of {version} is empty; say what changed.")
    raise ReleaseError(f"{path} has no section '## {version}, YYYY-MM-DD'; add it and say what changed.")


def _is_day(text: str) -> bool:
    try:
        return bool(_DATED.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


def check_complete(files: Sequence[Distribution], version: str, platforms: Iterable[str]) -> None:
    """ReleaseError unless there is one wheel a platform and one source distribution, all of the version."""
    for file in files:
        if str(file.version) != version:
            raise ReleaseError(f"{file.path} is of version {file.version}, not {version}; leave it out.")
    wanted = dict.fromkeys(platforms, 0)
    for file in files:
        fitting = [name for name in wanted if any(_fits(tag, name) for tag in file.platforms)]
        if file.platforms and not fitting:
            raise ReleaseError(f"{file.path} is for no platform of ci/matrix.toml; leave it out.")
        for name in fitting:
            wanted[name] += 1
    for name, count in wanted.items():
        if count != 1:
            raise ReleaseError(f"There are {count} wheels for {name}; a release has exactly one.")
    sources = sum(not file.platforms for file in files)
    if sources != 1:
        raise ReleaseError(f"There are {sources} source distributions; a release has exactly one.")


def _fits(tag: str, platform: str) -> bool:
    system, _, machine = platform.partition("_")
    return tag.startswith(system) and tag.endswith(f"_{machine}")


def table(files: Iterable[Distribution]) -> str:
    """The files as a Markdown table: name, size, SHA-256."""
    rows = [
        f"| `{file.filename}` | {file.size / 1e6:.2f} MB | `{file.sha256}` |"
        for file in sorted(files, key=lambda file: file.filename)
    ]
    return "\n".join(["| file | size | SHA-256 |", "| --- | ---: | --- |", *rows])
