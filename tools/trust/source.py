"""The checkout that wheels are attested from: its commit, and whether a wheel holds what that commit has."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tools.trust import TrustError
from tools.trust.wheel_facts import WheelFacts

# What a build reads. Anything else in the tree may be as it likes.
BUILD_INPUTS = (
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "cmake",
    "csrc",
    "flash_attn",
    "flash_attn_2_cuda.py",
    "pyproject.toml",
)
VERSION_FILE = "flash_attn/__init__.py"
_VERSION = re.compile(rb'^__version__ = "[^"]*"$', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A checkout without changes: what it builds is what ``commit`` holds."""

    root: Path
    commit: str
    kernel_sources: str  # SHA-256 as the manifest gives it


def read_source(root: Path) -> Source:
    """Raises TrustError when the folder is no git checkout, or has changes that its commit lacks.

    One change is allowed: the version, which nightly builds set.
    """
    commit = _git(root, "rev-parse", "--verify", "HEAD").decode().strip()
    listed = _git(root, "status", "--porcelain", "-z", "--no-renames", "--", *BUILD_INPUTS)
    changed = [entry[3:].decode(errors="replace") for entry in listed.split(b"\0") if entry]
    for name in changed:
        if name != VERSION_FILE or not _only_the_version_differs(root):
            raise TrustError(
                f"{root / name} differs from commit {commit[:12]}, so no commit says what was built; "
                "commit it or remove it, and build again."
            )
    return Source(root, commit, _kernel_sources(root))


def _only_the_version_differs(root: Path) -> bool:
    committed = _git(root, "show", f"HEAD:{VERSION_FILE}")
    there = (root / VERSION_FILE).read_bytes() if (root / VERSION_FILE).is_file() else b""
    same = _VERSION.sub(b"", committed) == _VERSION.sub(b"", there.replace(b"\r\n", b"\n"))
    return same and len(_VERSION.findall(there.replace(b"\r\n", b"\n"))) == 1


def _git(root: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True)
    except OSError as error:
        raise TrustError(f"git can't be run ({error.strerror}); attest in a checkout, with git.") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise TrustError(f"{root} gives no commit to attest ({said}); attest in a git checkout.")
    return done.stdout


def _kernel_sources(root: Path) -> str:
    """By the build's own rule, which stands in cmake/manifest.py."""
    path = root / "cmake" / "manifest.py"
    spec = spec_from_file_location("flash_attn_manifest", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return str(module.source_digest(root))


def check_built_from(facts: WheelFacts, source: Source) -> None:
    """Raises TrustError unless the wheel's kernels, version and Python files are those of the checkout."""
    where = f"commit {source.commit[:12]}"
    if facts.source_sha256 != source.kernel_sources:
        raise TrustError(
            f"{facts.path}: its kernels were compiled from sources with SHA-256 {facts.source_sha256}, but "
            f"{where} has {source.kernel_sources}; build it from this commit."
        )
    root = source.root
    ours = [root / "flash_attn_2_cuda.py", *sorted((root / "flash_attn").rglob("*.py"))]
    expected = {path.relative_to(root).as_posix(): path.read_bytes() for path in ours}
    for name in sorted(expected.keys() | facts.sources.keys()):
        there, here = facts.sources.get(name), expected.get(name)
        if here is None:
            raise TrustError(f"{facts.path}: {name} is in the wheel but not in {where}; build it again.")
        if there is None:
            raise TrustError(f"{facts.path}: {name} of {where} is not in the wheel; build it again.")
        if there.replace(b"\r\n", b"\n") != here.replace(b"\r\n", b"\n"):
            raise TrustError(f"{facts.path}: {name} is not the file of {where}; build it from this commit.")
