"""Makes one set of fatbins of shards: the same bytes as a build for all their architectures at once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.merge.container import SASS, Entry, join
from tools.merge.shard import SHARED, MergeError, Shard, number_of, read_shard
from tools.output import check_output, is_of_kernels

ROOT = Path(__file__).parents[2]

sys.path.insert(0, str(ROOT / "cmake"))
from manifest import KERNELS_JSON, save, source_digest  # noqa: E402


def check_together(shards: Sequence[Shard], wanted: Sequence[str]) -> None:
    """One shard for each wanted architecture, no other, all from one source, toolkit and set of flags."""
    first = shards[0]
    seen: dict[int, Shard] = {}  # nvcc mixes the entries of 90 and 90a in an order of its own
    for shard in shards:
        for key in SHARED:
            if shard.manifest[key] != first.manifest[key]:
                raise MergeError(
                    f"{shard.manifest_path} has {key} {shard.manifest[key]}, but {first.manifest_path} has "
                    f"{first.manifest[key]}; build both with the same."
                )
        number = number_of(shard.arch)
        if number in seen:
            raise MergeError(
                f"{shard.manifest_path} and {seen[number].manifest_path} are both for architecture "
                f"{number}; name one."
            )
        seen[number] = shard
        if shard.arch not in wanted:
            raise MergeError(
                f"{shard.manifest_path} is for architecture {shard.arch}, but wanted are "
                f"{', '.join(wanted)}; leave it out, or name it in --archs."
            )
    if missing := [arch for arch in wanted if arch not in {shard.arch for shard in shards}]:
        raise MergeError(
            f"No shard is for architecture {missing[0]}; build it with nox -s kernels -- --arch "
            f"{missing[0]}, or name fewer in --archs."
        )


def in_order(shards: Sequence[Shard]) -> list[Shard]:
    """As the build sorts architectures: 80, 90, 90a, 100."""
    return sorted(shards, key=lambda shard: (number_of(shard.arch), shard.arch))


def entries_of(name: str, shards: Sequence[Shard]) -> list[Entry]:
    """SASS of every shard, and the PTX of the newest where nvcc has it in that shard."""
    *older, newest = shards
    sass = [entry for shard in older for entry in shard.fatbins[name] if entry.kind == SASS]
    return [*sass, *newest.fatbins[name]]


def merge(
    folders: Sequence[Path], wanted: Sequence[str], output: Path, source: Path = ROOT
) -> dict[str, Any]:
    """Writes the merged set and gives its manifest.

    MergeError or OutputError, and nothing written, when a check fails.
    """
    check_output(output, "set of kernels", is_of_kernels)
    if output.exists() and any(folder.exists() and output.samefile(folder) for folder in folders):
        raise MergeError(f"{output} is one of the shards; name another output folder.")
    digest = source_digest(source)
    shards = in_order([read_shard(folder, digest, source / KERNELS_JSON) for folder in folders])
    check_together(shards, wanted)
    contents = {name: join(entries_of(name, shards)) for name in shards[-1].fatbins}
    fatbins = [
        {
            **fatbin,
            "sha256": hashlib.sha256(contents[fatbin["name"]]).hexdigest(),
            "size": len(contents[fatbin["name"]]),
        }
        for fatbin in shards[-1].manifest["fatbins"]
    ]
    manifest = {
        **shards[-1].manifest,
        "architectures": {
            "sass": [shard.arch for shard in shards],
            "ptx": shards[-1].manifest["architectures"]["ptx"],
        },
        "fatbins": fatbins,
    }
    for shard in shards:
        same = [{**fatbin, "sha256": "", "size": 0} for fatbin in shard.manifest["fatbins"]]
        if same != [{**fatbin, "sha256": "", "size": 0} for fatbin in fatbins]:
            raise MergeError(
                f"{shard.manifest_path} describes its kernels otherwise than {shards[-1].manifest_path}; "
                "build both from this commit."
            )
    save(output, manifest, contents)
    return manifest
