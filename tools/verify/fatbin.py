"""Reads a fatbin once: which kernels it holds, for which architectures, and what each needs."""

from __future__ import annotations

import re
import tempfile
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from tools.verify.cuobjdump import Cuobjdump
from tools.verify.problems import UnreadableError

_SECTION = re.compile(r"^Fatbin (elf|ptx) code:\n=+\narch = sm_(\w+)\n", re.MULTILINE)
_RESOURCES = re.compile(r"^ Function (\S+):\n  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+) ", re.MULTILINE)
# ptxas signs each cubin. The version is nvcc's own: seen with 13.0.88, 13.2.86, 13.4.92 and 13.5.37.
_SIGNATURE = re.compile(rb"\0Cuda compilation tools, release [\d.]+, V([\d.]+)\0")
_ENTRY = re.compile(r"^(?:\.visible )?\.entry (\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class KernelCode:
    """SASS of one kernel for one architecture. Sizes in bytes; local memory is per thread."""

    name: str
    registers: int
    local_bytes: int  # the stack frame; our kernels keep nothing there, so it is all spill
    shared_bytes: int  # static
    opcodes: frozenset[int]  # low 12 bits of each instruction; `sass` knows their names


@dataclass(frozen=True)
class Fatbin:
    """``sass`` maps an architecture ("90") to kernels by name, ``ptx`` one to entry names.

    ``compilers`` maps an architecture of ``sass`` to the toolkit's version that it is signed with, or "".
    """

    sha256: str
    size: int
    sass: Mapping[str, Mapping[str, KernelCode]]
    ptx: Mapping[str, frozenset[str]]
    compilers: Mapping[str, str]


def parse_resources(text: str) -> dict[str, dict[str, tuple[int, int, int]]]:
    """Architecture -> kernel -> (registers, local bytes, static shared bytes), of ``-res-usage``."""
    return {
        arch: {
            name: (int(registers), int(stack) + int(local), int(shared))
            for name, registers, stack, shared, local in _RESOURCES.findall(body)
        }
        for kind, arch, body in _sections(text)
        if kind == "elf"
    }


def parse_ptx(text: str) -> dict[str, frozenset[str]]:
    """Architecture -> names of entry points, from ``cuobjdump -ptx``."""
    return {arch: frozenset(_ENTRY.findall(body)) for kind, arch, body in _sections(text) if kind == "ptx"}


def _sections(text: str) -> list[tuple[str, str, str]]:
    _, *parts = _SECTION.split(text)
    return list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))


def read_fatbin(path: Path, tool: Cuobjdump) -> Fatbin:
    """Raises UnreadableError when the file is damaged."""
    text = tool.run("-res-usage", "-ptx", path)
    cubins = _read_cubins(path, tool)
    sass = {
        arch: {
            name: KernelCode(name, *numbers, cubins.opcodes.get(arch, {}).get(name, frozenset()))
            for name, numbers in kernels.items()
        }
        for arch, kernels in parse_resources(text).items()
    }
    data = path.read_bytes()
    return Fatbin(sha256(data).hexdigest(), len(data), sass, parse_ptx(text), cubins.compilers)


@dataclass(frozen=True)
class _Cubins:
    """By architecture: opcodes of each kernel, and the version of the compiler."""

    opcodes: Mapping[str, Mapping[str, frozenset[int]]]
    compilers: Mapping[str, str]


def _read_cubins(path: Path, tool: Cuobjdump) -> _Cubins:
    """What cuobjdump doesn't print, read from the ELF files inside."""
    opcodes: dict[str, dict[str, frozenset[int]]] = {}
    compilers: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        tool.run("-xelf", "all", path.resolve(), cwd=Path(scratch))
        for cubin in sorted(Path(scratch).iterdir()):
            arch = cubin.stem.rpartition(".sm_")[2]
            try:
                with cubin.open("rb") as stream:
                    sections = {section.name: section.data() for section in ELFFile(stream).iter_sections()}
            except (ELFError, ValueError, UnicodeDecodeError) as error:
                raise UnreadableError(f"its code for sm_{arch} is damaged ({error})") from None
            opcodes[arch] = {
                name.removeprefix(".text."): _opcodes(data)
                for name, data in sections.items()
                if name.startswith(".text.")
            }
            signed = _SIGNATURE.search(sections.get(".note.nv.tkinfo", b""))
            compilers[arch] = signed[1].decode() if signed else ""
    return _Cubins(opcodes, compilers)


def _opcodes(code: bytes) -> frozenset[int]:
    """An instruction is 16 bytes since sm_70; the low 12 bits of its first 8 say what it does."""
    words = array("Q", code[: len(code) // 16 * 16])
    return frozenset(word & 0xFFF for word in words[::2])
