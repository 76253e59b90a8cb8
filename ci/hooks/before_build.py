"""cibuildwheel's step before the build: what builds and repairs a wheel, at pinned versions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
from build_backend import toolkit_requirements  # noqa: E402

PINS = ROOT / "ci" / "build-requirements.txt"


def pip_install(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *arguments]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        sys.exit("What the build needs can't be installed from the package index: see pip's message above.")


def main() -> None:
    pip_install("--upgrade", "pip>=25.1")  # the first that knows dependency groups
    # The toolkit is a part only of a build that compiles the kernels itself.
    pip_install("--constraint", str(PINS), "--group", "backend", "--group", "repair", *toolkit_requirements())


if __name__ == "__main__":
    main()
