"""Puts a finished index in its place: written beside it, checked, then moved, so it is there whole or not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tools.index import FILES, PROJECT, RefusedError
from tools.index.distribution import digest_of
from tools.index.pages import Pages, project_json, root_json
from tools.index.published import PROJECT_JSON, SIMPLE, Entry
from tools.trust import PROVENANCE_ENDING, SBOM_ENDING

# What may lie beside a distribution and is published with it.
BESIDE = (SBOM_ENDING, PROVENANCE_ENDING)


def publish(entries: Sequence[Entry], output: Path, url: str | None, files_url: str | None = None) -> None:
    """Raises RefusedError, leaving ``output`` as it was, when the index can't be written whole."""
    output = output.absolute()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as scratch:
            made = Path(scratch) / "new"
            _write(entries, made, Pages(url, files_url), files_url)
            _move(made, output, Path(scratch) / "old")
    except OSError as error:
        where = error.filename or output
        raise RefusedError(
            f"The index can't be written: {where}: {error.strerror}; {output} was left as it was."
        ) from None


def _write(entries: Sequence[Entry], folder: Path, pages: Pages, files_url: str | None) -> None:
    files = folder / FILES
    files.mkdir(parents=True)
    for entry in entries:
        _copy(entry, files)
    texts = {
        "index.html": pages.people(entries),
        f"{SIMPLE}/index.html": pages.root(),
        f"{SIMPLE}/index.json": root_json(),
        f"{SIMPLE}/{PROJECT}/index.html": pages.project(entries),
        PROJECT_JSON: project_json(entries, files_url),
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def _copy(entry: Entry, files: Path) -> None:
    distribution = entry.distribution
    copied = Path(shutil.copyfile(distribution.path, files / distribution.filename))
    if (found := digest_of(copied)) != distribution.sha256:
        raise RefusedError(
            f"{distribution.path} changed while it was copied: it had SHA-256 {distribution.sha256}, "
            f"the copy has {found}; try again when nothing writes to it."
        )
    if distribution.metadata is not None:
        copied.with_name(f"{copied.name}.metadata").write_bytes(distribution.metadata)
    for ending in BESIDE:
        with suppress(FileNotFoundError):
            name = f"{distribution.filename}{ending}"
            shutil.copyfile(distribution.path.with_name(name), files / name)


def _move(made: Path, output: Path, old: Path) -> None:
    replaced = output.exists()
    if replaced:
        output.rename(old)
    try:
        made.rename(output)
    except OSError:
        if replaced:
            old.rename(output)
        raise
