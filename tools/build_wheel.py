"""Builds the wheel of this tree, repairs and verifies it, and shows what that took."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tools.compile_steps import BuildError, run_steps
from tools.cross import Target, environment_for, targets
from tools.epoch import with_epoch
from tools.matrix.definition import MatrixError
from tools.repair import RepairError, repair

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Built:
    """A wheel as the build backend left it, and what it cost."""

    wheel: Path
    seconds: float
    peak_bytes: int | None
    steps: int


def peak_memory_of_children() -> int | None:
    """Bytes that the largest finished descendant held; None where the system doesn't say."""
    if sys.platform == "win32":
        return None
    import resource

    kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024


def build(
    archs: str | None, jobs: int | None, target: Target | None, folder: Path, console: Console
) -> Built:
    """Builds the wheel in a build tree that the next build for the same architectures uses again."""
    environment = with_epoch()
    if target:
        if not environment.get("FLASH_ATTN_KERNELS_DIR"):
            raise BuildError(
                f"A wheel for {target.name} takes ready fatbins, but FLASH_ATTN_KERNELS_DIR is not set; "
                "name the folder of a built wheel's kernels, or run nox -s wheel or wheels, which do."
            )
        environment |= environment_for(target)
    if archs is not None:
        if not archs.strip(" ;,"):
            raise BuildError(f'--archs is "{archs}", which names no architecture; leave it out or name one.')
        if folder_of_kernels := environment.get("FLASH_ATTN_KERNELS_DIR"):
            refuse_other_architectures(archs, Path(folder_of_kernels))
        environment |= {"FLASH_ATTN_CUDA_ARCHS": archs, "FLASH_ATTN_ARCHS_OPTION": "--archs"}
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs or os.cpu_count() or 1))
    if jobs is not None:
        environment["CMAKE_BUILD_PARALLEL_LEVEL"] = str(jobs)
    name = re.sub(r"[^0-9a-z]+", "-", environment.get("FLASH_ATTN_CUDA_ARCHS", "").lower()).strip("-")
    tree = ROOT / "build" / f"wheel-{target.name if target else name or 'default'}"
    command = [
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check",
        f"-Cbuild-dir={tree}", "--outdir", str(folder), str(ROOT),
    ]  # fmt: skip

    start = time.monotonic()
    steps = run_steps(command, environment, console)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"The build ended well but left {len(wheels)} wheels in {folder}; one was expected.")
    return Built(wheels[0], time.monotonic() - start, peak_memory_of_children(), steps)


def refuse_other_architectures(archs: str, kernels: Path) -> None:
    """Ready fatbins are for what they are for. Raises BuildError when that isn't what --archs asks for."""
    try:
        manifest = json.loads((kernels / "manifest.json").read_text(encoding="utf-8"))
        ready = {str(arch) for arch in manifest["architectures"]["sass"]}
    except (OSError, LookupError, TypeError, ValueError):
        return  # the build says what is wrong with the folder
    if set(re.split(r"[;,\s]+", archs.strip(" ;,"))) != ready:
        raise BuildError(
            f'--archs asks for "{archs}", but the ready kernels in {kernels} are for '
            f"{', '.join(sorted(ready))}: leave out --archs, or unset FLASH_ATTN_KERNELS_DIR and, for "
            "another platform, remove the wheel in dist/ too."
        )


def manifest_of(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as archive:
        manifest: dict[str, Any] = json.loads(archive.read("flash_attn/kernels/manifest.json"))
    return manifest


def closing_table(wheel: Path, built: Built, total_seconds: float) -> Table:
    """What was built and what it took."""
    manifest = manifest_of(wheel)
    architectures = manifest["architectures"]
    kernels = sum(len(fatbin["kernels"]) for fatbin in manifest["fatbins"])
    peak = "not known on this system" if built.peak_bytes is None else f"{built.peak_bytes / 1e6:.0f} MB"
    table = Table(title=wheel.name, show_header=False, title_justify="left")
    for what, value in (
        ("build", f"{built.seconds:.0f} s, {built.steps} steps"),
        ("with repair and verification", f"{total_seconds:.0f} s"),
        ("largest process of the build", peak),
        ("wheel", f"{wheel.stat().st_size / 1e6:.2f} MB"),
        ("kernels", f"{kernels} in {len(manifest['fatbins'])} fatbins"),
        ("architectures", f"SASS {', '.join(architectures['sass'])}; PTX {', '.join(architectures['ptx'])}"),
        ("toolkit", f"CUDA {manifest['toolkit']}"),
        ("tag", wheel.stem.split("-", 2)[2]),
    ):
        table.add_row(what, value)
    return table


def command(
    archs: Annotated[str | None, typer.Option(help='GPU architectures, such as "80;90" or native.')] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compile processes at a time.")] = None,
    platform: Annotated[
        str | None, typer.Option(help="Build with zig for a platform of ci/matrix.toml, such as win_amd64.")
    ] = None,
    plat: Annotated[
        str | None, typer.Option(help="Platform tag to insist on, such as manylinux_2_28_x86_64.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the finished wheel.")] = ROOT / "dist",
) -> None:
    """Build, repair and verify the wheel of this tree."""
    console = Console()
    start = time.monotonic()
    try:
        known = targets() if platform is not None else {}
        if platform is not None and platform not in known:
            raise BuildError(f"There is no platform {platform!r}; name one of {', '.join(known)}.")
        target = known[platform] if platform else None
        with tempfile.TemporaryDirectory() as scratch:
            built = build(archs, jobs, target, Path(scratch), console)
            wheel = repair(built.wheel, plat, output)
    except (BuildError, MatrixError, OSError, RepairError) as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    verified = subprocess.run([sys.executable, "-m", "tools", "verify", str(wheel)], cwd=ROOT)
    if verified.returncode != 0:
        refused = ROOT / "build" / "refused" / wheel.name
        refused.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(wheel, refused)
        console.print(
            f"The wheel did not pass verification and lies in {refused.parent}, not in {output}.",
            style="red", highlight=False, soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(1)
    console.print(closing_table(wheel, built, time.monotonic() - start))


if __name__ == "__main__":
    typer.run(command)
