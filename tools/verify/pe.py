"""Reads the launcher of a Windows wheel."""

from __future__ import annotations

import pefile

from tools.verify.library import Library
from tools.verify.problems import UnreadableError

# pefile lets damaged tables surface as whatever reading them runs into.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, pefile.PEFormatError, TypeError, ValueError)
_FLAGS = {
    "IMAGE_DLLCHARACTERISTICS_DYNAMIC_BASE": "address space layout randomisation (/DYNAMICBASE)",
    "IMAGE_DLLCHARACTERISTICS_HIGH_ENTROPY_VA": "64-bit address space layout randomisation (/HIGHENTROPYVA)",
    "IMAGE_DLLCHARACTERISTICS_NX_COMPAT": "data execution prevention (/NXCOMPAT)",
}
_DIRECTORIES = (
    "IMAGE_DIRECTORY_ENTRY_IMPORT",
    "IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT",
    "IMAGE_DIRECTORY_ENTRY_EXPORT",
)
_DEBUG = "IMAGE_DIRECTORY_ENTRY_DEBUG"
_REPRODUCIBLE = "IMAGE_DEBUG_TYPE_REPRO"


def read_pe(data: bytes) -> Library:
    """Raises UnreadableError when this is no whole PE library."""
    try:
        with pefile.PE(data=data, fast_load=True) as pe:
            pe.parse_data_directories([pefile.DIRECTORY_ENTRY[name] for name in (*_DIRECTORIES, _DEBUG)])
            return _read(pe)
    except _DAMAGE as error:
        raise UnreadableError(f"it is no whole PE library ({error})") from None


def _read(pe: pefile.PE) -> Library:
    if not pe.is_dll():
        raise UnreadableError("it is a PE file, but not a DLL")
    if any(section.PointerToRawData + section.SizeOfRawData > len(pe.__data__) for section in pe.sections):
        raise UnreadableError("it is cut short")
    entries = [
        *getattr(pe, "DIRECTORY_ENTRY_IMPORT", []),
        *getattr(pe, "DIRECTORY_ENTRY_DELAY_IMPORT", []),
    ]
    symbols = pe.DIRECTORY_ENTRY_EXPORT.symbols if hasattr(pe, "DIRECTORY_ENTRY_EXPORT") else []
    machine = pefile.MACHINE_TYPE.get(pe.FILE_HEADER.Machine, hex(pe.FILE_HEADER.Machine))
    return Library(
        "pe",
        machine.removeprefix("IMAGE_FILE_MACHINE_"),
        tuple(sorted(entry.dll.decode("ascii", "replace").lower() for entry in entries)),
        frozenset(
            symbol.name.decode("ascii", "replace") if symbol.name else f"#{symbol.ordinal}"
            for symbol in symbols
        ),
        hardening=tuple(_hardening(pe)),
    )


def _hardening(pe: pefile.PE) -> list[str]:
    found = [f"it lacks {text}" for flag, text in _FLAGS.items() if not getattr(pe.OPTIONAL_HEADER, flag)]
    debug = getattr(pe, "DIRECTORY_ENTRY_DEBUG", [])
    for entry in debug:
        path = getattr(entry.entry, "PdbFileName", None) if entry.entry else None
        if path:
            name = path.rstrip(b"\0").decode("utf-8", "replace")
            found.append(f"it names the debug file {name} of the machine that built it")
    types = {pefile.DEBUG_TYPE.get(entry.struct.Type) for entry in debug}
    if pe.FILE_HEADER.TimeDateStamp and _REPRODUCIBLE not in types:
        found.append("its timestamp is that of the build, so no second build is the same (link with /Brepro)")
    return found
