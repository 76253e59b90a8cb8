"""Rules for the kernels: all that are named are in the fatbins, undamaged, without spills, as fast code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tools.verify.expected import Gates, Kernel, KernelList, Manifest, gates_for
from tools.verify.fatbin import Fatbin
from tools.verify.problems import Problem, Problems, UnreadableError
from tools.verify.sass import InstructionFinder

FOLDER = "flash_attn/kernels/"


@dataclass(frozen=True)
class Wanted:
    """What is asked of the fatbins: these kernels, SASS for these architectures, PTX for the newest."""

    kernels: Mapping[str, Kernel]
    gates: Gates
    sass: tuple[str, ...]
    ptx: str | None


def newest(architectures: Sequence[str]) -> str | None:
    return max(architectures, key=lambda arch: (int(re.sub(r"\D", "", arch) or 0), arch), default=None)


def wanted(manifest: Manifest, listed: KernelList | None, archs: Sequence[str]) -> Wanted:
    """By the source's list where there is one, else by the manifest; ``archs`` empty means the manifest's."""
    source = listed or manifest
    ptx = newest((*manifest.sass, *archs))
    return Wanted(source.kernels, source.gates, tuple(archs) or manifest.sass, ptx)


def check_manifest(manifest: Manifest, listed: KernelList | None, archs: Sequence[str]) -> Problems:
    for arch in archs:
        if arch not in manifest.sass:
            yield Problem(
                "architectures", f"the manifest has {', '.join(manifest.sass)} but not architecture {arch}"
            )
    ptx = newest(manifest.sass)
    if manifest.ptx != (ptx,):
        found = ", ".join(manifest.ptx) or "none"
        yield Problem("architectures", f"the manifest has PTX for {found}; the newest architecture is {ptx}")
    if not listed:
        return
    for name in sorted(listed.kernels.keys() - manifest.kernels.keys()):
        yield Problem("manifest", f"kernel {name} of kernels.json is not in the manifest")
    for name in sorted(manifest.kernels.keys() - listed.kernels.keys()):
        yield Problem("manifest", f"kernel {name} of the manifest is not in kernels.json")
    for name in sorted(listed.kernels.keys() & manifest.kernels.keys()):
        if listed.kernels[name] != manifest.kernels[name]:
            yield Problem("manifest", f"kernel {name} differs between the manifest and kernels.json")
    if {k: v for k, v in listed.gates.items() if v} != {k: v for k, v in manifest.gates.items() if v}:
        yield Problem("manifest", "the manifest's SASS gates are not those of kernels.json")


def check_digests(files: Mapping[str, bytes], manifest: Manifest) -> Problems:
    present = {name.removeprefix(FOLDER) for name in files if name.startswith(FOLDER)} - {"manifest.json"}
    for name in sorted(present - manifest.digests.keys()):
        yield Problem("fatbins", f"{FOLDER}{name} is not in the manifest")
    for name, (digest, size) in sorted(manifest.digests.items()):
        data = files.get(FOLDER + name)
        if data is None:
            yield Problem("fatbins", f"{FOLDER}{name} of the manifest is not in the wheel")
        elif sha256(data).hexdigest() != digest or len(data) != size:
            yield Problem("fatbins", f"{FOLDER}{name} has not the SHA-256 and size that the manifest gives")


def check_code(want: Wanted, manifest: Manifest, fatbins: Mapping[str, Fatbin]) -> Problems:
    """Presence and spills, in those fatbins that could be read."""
    for name, kernel in sorted(want.kernels.items()):
        fatbin = fatbins.get(kernel.fatbin)
        if fatbin is None:
            continue
        for arch in want.sass:
            code = fatbin.sass.get(arch, {}).get(name)
            if code is None:
                yield Problem("kernels", f"kernel {name} has no SASS for sm_{arch} in {kernel.fatbin}")
            elif code.local_bytes > kernel.spill_bytes:
                yield Problem(
                    "spills",
                    f"kernel {name} spills {code.local_bytes} bytes a thread on sm_{arch} "
                    f"({code.registers} registers); its tile accepts {kernel.spill_bytes}",
                )
        if want.ptx and name not in fatbin.ptx.get(want.ptx, ()):
            yield Problem("kernels", f"kernel {name} has no PTX for sm_{want.ptx} in {kernel.fatbin}")
    named = {(kernel.fatbin, kernel.name) for kernel in manifest.kernels.values()}
    for file, fatbin in sorted(fatbins.items()):
        for arch in sorted(fatbin.sass.keys() - set(manifest.sass)):
            yield Problem("architectures", f"{file} holds SASS for sm_{arch}, which is not in the manifest")
        held = set().union(*fatbin.sass.values())
        for name in sorted(held - {kernel for place, kernel in named if place == file}):
            yield Problem("kernels", f"{file} holds kernel {name}, which the manifest does not name there")


def check_toolkit(manifest: Manifest, fatbins: Mapping[str, Fatbin]) -> Problems:
    """The manifest's word for the toolkit against what the compiler wrote into its machine code."""
    for file, fatbin in sorted(fatbins.items()):
        for arch, version in fatbin.compilers.items():
            if version != manifest.toolkit:
                yield Problem(
                    "toolkit",
                    f"{file} was compiled for sm_{arch} by CUDA {version or 'of no version'}, "
                    f"but the manifest says {manifest.toolkit}",
                )


def check_gates(
    want: Wanted, fatbins: Mapping[str, tuple[Path, Fatbin]], finder: InstructionFinder
) -> Problems:
    for name, kernel in sorted(want.kernels.items()):
        if kernel.fatbin not in fatbins:
            continue
        path, fatbin = fatbins[kernel.fatbin]
        for arch in want.sass:
            code = fatbin.sass.get(arch, {}).get(name)
            for instruction in gates_for(want.gates, kernel, arch) if code else ():
                try:
                    found = code is not None and finder.contains(path, arch, code, instruction)
                except UnreadableError as error:
                    yield Problem("sass", f"kernel {name} can't be disassembled for sm_{arch}: {error}")
                    break
                if not found:
                    yield Problem("sass", f"kernel {name} has no {instruction} in its SASS for sm_{arch}")
