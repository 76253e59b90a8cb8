"""Rules for the launcher: what it may import, must export and must run on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tools.verify.build_paths import build_paths
from tools.verify.elf import read_elf
from tools.verify.expected import HEADER
from tools.verify.library import Library
from tools.verify.pe import read_pe
from tools.verify.platforms import LIBRARIES, Platform, foreign_libraries, newest_glibc
from tools.verify.problems import Problem, Problems, UnreadableError
from tools.verify.wheel import Wheel

_DECLARED = re.compile(r"^FLASH_ATTN_API\b[^(]*?\b(flash_attn_\w+)\(", re.MULTILINE)


def declared_symbols(header: Path = HEADER) -> frozenset[str]:
    """The functions that the launcher's header declares; empty outside a checkout."""
    return (
        frozenset(_DECLARED.findall(header.read_text(encoding="utf-8"))) if header.is_file() else frozenset()
    )


def read_library(wheel: Wheel) -> tuple[str, Library] | None:
    """The launcher's path and what it shows of itself, None when there is none. Raises UnreadableError."""
    for name, kind in LIBRARIES.items():
        if name in wheel.files:
            try:
                data = wheel.files[name]
                library = (read_elf if kind == "elf" else read_pe)(data)
                return name, replace(library, build_paths=tuple(build_paths(data)))
            except UnreadableError as error:
                raise UnreadableError(f"{name} can't be read: {error}") from None
    return None


def check_library(
    name: str, library: Library, platform: Platform | None, declared: frozenset[str]
) -> Problems:
    """Problems of one launcher; ``declared`` empty means that any name of ours may be exported."""
    for imported in foreign_libraries(library.format, library.imports):
        yield Problem("imports", f"{name} needs {imported}, which users may not have; link without it")
    for symbol in sorted(library.exports):
        if not symbol.startswith("flash_attn_") or (declared and symbol not in declared):
            yield Problem("exports", f"{name} exports {symbol}, which flash_attn.h does not declare")
    for symbol in sorted(declared - library.exports):
        yield Problem("exports", f"{name} does not export {symbol}, which flash_attn.h declares")
    if not library.exports:
        yield Problem("exports", f"{name} exports nothing")
    for text in library.hardening:
        yield Problem("hardening", f"{name}: {text}")
    if library.build_paths:
        paths = ", ".join(library.build_paths)
        yield Problem(
            "paths",
            f"{name} holds {paths}, of the machine that built it; link without debug information (-s)",
        )
    if platform:
        yield from _check_platform(name, library, platform)


def _check_platform(name: str, library: Library, platform: Platform) -> Problems:
    if name != platform.library:
        yield Problem("platform", f"the platform tag wants {platform.library}, but there is {name}")
    elif library.machine != platform.machine:
        yield Problem("platform", f"{name} is for {library.machine}, but the tag says {platform.machine}")
    if platform.glibc is None:
        return
    tagged = ".".join(map(str, platform.glibc))
    if library.glibc and library.glibc > platform.glibc:
        needed = ".".join(map(str, library.glibc))
        yield Problem("platform", f"{name} needs glibc {needed}, but the tag promises glibc {tagged}")
    if platform.glibc > (newest := newest_glibc(platform)):
        allowed = ".".join(map(str, newest))
        yield Problem("platform", f"the tag asks for glibc {tagged}; wheels must run on {allowed}")
