"""What a wheel was made from, said beside it in two files, and checked without a network.

``wheel_facts`` reads the wheel, ``source`` the checkout; ``sbom`` and ``provenance`` write, ``check`` judges.
"""

from __future__ import annotations

from pathlib import Path

SBOM_ENDING = ".cdx.json"
PROVENANCE_ENDING = ".provenance.json"

# Properties of the wheel in its bill of materials.
COMMIT = "flash-attn:commit"
KERNEL_SOURCES = "flash-attn:kernel-sources-sha256"


class TrustError(Exception):
    """What is wrong, in one sentence that names the file, what was found and what was expected."""


def sbom_of(wheel: Path) -> Path:
    return wheel.parent / f"{wheel.name}{SBOM_ENDING}"


def provenance_of(wheel: Path) -> Path:
    return wheel.parent / f"{wheel.name}{PROVENANCE_ENDING}"
