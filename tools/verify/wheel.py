"""Reads a wheel's outside: its name, its tags, its metadata, the files and what RECORD says of them."""

from __future__ import annotations

import base64
import csv
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from hashlib import sha256
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tools.reading import MOST, read_bytes
from tools.verify.problems import Problem, Problems, UnreadableError

# What zipfile raises for archives that are cut, garbled, encrypted or packed in some other way.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, LookupError, RuntimeError, ValueError)
_NAME = re.compile(r"[A-Za-z0-9_.+!-]+\.whl")


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory. ``files`` maps each member's path to its bytes."""

    path: Path
    size: int
    sha256: str
    version: str
    tags: frozenset[Tag]
    files: Mapping[str, bytes]
    dist_info: str
    duplicates: tuple[str, ...]

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(sorted({tag.platform for tag in self.tags}))

    def headers(self, name: str) -> Message:
        """METADATA or WHEEL, parsed; empty when the file is missing."""
        return BytesParser().parsebytes(self.files.get(f"{self.dist_info}/{name}", b""))


def read_wheel(path: Path) -> Wheel:
    """Raises UnreadableError, in one sentence, for a file that is no wheel."""
    try:
        if not _NAME.fullmatch(path.name):
            raise InvalidWheelFilename
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        raise UnreadableError(
            "the file name is not that of a wheel (name-version-python-abi-platform.whl)"
        ) from None
    try:
        data = read_bytes(path)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            unpacked = sum(member.file_size for member in members)
            if unpacked > MOST:
                raise UnreadableError(
                    f"it unpacks to {unpacked / 2**20:.0f} MiB, and ours to at most {MOST / 2**20:.0f}"
                )
            files = {member.filename: archive.read(member) for member in members}
    except OSError as error:
        raise UnreadableError(f"it can't be opened ({error.strerror or error})") from None
    except _DAMAGE as error:
        raise UnreadableError(f"it is not a whole zip file ({error})") from None
    names = [member.filename for member in members]
    return Wheel(
        path=path,
        size=len(data),
        sha256=sha256(data).hexdigest(),
        version=str(version),
        tags=frozenset(tags),
        files=files,
        dist_info=f"{name.replace('-', '_')}-{version}.dist-info",
        duplicates=tuple(sorted({name for name in names if names.count(name) > 1})),
    )


def check_record(wheel: Wheel) -> Problems:
    """Every file stands in RECORD with its size and SHA-256, and RECORD names no other."""
    record = f"{wheel.dist_info}/RECORD"
    if record not in wheel.files:
        yield Problem("record", f"there is no {record}")
        return
    for name in wheel.duplicates:
        yield Problem("record", f"{name} is in the wheel more than once")
    listed: dict[str, tuple[str, str]] = {}
    try:
        rows = list(csv.reader(io.StringIO(wheel.files[record].decode("utf-8", "replace"), newline="")))
    except csv.Error as error:
        yield Problem("record", f"RECORD is no table of files ({error})")
        return
    for row in rows:
        if len(row) != 3:
            yield Problem("record", f"RECORD has a line that is not path,hash,size: {','.join(row)!r}")
            continue
        if row[0] in listed:
            yield Problem("record", f"RECORD lists {row[0]} more than once")
        listed[row[0]] = (row[1], row[2])
    for name in sorted(listed.keys() - wheel.files.keys()):
        yield Problem("record", f"RECORD lists {name}, which is not in the wheel")
    for name, content in sorted(wheel.files.items()):
        if name.startswith("/") or "\\" in name or ".." in name.split("/"):
            yield Problem("record", f"{name!r} would be unpacked outside site-packages")
        if name == record:
            continue
        if name not in listed:
            yield Problem("record", f"{name} is not listed in RECORD")
            continue
        expected = "sha256=" + base64.urlsafe_b64encode(sha256(content).digest()).decode().rstrip("=")
        if listed[name] != (expected, str(len(content))):
            yield Problem("record", f"{name} has not the hash and size that RECORD gives")
