"""Reads the index that lies in a folder already: what it offers, since when, and what is yanked."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from tools.index import FILES, PROJECT, RefusedError
from tools.index.distribution import MANIFEST, Distribution, digest_of, read_kernels, spelled_right
from tools.output import check_output
from tools.reading import read_json

SIMPLE = "simple"
PROJECT_JSON = f"{SIMPLE}/{PROJECT}/index.json"
OURS = {"index.html", SIMPLE, FILES}
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True)
class Entry:
    """A distribution of the index. ``yanked`` is the reason why installers should pass it by."""

    distribution: Distribution
    uploaded: datetime
    yanked: str | None = None

    @property
    def uploaded_text(self) -> str:
        return self.uploaded.strftime(_TIME)


def read_index(folder: Path) -> list[Entry]:
    """What the index in this folder offers; nothing when the folder is empty or not there.

    Raises OutputError when the folder holds anything else, RefusedError for a file that has changed since.
    """
    check_output(folder, "index", OURS.__contains__)
    if not folder.exists() or not any(folder.iterdir()):
        return []
    path = folder / PROJECT_JSON
    try:
        entries = [_entry(folder, item) for item in read_json(path)["files"]]
    except OSError as error:
        raise RefusedError(
            f"{error.filename or path} can't be read ({error.strerror}), so what {folder} offers is not "
            "known; restore it or name an empty folder."
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RefusedError(
            f"{path} is not the JSON that this command writes ({type(error).__name__}: {error}); "
            "restore it or name an empty folder."
        ) from None
    known = {entry.distribution.filename for entry in entries}
    for name in _unlisted(folder / FILES, known):
        raise RefusedError(
            f"{folder / FILES / name} is not in {path}; restore the index or name an empty folder."
        )
    return entries


def _unlisted(files: Path, known: set[str]) -> Iterator[str]:
    for path in sorted(files.iterdir()):
        if not any(path.name == name or path.name.startswith(f"{name}.") for name in known):
            yield path.name


def _entry(folder: Path, item: dict[str, Any]) -> Entry:
    name = item["filename"]
    if not spelled_right(name):
        raise ValueError(f"{name!r} is no file name of a distribution")
    path = folder / FILES / name
    recorded = item["hashes"]["sha256"]
    found = digest_of(path)
    if found != recorded:
        raise RefusedError(
            f"{path} has SHA-256 {found}, but it was published with {recorded}; restore the file."
        )
    yanked = item.get("yanked", False)
    return Entry(
        distribution=_distribution(path, recorded, item.get("requires-python")),
        uploaded=datetime.strptime(item["upload-time"], _TIME).replace(tzinfo=timezone.utc),
        yanked=str(yanked) if yanked else None,
    )


def _distribution(path: Path, digest: str, requires_python: str | None) -> Distribution:
    """From the file and the metadata beside it: it was judged when it was published, and has not changed."""
    size = path.stat().st_size
    if not path.name.endswith(".whl"):
        version = parse_sdist_filename(path.name)[1]
        return Distribution(path, version, (), digest, size, requires_python, (), None)
    _, version, _, tags = parse_wheel_filename(path.name)
    platforms = tuple(sorted({tag.platform for tag in tags}))
    with zipfile.ZipFile(path) as archive:
        content = archive.read(f"{'-'.join(path.name.split('-')[:2])}.dist-info/METADATA")
        kernels = read_kernels(archive.read(MANIFEST) if MANIFEST in archive.namelist() else None)
    metadata = Metadata.from_email(content, validate=False)
    requires = tuple(map(str, metadata.requires_dist or ()))
    return Distribution(path, version, platforms, digest, size, requires_python, requires, content, kernels)
