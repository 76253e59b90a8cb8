"""The outer form of a fatbin: a header and entries behind each other, each for one architecture.

An entry is compressed by itself, so entries of several fatbins behind one header are what nvcc writes when it
compiles for all their architectures at once; tests/wheel/from_source/test_shards.py holds that byte for byte.
The layout was read off what nvcc 13.0 to 13.4 write; anything else is refused, never guessed at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

PTX, SASS = 1, 2

_MAGIC = 0xBA55ED50
_FILE = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
_ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, bytes of its header, bytes behind that, architecture
_FILE_VERSION, _ENTRY_VERSION = 1, 0x101


class ContainerError(Exception):
    """Why these bytes are no fatbin that can be taken apart, as the end of a sentence."""


@dataclass(frozen=True)
class Entry:
    """``kind`` is PTX or SASS, ``arch`` the architecture (90 for 90a too), ``data`` all of it."""

    kind: int
    arch: int
    data: bytes


def split(data: bytes) -> list[Entry]:
    """The entries, in their order; ContainerError when a length or a number is not as expected."""
    if len(data) < _FILE.size:
        raise ContainerError(f"holds {len(data)} bytes, which is less than a header")
    magic, version, header, size = _FILE.unpack_from(data)
    if (magic, version, header) != (_MAGIC, _FILE_VERSION, _FILE.size):
        raise ContainerError("does not begin as a fatbin does")
    if header + size != len(data):
        raise ContainerError(f"holds {len(data)} bytes, but its header says {header + size}")
    found = []
    at = header
    while at < len(data):
        if len(data) - at < _ENTRY.size:
            raise ContainerError(f"ends within an entry at byte {at}")
        kind, version, header, size, arch = _ENTRY.unpack_from(data, at)
        end = at + header + size
        if kind not in (PTX, SASS) or version != _ENTRY_VERSION or header < _ENTRY.size or end > len(data):
            raise ContainerError(f"has an entry at byte {at} that is neither PTX nor SASS as nvcc writes it")
        found.append(Entry(kind, arch, data[at:end]))
        at = end
    return found


def join(entries: Iterable[Entry]) -> bytes:
    """One fatbin of these entries, in this order."""
    body = b"".join(entry.data for entry in entries)
    return _FILE.pack(_MAGIC, _FILE_VERSION, _FILE.size, len(body)) + body
