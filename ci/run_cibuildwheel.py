"""Runs cibuildwheel on this tree: the wheel of one platform, repaired and tested, then verified."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ci.container import debian, official, pip_settings
from ci.container.engine import find_engine, podman_settings
from ci.container.errors import ContainerError
from tools.cross import targets
from tools.epoch import with_epoch
from tools.matrix.definition import definition
from tools.same import difference, digest

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "cibuildwheel"
PROJECT_IN_CONTAINER = "/project"  # cibuildwheel's choice
# This machine as wheels' platform tags call it.
MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
WINDOWS_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class WheelError(Exception):
    """Why there is no wheel, in one sentence."""


@dataclass
class Clock:
    """What each step took, in seconds."""

    steps: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        typer.secho(f"cibuildwheel: {name}", bold=True)
        start = time.monotonic()
        yield
        self.steps.append((name, time.monotonic() - start))

    def summary(self) -> str:
        total = sum(seconds for _, seconds in self.steps)
        return (
            "; ".join(f"{name} {seconds:.0f} s" for name, seconds in self.steps) + f"; in all {total:.0f} s"
        )


def this_platform() -> str:
    """This machine's platform, named as the project names its wheels."""
    machine = MACHINES.get(platform.machine().lower(), platform.machine())
    if sys.platform == "win32":
        return f"win_{WINDOWS_MACHINES.get(machine, machine)}"
    return f"manylinux_{machine}"


def run(command: list[str], environment: dict[str, str], what: str) -> None:
    if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
        raise WheelError(f"{what} failed; its own messages are above.")


def make_sdist(environment: dict[str, str]) -> Path:
    """The source archive; cibuildwheel builds from it, so that nothing else of this folder has a say."""
    folder = WORK / "sdist"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--skip-dependency-check"]
    run([*command, "--outdir", str(folder), str(ROOT)], environment, "Making the source archive")
    archives = list(folder.glob("*.tar.gz"))
    if len(archives) != 1:
        raise WheelError(f"The build left {len(archives)} source archives in {folder}; one was expected.")
    return archives[0]


def container_environment(name: str, python: str, kernels: Path | None, clock: Clock) -> dict[str, str]:
    """Settings that make cibuildwheel use an engine and an image that work here."""
    machine = name.removeprefix("manylinux_")
    engine = find_engine()
    settings = podman_settings(WORK) if engine == "podman" else {}
    variable = f"CIBW_MANYLINUX_{machine.upper()}_IMAGE"
    if not os.environ.get(variable):
        image = official.pinned_image(machine)
        with clock.step(f"looking for {image}"):
            found = official.pull(engine, image, os.environ | settings)
        if not found:
            typer.echo(f"{image} can't be pulled here; an image made of Debian's packages takes its place.")
            with clock.step("image of Debian's packages"):
                image = debian.make_image(engine, python, WORK, os.environ | settings)
        settings[variable] = image
    mounted = pip_settings.mounts(WORK)
    if kernels:
        mounted[kernels] = kernels
    volumes = (f"--volume={here}:{there}:ro" for here, there in mounted.items())
    settings["CIBW_CONTAINER_ENGINE"] = f"{engine}; create_args: {' '.join(map(shlex.quote, volumes))}"
    return settings


def identifier(python: str, name: str) -> str:
    """What cibuildwheel calls a build; WheelError for a Python that it has none for."""
    if python in definition().without_cibuildwheel:
        raise WheelError(
            f"cibuildwheel does not build for Python {python}; test the wheel of another Python there: "
            "nox -s tests"
        )
    return f"cp{python.replace('.', '')}-{name}"


def zig_settings(name: str, project: str) -> dict[str, str]:
    """Every cell's launcher comes from one compiler, zig, and so do its bytes, whatever the machine holds."""
    return {
        "CMAKE_TOOLCHAIN_FILE": f"{project}/cmake/zig.cmake",
        "FLASH_ATTN_ZIG_TARGET": targets()[name].zig,
    }


def checked_kernels(kernels: Path | None) -> Path | None:
    if kernels is None:
        return None
    if not (kernels / "manifest.json").is_file():
        raise WheelError(
            f"{kernels} holds no manifest.json; name a folder that nox -s kernels or a wheel gave."
        )
    return kernels.resolve()


class Reference:
    """The same wheel as nox -s wheel -- --platform makes it, while the image is made."""

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        self.folder, self.log = WORK / "reference", WORK / "reference.log"
        shutil.rmtree(self.folder, ignore_errors=True)
        WORK.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "tools.build_wheel",
            "--platform",
            name,
            "--output",
            str(self.folder),
        ]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def wheel(self) -> Path:
        """The verified wheel, once it is there; WheelError when it never will be."""
        failed = self.process.wait() != 0
        typer.echo(self.log.read_text(encoding="utf-8", errors="replace"))
        if failed:
            raise WheelError("Building the same wheel outside the container failed; its messages are above.")
        return next(self.folder.glob("*.whl"))

    def stop(self) -> None:
        """Ends what still runs; nothing after an orderly end."""
        self.process.terminate()
        self.process.wait()


def in_cibuildwheel(archive: Path, environment: dict[str, str]) -> Path:
    """The wheel that cibuildwheel built, repaired and tested."""
    folder = WORK / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "cibuildwheel", "--platform", "auto", "--output-dir", str(folder)]
    run([*command, str(archive)], environment, "cibuildwheel")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise WheelError(f"cibuildwheel ended well but left {len(wheels)} wheels; one was expected.")
    return wheels[0]


def build(name: str, python: str, kernels: Path | None, clock: Clock) -> Path:
    """The finished wheel, verified. Raises WheelError or ContainerError."""
    environment = with_epoch()
    environment.pop("FLASH_ATTN_KERNELS_DIR", None)
    if kernels:
        environment["FLASH_ATTN_KERNELS_DIR"] = str(kernels)
    # Without ready kernels no other build is at hand, and Windows packs the same files in another way.
    compare = kernels is not None and not name.startswith("win")
    reference = Reference(name, environment) if compare else None
    try:
        settings = {"CIBW_BUILD": identifier(python, name)}
        on_windows = name.startswith("win")
        if kernels:
            settings |= zig_settings(name, ROOT.as_posix() if on_windows else PROJECT_IN_CONTAINER)
        if not on_windows:
            settings |= container_environment(name, python, kernels, clock)
        with clock.step("source archive"):
            archive = make_sdist(environment)
        with clock.step("build, repair and tests"):
            wheel = in_cibuildwheel(archive, environment | settings)
        if reference is None:
            with clock.step("verification"):
                run([sys.executable, "-m", "tools", "verify", str(wheel)], environment, "Verifying the wheel")
            return wheel
        with clock.step("comparison with the same wheel, verified, built outside the container"):
            other = reference.wheel()
            if apart := difference(other, wheel):
                raise WheelError(
                    f"The wheel of the container, {wheel}, differs from {other} in: {apart}; "
                    "the same source, kernels and pinned tools must give the same bytes."
                )
        return wheel
    finally:
        if reference:
            reference.stop()


def command(
    platform: Annotated[str, typer.Option(help="Must be this machine's own.")] = this_platform(),
    python: Annotated[str, typer.Option(help="Python that builds and tests the wheel.")] = "3.11",
    kernels: Annotated[
        Path | None, typer.Option(help="Folder of ready fatbins; without it they are compiled in the build.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the finished wheel.")] = ROOT / "wheelhouse",
) -> None:
    """Build, repair, test and verify this platform's wheel with cibuildwheel."""
    clock = Clock()
    try:
        if platform != this_platform():
            raise WheelError(
                f"cibuildwheel builds for the machine it runs on, {this_platform()}, not for {platform}; "
                f"run it on such a machine, or cross-compile: nox -s wheel -- --platform {platform}"
            )
        built = build(platform, python, checked_kernels(kernels), clock)
        output.mkdir(parents=True, exist_ok=True)
        wheel = Path(shutil.move(built, output / built.name))
    except (WheelError, ContainerError) as error:
        typer.secho(str(error), fg="red", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{wheel}\nsha256 {digest(wheel)}\n{clock.summary()}")


if __name__ == "__main__":
    typer.run(command)
