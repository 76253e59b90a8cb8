"""Writes and checks the manifest of a folder of fatbins: what is there and what its bytes must be."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

SCHEMA = 1
KERNELS_JSON = Path("csrc/flash_attn/kernels.json")
DEVICE_CODE = Path("csrc/flash_attn/src")


class ManifestError(Exception):
    """What is wrong with a folder of fatbins, in one sentence."""


def source_digest(source: Path) -> str:
    """SHA-256 over the kernel list and the device code: path and bytes of each file, ordered by path."""
    digest = hashlib.sha256()
    code = sorted(
        path.relative_to(source).as_posix() for path in (source / DEVICE_CODE).rglob("*") if path.is_file()
    )
    for name in (KERNELS_JSON.as_posix(), *code):
        content = (source / name).read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def fatbin_entries(kernels: list[dict[str, Any]], contents: dict[str, bytes]) -> list[dict[str, Any]]:
    """The manifest's list of fatbins, in the order of the kernel list."""
    entries: dict[str, dict[str, Any]] = {}
    for kernel in kernels:
        name = kernel["fatbin"]
        if name not in entries:
            content = contents[name]
            digest = hashlib.sha256(content).hexdigest()
            entries[name] = {"name": name, "sha256": digest, "size": len(content), "kernels": []}
        entries[name]["kernels"].append({key: value for key, value in kernel.items() if key != "fatbin"})
    return list(entries.values())


def save(output: Path, manifest: dict[str, Any], contents: dict[str, bytes]) -> None:
    """Makes the folder hold these fatbins and this manifest and no other fatbin."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "manifest.json").unlink(missing_ok=True)  # last to come, so that no half-written folder has one
    for stale in output.glob("*.fatbin"):
        if stale.name not in contents:
            stale.unlink()
    for name, content in contents.items():
        (output / name).write_bytes(content)
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    (output / "manifest.json").write_bytes(text.encode())


def write(args: argparse.Namespace) -> None:
    """The manifest of fatbins that were just compiled."""
    kernels = json.loads(args.kernel_list.read_text(encoding="utf-8"))
    objects = [Path(line) for line in args.objects.read_text(encoding="utf-8").splitlines() if line]
    contents = {f"{path.name.split('.')[0]}.fatbin": path.read_bytes() for path in objects}
    families = json.loads((args.source / KERNELS_JSON).read_text(encoding="utf-8"))["families"]
    manifest = {
        "schema": SCHEMA,
        "version": args.version,
        "source_sha256": source_digest(args.source),
        "toolkit": args.toolkit,
        "flags": args.flags,
        "architectures": {"sass": args.sass.split(","), "ptx": [args.ptx]},
        "families": {name: {"sass": family.get("sass", {})} for name, family in families.items()},
        "fatbins": fatbin_entries(kernels, contents),
    }
    save(args.output, manifest, contents)


def load(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, its outer form checked."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise ManifestError(
            f"FLASH_ATTN_KERNELS_DIR is {folder}, whose manifest.json can't be read ({error.strerror}); "
            "name a folder of fatbins that this project's build wrote."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is not JSON ({error}); build the kernels again.") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
        raise ManifestError(
            f"{path} has schema {found}, but this build reads {SCHEMA}; build the kernels again."
        )
    return manifest


def adopt(args: argparse.Namespace) -> None:
    """Copies fatbins built elsewhere into the build, checked against their digests and this source."""
    folder: Path = args.prebuilt
    manifest = load(folder)
    for key, ours in (("version", args.version), ("source_sha256", source_digest(args.source))):
        if manifest.get(key) != ours:
            raise ManifestError(
                f"{folder / 'manifest.json'} has {key} {manifest.get(key)}, but this source tree has {ours}; "
                "build the kernels from the same source (those of the wheel in dist/: nox -s wheel)."
            )
    kernels = json.loads(args.kernel_list.read_text(encoding="utf-8"))
    try:
        recorded = {entry["name"]: entry for entry in manifest["fatbins"]}
    except (KeyError, TypeError) as error:
        raise ManifestError(
            f"{folder / 'manifest.json'} lists no fatbins; build the kernels again."
        ) from error
    contents: dict[str, bytes] = {}
    for name in dict.fromkeys(kernel["fatbin"] for kernel in kernels):
        if name not in recorded:
            raise ManifestError(
                f"{folder / 'manifest.json'} lacks {name}; build all kernels of kernels.json."
            )
        try:
            contents[name] = (folder / name).read_bytes()
        except OSError as error:
            raise ManifestError(
                f"{folder / name} can't be read ({error.strerror}); copy it again or build the kernels."
            ) from error
        digest = hashlib.sha256(contents[name]).hexdigest()
        if digest != recorded[name].get("sha256"):
            raise ManifestError(
                f"{folder / name} has SHA-256 {digest}, but its manifest says "
                f"{recorded[name].get('sha256')}; copy it again or build the kernels."
            )
    if fatbin_entries(kernels, contents) != manifest["fatbins"]:
        raise ManifestError(
            f"{folder / 'manifest.json'} lists other kernels than kernels.json; build the kernels again."
        )
    save(args.output, manifest, contents)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--kernel-list", type=Path, required=True, help="kernel_list.json that CMake derived")
    common.add_argument("--source", type=Path, required=True, help="root of the source tree")
    common.add_argument("--version", required=True)
    common.add_argument("--output", type=Path, required=True, help="folder to write")
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    writer = commands.add_parser("write", parents=[common], help=write.__doc__)
    writer.add_argument(
        "--objects", type=Path, required=True, help="file that names one compiled fatbin a line"
    )
    writer.add_argument("--toolkit", required=True)
    writer.add_argument("--sass", required=True, help="architectures, separated by commas")
    writer.add_argument("--ptx", required=True)
    writer.add_argument("flags", nargs="*", help="nvcc flags that decide the kernels' bytes")
    writer.set_defaults(run=write)
    adopter = commands.add_parser("adopt", parents=[common], help=adopt.__doc__)
    adopter.add_argument("--prebuilt", type=Path, required=True, help="folder with fatbins and manifest.json")
    adopter.set_defaults(run=adopt)
    return parser.parse_args(argv)


def main() -> int:
    args = parse()
    try:
        args.run(args)
    except ManifestError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"{error.filename or args.output}: {error.strerror}; make room and build again.", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
