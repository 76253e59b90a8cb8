"""The platforms that wheels are made for, those of ``ci/matrix.toml``, and what each lets a library be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tools.matrix.definition import definition

LIBRARIES = {"flash_attn/lib/libflash_attn.so": "elf", "flash_attn/lib/flash_attn.dll": "pe"}
# What every Linux has, and every Windows 10: there the kernel, and the C runtime that is part of the system.
# The CUDA driver is not here: it is found at run time.
_PRESENT = {
    "elf": re.compile(r"lib(c|m|dl|pthread)\.so\.\d+|ld-linux-[a-z0-9-]+\.so\.\d"),
    "pe": re.compile(r"(kernel32|api-ms-win-crt-[a-z0-9-]+)\.dll", re.IGNORECASE),
}
_MANYLINUX = re.compile(r"manylinux(?:_(\d+)_(\d+)|(1|2010|2014))_(\w+)")
_LEGACY_GLIBC = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}


@dataclass(frozen=True)
class Platform:
    """``glibc`` is the oldest C library that the tag promises to run with; None on Windows."""

    library: str
    machine: str
    glibc: tuple[int, int] | None = None


def foreign_libraries(format: str, names: Iterable[str]) -> list[str]:
    """Those that a bare system lacks; ``format`` is elf or pe."""
    return sorted(name for name in names if not _PRESENT[format].fullmatch(name))


def platform_of(tags: Iterable[str]) -> Platform | None:
    """The one platform that all these tags mean, None when a tag is unknown or two of them disagree."""
    found = [_platform(tag) for tag in tags]
    known = [platform for platform in found if platform]
    if not known or len(known) != len(found) or len({platform.machine for platform in known}) != 1:
        return None
    return min(known, key=lambda platform: platform.glibc or (0, 0))


def newest_glibc(platform: Platform) -> tuple[int, int]:
    """What the tag of a Linux wheel may ask for at most."""
    newest = _platform(definition().platforms[f"manylinux_{platform.machine}"].tag)
    assert newest
    assert newest.glibc
    return newest.glibc


def _platform(tag: str) -> Platform | None:
    known = definition().platforms
    if tag.startswith("win_") and tag in known:
        return Platform("flash_attn/lib/flash_attn.dll", known[tag].arch)
    match = _MANYLINUX.fullmatch(tag)
    if not match or f"manylinux_{match[4]}" not in known:
        return None
    major, minor, legacy, machine = match.groups()
    glibc = _LEGACY_GLIBC[legacy] if legacy else (int(major), int(minor))
    return Platform("flash_attn/lib/libflash_attn.so", machine, glibc)
