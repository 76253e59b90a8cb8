"""One command each for what a person does with this tree: build the wheel, test it, check the style."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
LOCK = ROOT / "ci" / "build-requirements.txt"
PLATFORMS = tuple(nox.project.load_toml(ROOT / "ci" / "matrix.toml")["platforms"])
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")

sys.path.insert(0, str(ROOT / "cmake"))
from build_backend import toolkit_requirements  # noqa: E402

nox.needs_version = ">=2025.2"
nox.options.sessions = ["wheel", "tests"]
nox.options.reuse_venv = "yes"


def install(session: nox.Session, what: str, *requirements: str) -> None:
    """Installs into the session's environment, or ends it with one sentence."""
    try:
        session.install(*requirements, silent=True)
    except CommandFailed:
        session.error(
            f"{what} can't be installed from the package index: see pip's message above; check the network."
        )


def install_group(session: nox.Session, group: str) -> None:
    if group == "build" and os.environ.get("FLASH_ATTN_LOCKED") == "1":
        install(session, f"The pinned requirements of {LOCK}", "--require-hashes", "-r", str(LOCK))
        return
    install(session, f"The dependency group {group!r}", *nox.project.dependency_groups(PYPROJECT, group))


def install_toolkit(session: nox.Session) -> None:
    """The pinned CUDA toolkit, when the machine names no other."""
    if requirements := toolkit_requirements():
        install(
            session,
            "No CUDA compiler was found (CUDACXX, CUDA_HOME, CUDA_PATH, PATH), and the pinned toolkit",
            *requirements,
        )


def install_named_toolkit(session: nox.Session, version: str) -> Path:
    """Another toolkit of the package index than the pinned one; gives its nvcc."""
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < 13:
        session.error(f"--toolkit is {version!r}, but kernels need CUDA 13.0 or newer: name such a version.")
    pinned = (ROOT / "cmake" / "cuda-toolkit.txt").read_text(encoding="utf-8").splitlines()[0]
    install(session, f"The CUDA toolkit {version}", f"{pinned.partition('==')[0]}=={version}")
    folder = session.run("python", str(ROOT / "cmake" / "build_backend.py"), silent=True)
    nvcc = Path(str(folder).strip(), "bin", "nvcc.exe" if sys.platform == "win32" else "nvcc")
    if not nvcc.is_absolute() or not nvcc.is_file():
        session.error(f"The CUDA toolkit {version} of the package index has no nvcc: name another version.")
    return nvcc


def torch_for_tests() -> str:
    return os.environ.get("FLASH_ATTN_TEST_TORCH", "torch==2.13.0")


def install_torch(session: nox.Session) -> None:
    torch = torch_for_tests()
    install(session, f"PyTorch ({torch}; FLASH_ATTN_TEST_TORCH names another)", *shlex.split(torch))


def wheel_in_dist() -> Path | None:
    """The newest wheel of dist/ for this kind of machine."""
    system = "win_" if sys.platform == "win32" else "linux"
    machine = platform.machine().lower()
    wheels = [path for path in DIST.glob(f"flash_attn-*{system}*.whl") if path.stem.endswith(machine)]
    return max(wheels, key=lambda path: path.stat().st_mtime, default=None)


def build_wheel(session: nox.Session, *arguments: str, kernels: Path | None = None) -> None:
    environment = {"FLASH_ATTN_KERNELS_DIR": str(kernels)} if kernels else {}
    session.run(
        "python", "-m", "tools.build_wheel", "--output", str(DIST), *arguments, env=environment
    )  # fmt: skip


def wheel_of_session(session: nox.Session, *arguments: str) -> Path:
    """This machine's wheel, from dist/ or of the session `wheel`, whose environment alone keeps objects."""
    if wheel_in_dist() is None:
        nox_again = (sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", "wheel")
        session.run(*nox_again, "--", *arguments, external=True)
    built = wheel_in_dist()
    if built is None:
        session.error("dist/ holds no wheel for this machine; run nox -s wheel.")
    return built


def archs_of(arguments: list[str]) -> list[str]:
    """``--archs`` and what it asks for, out of all that a session was given."""
    joined = [argument for argument in arguments if argument.startswith("--archs=")]
    return joined or [word for pair in pairwise(arguments) if pair[0] == "--archs" for word in pair]


def kernels_of(built: Path) -> Path:
    """The kernels' folder of a wheel, unpacked where a build for another platform takes it from."""
    folder = ROOT / "build" / "kernels-of-wheel"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(built) as archive:
        archive.extractall(
            folder, [name for name in archive.namelist() if name.startswith("flash_attn/kernels/")]
        )
    return folder / "flash_attn" / "kernels"


def ready_kernels(session: nox.Session, *arguments: str) -> Path:
    """Fatbins for a build that can't compile any: those named, else those of the wheel in dist/."""
    if named := os.environ.get("FLASH_ATTN_KERNELS_DIR"):
        return Path(named)
    built = wheel_of_session(session, *arguments)
    try:
        return kernels_of(built)
    except (OSError, zipfile.BadZipFile) as error:
        session.error(f"{built} is not a whole wheel ({error}); remove it and run nox -s wheel.")


@nox.session
def kernels(session: nox.Session) -> None:
    """Compile a shard: -- --arch 90 [--output DIR] [--toolkit 13.0.3 of the index]."""
    arguments = list(session.posargs)
    install_group(session, "build")
    environment = {}
    if "--toolkit" in arguments[:-1]:
        at = arguments.index("--toolkit")
        _, version = arguments[at : at + 2]
        del arguments[at : at + 2]
        environment["CUDACXX"] = str(install_named_toolkit(session, version))
        arguments += ["--tree", str(ROOT / "build" / f"kernels-cuda-{version}")]
    else:
        install_toolkit(session)
    session.run("python", "-m", "tools.kernels", *arguments, env=environment)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build, repair and verify the wheel into dist/; -- --archs "90", or --platform win_amd64 with zig."""
    install_group(session, "build")
    install_toolkit(session)
    cross = any(argument.startswith("--platform") for argument in session.posargs)
    kernels = ready_kernels(session, *archs_of(session.posargs)) if cross else None
    build_wheel(session, *session.posargs, kernels=kernels)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the wheels of all four platforms into dist/, the kernels compiled once, and compare them."""
    if any(argument.startswith("--plat") for argument in session.posargs):
        session.error("nox -s wheels builds every platform: for one, run nox -s wheel -- --platform NAME.")
    install_group(session, "build")
    install_toolkit(session)
    shutil.rmtree(DIST, ignore_errors=True)
    # Named kernels are what they are, and the build refuses another --archs.
    asked = archs_of(session.posargs) if os.environ.get("FLASH_ATTN_KERNELS_DIR") else []
    kernels = ready_kernels(session, *session.posargs)
    # This machine's platform too: zig's launcher is the same bytes wherever it is built.
    shutil.rmtree(DIST, ignore_errors=True)
    for name in PLATFORMS:
        build_wheel(session, "--platform", name, *asked, kernels=kernels)
    session.run("python", "-m", "tools", "verify", *(str(path) for path in sorted(DIST.glob("*.whl"))))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that need no GPU against the wheel in dist/, which is built when it is missing."""
    built = wheel_of_session(session)
    install_group(session, "test")
    install_toolkit(session)
    install_torch(session)
    session.install("--force-reinstall", "--no-deps", str(built), silent=True)
    folders = [
        str(folder)
        for folder in (ROOT / f"tests/{name}" for name in ("cpu", "wheel", "workflows"))
        if folder.is_dir()
    ]
    session.run("pytest", *(session.posargs or folders), env={"FLASH_ATTN_WHEEL": str(built)})


@nox.session
def lock(session: nox.Session) -> None:
    """Pin what builds a wheel, the toolkit too, with hashes, in ci/build-requirements.txt."""
    install(session, "uv", "uv>=0.5")
    session.run(
        "uv", "pip", "compile", "cmake/cuda-toolkit.txt", "--group", "pyproject.toml:build", "--universal",
        "--python-version", "3.10", "--generate-hashes", "--no-annotate", "--quiet",
        "--custom-compile-command", "nox -s lock", *session.posargs,
        "--output-file", str(LOCK.relative_to(ROOT)),
    )  # fmt: skip


@nox.session
def cibuildwheel(session: nox.Session) -> None:
    """Build, repair, test and verify this platform's wheel with cibuildwheel, on Linux in a container."""
    # What builds the wheel out here is pinned as it is inside; cibuildwheel itself leaves no trace in it.
    pinned = nox.project.dependency_groups(PYPROJECT, "build")
    install(session, f"The pinned requirements of {LOCK}", "--constraint", str(LOCK), *pinned)
    install_group(session, "cibuildwheel")
    kernels: list[str] = []
    if os.environ.get("FLASH_ATTN_KERNELS_DIR") or wheel_in_dist():
        kernels = ["--kernels", str(ready_kernels(session))]
    environment = {"FLASH_ATTN_TEST_TORCH": torch_for_tests()}
    session.run("python", "-m", "ci.run_cibuildwheel", *kernels, *session.posargs, env=environment)


@nox.session
def windows(session: nox.Session) -> None:
    """Test the win_amd64 wheel, built anew or that of FLASH_ATTN_WINDOWS_WHEEL, in CPythons under Wine."""
    for program in ("wine", "wineserver", "cc"):
        if shutil.which(program) is None:
            session.error(f"{program} is missing, which these tests need: apt-get install -y wine gcc")
    install_group(session, "windows")
    native = wheel_of_session(session)
    tested = os.environ.get("FLASH_ATTN_WINDOWS_WHEEL")
    if tested is None:
        build_wheel(session, "--platform", "win_amd64", kernels=ready_kernels(session))
        built = DIST.glob("flash_attn-*-win_amd64.whl")
        tested = str(max(built, key=lambda path: path.stat().st_mtime))
    environment = {"FLASH_ATTN_WHEEL": str(native), "FLASH_ATTN_WINDOWS_WHEEL": tested}
    session.run("pytest", *(session.posargs or [str(ROOT / "tests/windows")]), env=environment)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting and types."""
    install_group(session, "lint")
    install_torch(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def workflows(session: nox.Session) -> None:
    """Judge .github/workflows with actionlint, shellcheck and zizmor, without a network."""
    install_group(session, "workflows")
    session.run("actionlint", "-color")
    session.run("shellcheck", *(str(path) for path in sorted((ROOT / "ci").glob("*.sh"))))
    session.run("zizmor", "--offline", "--persona", "pedantic", ".github")


@nox.session
def sdist(session: nox.Session) -> None:
    """Make the source distribution into dist/."""
    install_group(session, "build")
    session.run("python", "-m", "build", "--sdist", "--no-isolation", "--outdir", str(DIST))


@nox.session(venv_backend="none")
def clean(session: nox.Session) -> None:
    """Remove what the other sessions made."""
    for folder in ("build", "dist", ".nox"):
        shutil.rmtree(ROOT / folder, ignore_errors=True)
