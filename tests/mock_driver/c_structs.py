"""Reads the structs of the project's C headers, so that tests state no layout a second time."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
HEADERS = (
    REPOSITORY / "csrc/flash_attn/src/flash.h",
    REPOSITORY / "csrc/flash_attn/launch/flash_attn.h",
    REPOSITORY / "tests/mock_driver/mock_cuda.h",
)

_SCALARS: dict[str, type] = {
    "int32_t": ctypes.c_int32,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "char": ctypes.c_char,
    "const char *": ctypes.c_char_p,
}
_STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\} \1;", re.DOTALL)
_CONSTANT = re.compile(r"\b(k\w+) = (\d+)")
_FIELD = re.compile(r"(?P<type>const char \*|\w+)\s*(?P<names>[\w\s,\[\]]+)")
_NAME = re.compile(r"(?P<name>\w+)(?:\[(?P<length>\w+)\])?")


def _fields(body: str, known: dict[str, type], constants: dict[str, int]) -> list[tuple[str, type]]:
    fields: list[tuple[str, type]] = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        match = _FIELD.fullmatch(declaration)
        if match is None or match["type"] not in known:
            raise ValueError(f"can't read the declaration {declaration!r}")
        for name in _NAME.finditer(match["names"]):
            kind = known[match["type"]]
            if name["length"] is not None:
                length = constants[name["length"]] if name["length"] in constants else int(name["length"])
                kind = kind * length
            fields.append((name["name"], kind))
    return fields


@cache
def structs() -> dict[str, type[ctypes.Structure]]:
    """Every struct of the headers by its C name."""
    known = dict(_SCALARS)
    found: dict[str, type[ctypes.Structure]] = {}
    for header in HEADERS:
        text = re.sub(r"//[^\n]*", "", header.read_text(encoding="utf-8"))
        constants = {name: int(value) for name, value in _CONSTANT.findall(text)}
        for name, body in _STRUCT.findall(text):
            found[name] = type(name, (ctypes.Structure,), {"_fields_": _fields(body, known, constants)})
            known[name] = found[name]
    return found
