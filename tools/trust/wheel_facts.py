"""What a wheel says of itself: the facts that the bill of materials and the provenance are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tools.reading import parse_json
from tools.trust import TrustError
from tools.verify.platforms import LIBRARIES
from tools.verify.problems import UnreadableError
from tools.verify.wheel import Wheel, check_record, read_wheel

KERNELS = "flash_attn/kernels/"
MANIFEST = f"{KERNELS}manifest.json"


@dataclass(frozen=True)
class WheelFacts:
    """``parts`` are the files that were compiled, with their SHA-256; ``sources`` the Python files."""

    path: Path
    sha256: str
    version: str
    tags: tuple[str, ...]
    source_sha256: str
    toolkit: str
    flags: tuple[str, ...]
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    requires: tuple[str, ...]
    parts: Mapping[str, str]
    sources: Mapping[str, bytes]

    @property
    def name(self) -> str:
        return self.path.name


def read_facts(path: Path) -> WheelFacts:
    """Raises TrustError for a file that is no whole wheel, or whose manifest can't be understood."""
    try:
        wheel = read_wheel(path)
    except UnreadableError as error:
        raise TrustError(f"{path}: {error}; build or copy it again.") from None
    if problem := next(check_record(wheel), None):
        raise TrustError(f"{path}: {problem.message}; build it again.")
    return _facts(wheel, _manifest(wheel))


def _manifest(wheel: Wheel) -> dict[str, Any]:
    if MANIFEST not in wheel.files:
        raise TrustError(f"{wheel.path}: there is no {MANIFEST} in it; only a wheel of this project has one.")
    try:
        manifest = parse_json(wheel.files[MANIFEST])
    except ValueError as error:
        raise TrustError(f"{wheel.path}: {MANIFEST} is not JSON ({error}); build it again.") from None
    if not isinstance(manifest, dict):
        raise TrustError(f"{wheel.path}: {MANIFEST} is no JSON object; build it again.")
    return manifest


def _facts(wheel: Wheel, manifest: dict[str, Any]) -> WheelFacts:
    compiled = {name for name in wheel.files if name in LIBRARIES or name.startswith(KERNELS)}
    try:
        architectures = manifest["architectures"]
        return WheelFacts(
            path=wheel.path,
            sha256=wheel.sha256,
            version=wheel.version,
            tags=tuple(sorted(map(str, wheel.tags))),
            source_sha256=str(manifest["source_sha256"]),
            toolkit=str(manifest["toolkit"]),
            flags=tuple(map(str, manifest["flags"])),
            sass=tuple(map(str, architectures["sass"])),
            ptx=tuple(map(str, architectures["ptx"])),
            requires=tuple(wheel.headers("METADATA").get_all("Requires-Dist", [])),
            parts={name: sha256(wheel.files[name]).hexdigest() for name in sorted(compiled)},
            sources={name: data for name, data in wheel.files.items() if name.endswith(".py")},
        )
    except (LookupError, TypeError) as error:
        raise TrustError(
            f"{wheel.path}: {MANIFEST} lacks something ({type(error).__name__}: {error}); build it again."
        ) from None
