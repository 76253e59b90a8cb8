"""Reads the launcher of a Linux wheel."""

from __future__ import annotations

import io
import re

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from tools.verify.library import Library
from tools.verify.problems import UnreadableError

# pyelftools lets damaged tables surface as whatever reading them runs into.
_DAMAGE = (ArithmeticError, AssertionError, AttributeError, ELFError, LookupError, TypeError, ValueError)
# Where a tag's name for a machine isn't ELF's own.
_AS_TAGS_CALL_IT = {
    "EM_LOONGARCH": "loongarch64", "EM_PPC64": "ppc64le", "EM_RISCV": "riscv64", "EM_S390": "s390x"
}  # fmt: skip
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


def read_elf(data: bytes) -> Library:
    """Raises UnreadableError when this is no whole ELF shared library."""
    try:
        return _read(ELFFile(io.BytesIO(data)))
    except _DAMAGE as error:
        raise UnreadableError(f"it is no whole ELF library ({error})") from None


def _read(elf: ELFFile) -> Library:
    if elf["e_type"] != "ET_DYN":
        raise UnreadableError(f"it is ELF of type {elf['e_type']}, not a shared library")
    imports: list[str] = []
    hardening: list[str] = []
    glibc: tuple[int, ...] | None = None
    exports: set[str] = set()
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    imports.append(tag.needed)  # type: ignore[attr-defined]
                elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    hardening.append("it carries a search path for libraries (RPATH)")
        elif isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                for version in versions:
                    match = _GLIBC.fullmatch(version.name)
                    if match:
                        glibc = max(glibc or (), tuple(map(int, match[1].split("."))))
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            exports |= {
                symbol.name
                for symbol in section.iter_symbols()
                if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
            }
    for segment in elf.iter_segments():
        if segment["p_type"] == "PT_GNU_STACK" and segment["p_flags"] & 1:
            hardening.append("its stack is executable")
    code = str(elf["e_machine"])
    machine = _AS_TAGS_CALL_IT.get(code, code.removeprefix("EM_").lower())
    return Library("elf", machine, tuple(sorted(imports)), frozenset(exports), glibc, tuple(hardening))
