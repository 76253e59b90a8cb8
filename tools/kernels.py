"""Compiles the kernels of one architecture, a shard, without the rest of the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tools.compile_steps import BuildError, run_steps
from tools.output import OutputError, check_output, is_of_kernels

ROOT = Path(__file__).parent.parent

sys.path.insert(0, str(ROOT / "cmake"))
from manifest import save  # noqa: E402
from msvc import MsvcError, additions  # noqa: E402


def compile_shard(arch: str, jobs: int | None, tree: Path, console: Console) -> Path:
    """The kernels' folder inside the build tree, which the next call uses again; BuildError says why not."""
    if not re.fullmatch(r"\d{2,3}[af]?|native", arch):
        raise BuildError(f'"{arch}" is not one architecture; name one such as 90.')
    # A shard is compiled, whatever ready fatbins the shell names.
    environment = {name: text for name, text in os.environ.items() if name != "FLASH_ATTN_KERNELS_DIR"}
    # Visual Studio's environment puts its own CMake first.
    cmake = shutil.which("cmake") or "cmake"
    try:
        environment |= additions(os.environ)
    except MsvcError as error:
        raise BuildError(str(error)) from None
    configure = [
        cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(tree), f"-DPython_EXECUTABLE={sys.executable}",
        f"-DFLASH_ATTN_CUDA_ARCHS={arch}",
    ]  # fmt: skip
    run_steps(configure, {**environment, "FLASH_ATTN_ARCHS_OPTION": "--arch"}, console)
    parallel = jobs or int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or os.cpu_count() or 1)
    run_steps(
        [cmake, "--build", str(tree), "--target", "flash_attn_kernels", "--parallel", str(parallel)],
        environment, console,
    )  # fmt: skip
    return tree / "kernels"


def command(
    arch: Annotated[str, typer.Option(help="One GPU architecture, such as 90.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the shard. Left out: dist/shards/ARCH.", show_default=False),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compile processes at a time.")] = None,
    tree: Annotated[
        Path | None, typer.Option(help="Build tree. Left out: build/kernels-ARCH.", show_default=False)
    ] = None,
) -> None:
    """Compile the kernels of one architecture into a folder of fatbins with their manifest."""
    console = Console()
    start = time.monotonic()
    folder = output or ROOT / "dist" / "shards" / arch
    try:
        check_output(folder, "set of kernels", is_of_kernels)
        kernels = compile_shard(arch, jobs, tree or ROOT / "build" / f"kernels-{arch}", console)
        manifest = json.loads((kernels / "manifest.json").read_bytes())
        names = [fatbin["name"] for fatbin in manifest["fatbins"]]
        folder.mkdir(parents=True, exist_ok=True)
        save(folder, manifest, {name: (kernels / name).read_bytes() for name in names})
    except (BuildError, OSError, OutputError) as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    count = sum(len(fatbin["kernels"]) for fatbin in manifest["fatbins"])
    console.print(
        f"{folder}: {count} kernels in {len(names)} fatbins, "
        f"SASS {', '.join(manifest['architectures']['sass'])}, "
        f"CUDA {manifest['toolkit']}, {time.monotonic() - start:.0f} s",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(command)
