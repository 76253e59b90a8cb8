"""What a wheel was made from, said beside it in two files, and checked without a network.

``wheel_facts`` reads the wheel, ``source`` the checkout; ``sbom`` and ``provenance`` write, ``check`` judges.
"""

from __future__ import annotations

import re
from pathlib import Path

SBOM_ENDING = ".cdx.json"
PROVENANCE_ENDING = ".provenance.json"

# Properties of the wheel in its bill of materials.
COMMIT = "flash-attn:commit"
KERNEL_SOURCES = "flash-attn:kernel-sources-sha256"


class TrustError(Exception):
    """What is wrong, in one sentence that names the file, what was found and what was expected."""


def is_commit(text: str) -> bool:
    """Whether it is all of a commit's digits, of SHA-1 or SHA-256."""
    return bool(re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text))


def check_commit(text: str) -> None:
    """Raises TrustError for anything else that a person gives, such as the short form."""
    if not is_commit(text):
        raise TrustError(
            f"{text!r} is no commit; give all of its 40 hexadecimal digits, as git rev-parse prints them."
        )


def sbom_of(wheel: Path) -> Path:
    return wheel.parent / f"{wheel.name}{SBOM_ENDING}"


def provenance_of(wheel: Path) -> Path:
    return wheel.parent / f"{wheel.name}{PROVENANCE_ENDING}"
