"""A shard: the folder that a build for one architecture leaves, checked against itself and the tree."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.merge.container import PTX, SASS, ContainerError, Entry, split
from tools.reading import read_bytes, read_json
from tools.verify.expected import read_kernel_list
from tools.verify.problems import UnreadableError

SCHEMA = 1
# What all shards of a set have in common, as manifest.json calls it.
SHARED = ("version", "source_sha256", "toolkit", "flags", "families")


class MergeError(Exception):
    """Why shards can't be one set: the file, what was found, what to do, in one sentence."""


@dataclass(frozen=True)
class Shard:
    """``fatbins`` maps the name of each file to its entries."""

    folder: Path
    arch: str
    manifest: Mapping[str, Any]
    fatbins: Mapping[str, Sequence[Entry]]

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"


def number_of(arch: str) -> int:
    """90 for 90a."""
    return int(re.sub(r"\D", "", arch))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, with the keys that merging reads; their kinds are checked, their values are not."""
    path = folder / "manifest.json"
    try:
        manifest = read_json(path)
    except OSError as error:
        raise MergeError(
            f"{path} can't be read ({error.strerror}); name a folder of nox -s kernels."
        ) from None
    except ValueError as error:
        raise MergeError(f"{path} is not JSON ({error}); build the shard again.") from None
    try:
        fits = _fits(manifest)
    except (LookupError, TypeError):
        fits = False
    if not fits:
        raise MergeError(f"{path} is no manifest of this project's schema {SCHEMA}; build the shard again.")
    return manifest  # type: ignore[no-any-return]


def _fits(manifest: Any) -> bool:
    architectures, fatbins = manifest["architectures"], manifest["fatbins"]
    return (
        manifest["schema"] == SCHEMA
        and all(key in manifest for key in SHARED)
        and all(isinstance(architectures[kind], list) for kind in ("sass", "ptx"))
        and all(
            re.fullmatch(r"\d{2,3}[af]?", arch) for kind in ("sass", "ptx") for arch in architectures[kind]
        )
        and isinstance(fatbins, list)
        and all(re.fullmatch(r"\w+\.fatbin", fatbin["name"]) for fatbin in fatbins)
        and all(isinstance(fatbin["sha256"], str) for fatbin in fatbins)
        and all(isinstance(kernel["name"], str) for fatbin in fatbins for kernel in fatbin["kernels"])
    )


def read_fatbin(path: Path, digest: str, arch: str) -> list[Entry]:
    """SASS for the architecture and its PTX, in the file's order; the digest is the manifest's."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise MergeError(f"{path} can't be read ({error.strerror}); copy the shard again.") from None
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise MergeError(f"{path} has SHA-256 {found}, but its manifest says {digest}; copy the shard again.")
    try:
        entries = split(data)
    except ContainerError as error:
        raise MergeError(f"{path} {error}; build the shard again.") from None
    number = number_of(arch)
    if sorted((entry.kind, entry.arch) for entry in entries) != [(PTX, number), (SASS, number)]:
        held = ", ".join(f"{'PTX' if entry.kind == PTX else 'SASS'} {entry.arch}" for entry in entries)
        raise MergeError(
            f"{path} holds {held or 'nothing'}, but a shard for {arch} holds its SASS and its PTX once; "
            "build the shard again."
        )
    return entries


def read_shard(folder: Path, source_sha256: str, kernel_list: Path) -> Shard:
    """Checked against the kernels and the digest of the source tree; MergeError names the file."""
    manifest = read_manifest(folder)
    path = folder / "manifest.json"
    if manifest["source_sha256"] != source_sha256:
        raise MergeError(
            f"{path} has source_sha256 {manifest['source_sha256']}, but this source tree has "
            f"{source_sha256}; build the shard from this commit."
        )
    archs = manifest["architectures"]["sass"]
    if len(archs) != 1:
        raise MergeError(f"{path} holds {', '.join(archs) or 'nothing'}, but a shard has one architecture.")
    names = [kernel["name"] for fatbin in manifest["fatbins"] for kernel in fatbin["kernels"]]
    try:
        listed = set(read_kernel_list(kernel_list).kernels)
    except UnreadableError as error:
        raise MergeError(str(error)) from None
    if wrong := sorted(listed ^ set(names)):
        what = "lacks" if wrong[0] in listed else "has an unknown kernel,"
        raise MergeError(f"{path} {what} {wrong[0]}; build the shard with all kernels of kernels.json.")
    files = [fatbin["name"] for fatbin in manifest["fatbins"]]
    if twice := [name for name in [*names, *files] if (names + files).count(name) > 1]:
        raise MergeError(f"{path} lists {twice[0]} twice; build the shard again.")
    if stray := sorted({file.name for file in folder.glob("*.fatbin")} - set(files)):
        raise MergeError(f"{folder / stray[0]} is not in its manifest; build the shard again.")
    fatbins = {
        fatbin["name"]: read_fatbin(folder / fatbin["name"], fatbin["sha256"], archs[0])
        for fatbin in manifest["fatbins"]
    }
    return Shard(folder, archs[0], manifest, fatbins)
