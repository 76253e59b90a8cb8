"""Wheels and source distributions that hold next to nothing, but that right: made in a millisecond."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

PLATFORMS = (
    "manylinux2014_x86_64.manylinux_2_17_x86_64",
    "manylinux2014_aarch64.manylinux_2_17_aarch64",
    "win_amd64",
    "win_arm64",
)


def metadata(version: str, requires_python: str = ">=3.10", name: str = "flash-attn") -> bytes:
    return (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
        f"Requires-Python: {requires_python}\nRequires-Dist: torch>=2.10\n\nAttention.\n"
    ).encode()


def manifest(version: str) -> dict[str, object]:
    fatbin = b"fatbin"
    entry = {"name": "one.fatbin", "sha256": sha256(fatbin).hexdigest(), "size": len(fatbin), "kernels": []}
    return {
        "schema": 1,
        "version": version,
        "source_sha256": "1" * 64,
        "toolkit": "13.4.92",
        "flags": ["-std=c++17", "-O3", "--compress-mode=size"],
        "architectures": {"sass": ["80", "90"], "ptx": ["90"]},
        "families": {},
        "fatbins": [entry],
    }


def plain_wheel(
    folder: Path,
    version: str = "2.9.0",
    platform: str = PLATFORMS[0],
    *,
    requires_python: str = ">=3.10",
    name: str = "flash_attn",
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes the wheel and returns its path. ``files`` are added or replace those that it has."""
    info = f"{name}-{version}.dist-info"
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in platform.split("."))
    library = "flash_attn/lib/flash_attn.dll" if "win" in platform else "flash_attn/lib/libflash_attn.so"
    contents = {
        "flash_attn/__init__.py": f'__version__ = "{version}"\n'.encode(),
        library: b"launcher",
        "flash_attn/kernels/one.fatbin": b"fatbin",
        "flash_attn/kernels/manifest.json": json.dumps(manifest(version)).encode(),
        f"{info}/METADATA": metadata(version, requires_python, name.replace("_", "-")),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n{tags}".encode(),
        **(files or {}),
    }
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for path, data in contents.items()
    ]
    contents[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-{platform}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in contents.items():
            archive.writestr(member, data)
    return path


def plain_sdist(folder: Path, version: str = "2.9.0", pkg_info: bytes | None = None) -> Path:
    """A source distribution with nothing but PKG-INFO; empty bytes leave that out."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"flash_attn-{version}.tar.gz"
    content = metadata(version) if pkg_info is None else pkg_info
    with tarfile.open(path, "w:gz") as archive:
        if content:
            member = tarfile.TarInfo(f"flash_attn-{version}/PKG-INFO")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
