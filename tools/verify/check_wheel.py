"""Rules for the wheel as a package: tags, size, metadata, and that nothing foreign was vendored."""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from tools.matrix.definition import definition
from tools.verify.expected import Manifest
from tools.verify.platforms import LIBRARIES, Platform
from tools.verify.problems import Problem, Problems
from tools.verify.wheel import Wheel

SIZE_LIMIT = 25_000_000  # bytes
_BINARY = re.compile(r"\.(so(\.[\d.]+)?|dll|pyd|dylib|exe|lib|a)$", re.IGNORECASE)
_VERSION_LITERAL = re.compile(rb'^__version__ = "([^"]+)"$', re.MULTILINE)


def check_tags(wheel: Wheel, platform: Platform | None) -> Problems:
    pythons = sorted({f"{tag.interpreter}-{tag.abi}" for tag in wheel.tags})
    if pythons != ["py3-none"]:
        found = ", ".join(pythons)
        yield Problem("tag", f"the wheel is tagged {found}, but must be py3-none: it binds to no Python")
    if platform is None:
        yield Problem(
            "tag",
            f"the platform tag {'.'.join(wheel.platforms)} is none that we ship, which are those of "
            f"{', '.join(definition().platforms)} (auditwheel makes manylinux tags)",
        )
    header = wheel.headers("WHEEL")
    inside = {str(tag) for tag in header.get_all("Tag", [])}
    outside = {str(tag) for tag in wheel.tags}
    if inside != outside:
        yield Problem(
            "tag",
            f"the file name says {', '.join(sorted(outside))}, "
            f"but WHEEL inside says {', '.join(sorted(inside)) or 'nothing'}",
        )
    if header.get("Root-Is-Purelib", "") != "false":
        yield Problem("tag", "WHEEL does not say Root-Is-Purelib: false, which a shared library needs")


def check_size(wheel: Wheel) -> Problems:
    if wheel.size > SIZE_LIMIT:
        yield Problem(
            "size", f"the wheel has {wheel.size / 1e6:.1f} MB; the limit is {SIZE_LIMIT / 1e6:.0f} MB"
        )


def check_vendored(wheel: Wheel) -> Problems:
    for name in sorted(wheel.files):
        if _BINARY.search(name) and name not in LIBRARIES:
            yield Problem("vendored", f"{name} is a library that does not belong in the wheel")


def check_metadata(wheel: Wheel, manifest: Manifest | None) -> Problems:
    metadata = wheel.headers("METADATA")
    if canonicalize_name(metadata.get("Name", "")) != "flash-attn":
        yield Problem("metadata", f"METADATA names the project {metadata.get('Name')!r}, not flash-attn")
    literal = _VERSION_LITERAL.search(wheel.files.get("flash_attn/__init__.py", b""))
    versions = {
        "METADATA": metadata.get("Version"),
        "flash_attn.__version__": literal and literal[1].decode(),
    }
    if manifest:
        versions["manifest.json"] = manifest.version
    for place, version in versions.items():
        if version != wheel.version:
            yield Problem(
                "metadata", f"the file name says version {wheel.version}, but {place} says {version}"
            )
    python = metadata.get("Requires-Python", "")
    if not _starts_at(python, "3.10", "3.9.99", "4.0"):
        yield Problem("metadata", f"Requires-Python is {python!r}; it must be >=3.10")
    torch = [
        found
        for found in map(_requirement, metadata.get_all("Requires-Dist", []))
        if found and found.name == "torch"
    ]
    if not any(
        need.marker is None and _starts_at(str(need.specifier), "2.10", "2.9.99", "9.0") for need in torch
    ):
        found = ", ".join(map(str, torch)) or "no torch at all"
        yield Problem("metadata", f"the wheel requires {found}; it must require torch>=2.10")


def _starts_at(specifier: str, lowest: str, older: str, newest: str) -> bool:
    try:
        accepted = SpecifierSet(specifier)
    except InvalidSpecifier:
        return False
    return lowest in accepted and newest in accepted and older not in accepted


def _requirement(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None
