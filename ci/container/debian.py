"""An image made of Debian's packages, for machines that can pull none.

It holds what cibuildwheel asks of an image: a C and C++ compiler, and Debian's Python as a virtual
environment under the path that the manylinux images use. cibuildwheel looks for its own helper Python under
cp39-cp39, whatever version that is. The launcher that is built here runs beside glibc 2.17 all the same: see
cmake/FlashAttnOldGlibc.cmake.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ci.container.errors import ContainerError

NAME = "localhost/flash-attn-cibuildwheel"
# Debian's releases by the Python that each has.
SUITES: Mapping[str, str] = {"3.11": "bookworm", "3.13": "trixie"}
PACKAGES = ("ca-certificates", "g++", "python3", "python3-venv")
SETUP = """set -e
python3 -m venv /opt/python/{tag}
ln -s {tag} /opt/python/cp39-cp39
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/doc /usr/share/locale /usr/share/man
"""


def setup_script(python: str) -> str:
    tag = f"cp{python.replace('.', '')}"
    return SETUP.format(tag=f"{tag}-{tag}")


def image_name(python: str) -> str:
    """Names the recipe too, so that a changed recipe makes a new image. ContainerError: no such Debian."""
    if python not in SUITES:
        raise ContainerError(
            f"No official image can be pulled, and Debian has no Python {python}; "
            f"choose one of {', '.join(SUITES)} with --python."
        )
    recipe = "\n".join((SUITES[python], *PACKAGES, setup_script(python)))
    return f"{NAME}:{SUITES[python]}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def mirror() -> list[str]:
    """Where this machine's apt takes Debian's packages from; empty where apt doesn't say."""
    try:
        told = subprocess.run(
            ["apt-get", "indextargets", "Origin: Debian", "Label: Debian", "Identifier: Packages",
             "--format", "$(REPO_URI)"],
            capture_output=True, text=True,
        )  # fmt: skip
    except OSError:
        return []
    return told.stdout.split()[:1]


def _run(what: str, command: list[str], environment: Mapping[str, str], log: Path) -> None:
    with log.open("ab") as output:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    if ran.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise ContainerError(
            f"The Debian image can't be made: {what} failed ({' '.join(last) or 'without a word'}); "
            f"{log} says more."
        )


def make_image(engine: str, python: str, folder: Path, environment: dict[str, str]) -> str:
    """The image's name; it is made in some 100 s when it is not there yet. Raises ContainerError."""
    name = image_name(python)
    here = subprocess.run([engine, "image", "inspect", name], capture_output=True, env=environment)
    if here.returncode == 0:
        return name
    if os.geteuid() != 0:
        raise ContainerError(
            "No official image can be pulled, and only root can make one with debootstrap; run this as root."
        )
    if shutil.which("debootstrap") is None:
        raise ContainerError(
            "No official image can be pulled, and debootstrap, which makes one of Debian's packages, "
            "is missing; on Debian: apt-get install -y --no-install-recommends debootstrap"
        )
    root, log = folder / "root", folder / "image.log"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root, ignore_errors=True)
    log.unlink(missing_ok=True)
    environment = environment | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        debootstrap = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        _run("debootstrap", [*debootstrap, SUITES[python], str(root), *mirror()], environment, log)
        _run("its setup", ["chroot", str(root), "sh", "-c", setup_script(python)], environment, log)
        archive_and_import = 'tar --numeric-owner -C "$1" -c . | "$2" import - "$3"'
        _run(
            f"{engine} import",
            ["sh", "-c", archive_and_import, "sh", str(root), engine, name],
            environment,
            log,
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return name
