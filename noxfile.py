"""One command each for what a person does with this tree: build the wheel, test it, check the style."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
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
    install(session, f"The dependency group {group!r}", *nox.project.dependency_groups(PYPROJECT, group))


def install_toolkit(session: nox.Session) -> None:
    """The pinned CUDA toolkit, when the machine names no other."""
    if requirements := toolkit_requirements():
        install(
            session,
            "No CUDA compiler was found (CUDACXX, CUDA_HOME, CUDA_PATH, PATH), and the pinned toolkit",
            *requirements,
        )


def wheel_in_dist() -> Path | None:
    """The newest wheel of dist/ for this kind of machine."""
    platform = "win_" if sys.platform == "win32" else "linux"
    wheels = [path for path in DIST.glob("flash_attn-*.whl") if platform in path.name]
    return max(wheels, key=lambda path: path.stat().st_mtime, default=None)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build, repair and verify the wheel into dist/; -- --archs "90" for one architecture."""
    install_group(session, "build")
    install_toolkit(session)
    session.run("python", "-m", "tools.build_wheel", "--output", str(DIST), *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that need no GPU against the wheel in dist/, which is built when it is missing."""
    if wheel_in_dist() is None:
        session.run(sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", "wheel", external=True)
    built = wheel_in_dist()
    if built is None:
        session.error("dist/ holds no wheel for this machine; run nox -s wheel.")
    install_group(session, "test")
    install_toolkit(session)
    torch = os.environ.get("FLASH_ATTN_TEST_TORCH", "torch==2.13.0")
    install(session, f"PyTorch ({torch}; FLASH_ATTN_TEST_TORCH names another)", torch)
    session.install("--force-reinstall", "--no-deps", str(built), silent=True)
    folders = [str(folder) for folder in (ROOT / "tests/cpu", ROOT / "tests/wheel") if folder.is_dir()]
    session.run("pytest", *(session.posargs or folders), env={"FLASH_ATTN_WHEEL": str(built)})


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting and types."""
    install_group(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(venv_backend="none")
def clean(session: nox.Session) -> None:
    """Remove what the other sessions made."""
    for folder in ("build", "dist", ".nox"):
        shutil.rmtree(ROOT / folder, ignore_errors=True)
