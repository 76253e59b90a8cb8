"""What a shared library shows of itself, whichever format it has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """``glibc`` is the newest it asks for, ``hardening`` what is wrong with flags and timestamp.

    ``build_paths`` are those of the machine that built it.
    """

    format: str
    machine: str
    imports: tuple[str, ...]
    exports: frozenset[str]
    glibc: tuple[int, ...] | None = None
    hardening: tuple[str, ...] = ()
    build_paths: tuple[str, ...] = ()
