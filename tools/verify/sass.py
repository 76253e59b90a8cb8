"""Proves that instructions occur in kernels.

Disassembling hundreds of kernels takes minutes, so each architecture is disassembled only until cuobjdump has
put a name to an opcode; a kernel whose machine words hold that opcode has the instruction. A kernel that
seems to lack it is disassembled itself before it is accused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tools.verify.cuobjdump import Cuobjdump
from tools.verify.fatbin import KernelCode

_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?PT?\d*\s+)?([A-Z][A-Z0-9_]*)[^\n]*/\* 0x([0-9a-f]{16}) \*/$",
    re.MULTILINE,
)


def parse_sass(text: str) -> dict[str, set[int]]:
    """Instruction name without modifiers ("HMMA") -> its opcodes, from ``cuobjdump -sass``."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for name, word in _INSTRUCTION.findall(text):
        found[name].add(int(word, 16) & 0xFFF)
    return dict(found)


class InstructionFinder:
    """Remembers, for each architecture, what cuobjdump called each opcode."""

    def __init__(self, tool: Cuobjdump) -> None:
        self._tool = tool
        self._names: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))

    def contains(self, fatbin: Path, arch: str, kernel: KernelCode, instruction: str) -> bool:
        """Whether this kernel's SASS for ``arch`` holds ``instruction`` in any form."""
        names = self._names[arch]
        if any(names.get(opcode) == {instruction} for opcode in kernel.opcodes):
            return True
        text = self._tool.run("-sass", "-arch", f"sm_{arch}", "-fun", kernel.name, fatbin)
        listing = parse_sass(text)
        for name, opcodes in listing.items():
            for opcode in opcodes:
                names[opcode].add(name)
        return instruction in listing
