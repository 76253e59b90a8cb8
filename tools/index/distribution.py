"""Reads one wheel or source distribution and checks that it may be offered to anybody."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from tools.index import PROJECT, RefusedError
from tools.reading import MOST, parse_json, read_bytes
from tools.verify.platforms import platform_of
from tools.verify.problems import UnreadableError
from tools.verify.wheel import check_record, read_wheel

MANIFEST = "flash_attn/kernels/manifest.json"


@dataclass(frozen=True)
class Kernels:
    """What the manifest of a wheel says of its machine code."""

    toolkit: str
    sass: tuple[str, ...]
    ptx: tuple[str, ...]


@dataclass(frozen=True)
class Distribution:
    """One file as an index offers it. ``metadata`` is METADATA of a wheel, None for a source distribution."""

    path: Path
    version: Version
    platforms: tuple[str, ...]  # none for a source distribution
    sha256: str
    size: int
    requires_python: str | None
    requires: tuple[str, ...]
    metadata: bytes | None
    kernels: Kernels | None = None

    @property
    def filename(self) -> str:
        return self.path.name

    @property
    def identity(self) -> tuple[object, ...]:
        """The same for two spellings of one distribution's name."""
        if self.metadata is None:
            return (self.version,)
        return (self.version, *parse_wheel_filename(self.filename)[2:])


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    return sha256(read_bytes(path)).hexdigest()


def is_distribution(path: Path) -> bool:
    return path.name.endswith((".whl", ".tar.gz"))


def find(places: Iterable[Path]) -> list[Path]:
    """The distributions that these files and folders are. Raises RefusedError for a place that has none."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.iterdir() if is_distribution(path))
            if not inside:
                raise RefusedError(
                    f"{place} holds no wheel and no source distribution; name the folder that has them."
                )
            found += inside
        elif not place.is_file():
            raise RefusedError(f"{place} does not exist; name wheels, source distributions or their folders.")
        elif not is_distribution(place):
            raise RefusedError(
                f"{place} is neither a wheel (.whl) nor a source distribution (.tar.gz); leave it out."
            )
        else:
            found.append(place)
    return found


def read(path: Path) -> Distribution:
    """Raises RefusedError when the file is damaged or is not what its name says."""
    try:
        return _read_wheel(path) if path.name.endswith(".whl") else _read_sdist(path)
    except UnreadableError as error:
        raise RefusedError(f"{path}: {error}; build it again.") from None


def _read_wheel(path: Path) -> Distribution:
    wheel = read_wheel(path)
    if problem := next(check_record(wheel), None):
        raise UnreadableError(problem.message)
    name, version, _, _ = parse_wheel_filename(path.name)
    content = wheel.files.get(f"{wheel.dist_info}/METADATA")
    if content is None:
        raise UnreadableError(f"there is no {wheel.dist_info}/METADATA")
    metadata = _metadata(content, name, version)
    if platform_of(wheel.platforms) is None:
        raise RefusedError(
            f"{path} is tagged {'.'.join(wheel.platforms)}, which is no platform of ci/matrix.toml; "
            "python -m tools repair makes one of the tag that a build on Linux leaves."
        )
    return Distribution(
        path=path,
        version=version,
        platforms=wheel.platforms,
        sha256=wheel.sha256,
        size=wheel.size,
        requires_python=str(metadata.requires_python or "") or None,
        requires=tuple(map(str, metadata.requires_dist or ())),
        metadata=content,
        kernels=read_kernels(wheel.files.get(MANIFEST)),
    )


def _read_sdist(path: Path) -> Distribution:
    try:
        name, version = parse_sdist_filename(path.name)
    except InvalidSdistFilename:
        raise UnreadableError(
            "the file name is not that of a source distribution (name-version.tar.gz)"
        ) from None
    content = None
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(read_bytes(path))) as packed:
            unpacked = packed.read(MOST + 1)
        if len(unpacked) > MOST:
            raise UnreadableError(f"it unpacks to more than {MOST / 2**20:.0f} MiB")
        with tarfile.open(fileobj=io.BytesIO(unpacked)) as archive:
            for member in archive:
                if member.name == f"{path.name.removesuffix('.tar.gz')}/PKG-INFO" and member.isfile():
                    stream = archive.extractfile(member)
                    content = stream.read() if stream else None
    except (gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise UnreadableError(f"it is not a whole tar.gz file ({error})") from None
    except OSError as error:
        raise UnreadableError(f"it can't be read ({error.strerror or error})") from None
    if content is None:
        raise UnreadableError(f"there is no {path.name.removesuffix('.tar.gz')}/PKG-INFO in it")
    metadata = _metadata(content, name, version)
    return Distribution(
        path=path,
        version=version,
        platforms=(),
        sha256=digest_of(path),
        size=path.stat().st_size,
        requires_python=str(metadata.requires_python or "") or None,
        requires=tuple(map(str, metadata.requires_dist or ())),
        metadata=None,
    )


def _metadata(content: bytes, name: str, version: Version) -> Metadata:
    try:
        metadata = Metadata.from_email(content)
    except Exception as error:  # packaging raises an ExceptionGroup of its own, and others for odd bytes
        causes = [str(one) for one in getattr(error, "exceptions", ())] or [str(error)]
        raise UnreadableError(f"its metadata is not valid ({'; '.join(causes)})") from None
    if name != PROJECT:
        raise UnreadableError(f"it is a distribution of {name}, and this index holds {PROJECT} alone")
    if (canonicalize_name(metadata.name), metadata.version) != (name, version):
        raise UnreadableError(
            f"its name says {name} {version}, but the metadata inside says {metadata.name} {metadata.version}"
        )
    return metadata


def read_kernels(content: bytes | None) -> Kernels | None:
    """None for a wheel without a manifest that can be understood; ``verify`` judges those."""
    try:
        raw: Any = parse_json(content or b"")
        return Kernels(
            str(raw["toolkit"]),
            tuple(map(str, raw["architectures"]["sass"])),
            tuple(map(str, raw["architectures"]["ptx"])),
        )
    except (ValueError, LookupError, TypeError):
        return None


def spelled_right(name: str) -> bool:
    """Whether a wheel or source distribution can have this file name."""
    try:
        (parse_wheel_filename if name.endswith(".whl") else parse_sdist_filename)(name)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return False
    return is_distribution(Path(name))
