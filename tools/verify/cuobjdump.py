"""Finds and runs cuobjdump, the only judge of what a fatbin holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tools.verify.problems import ToolMissingError, UnreadableError

_EXE = ".exe" if os.name == "nt" else ""
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Cuobjdump:
    """A cuobjdump that has nvdisasm beside it or on PATH, without which it can't show SASS."""

    path: Path

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        """Standard output for these arguments. Raises UnreadableError when it fails, crashes or hangs."""
        search = os.pathsep.join([str(self.path.parent), os.environ.get("PATH", "")])
        try:
            done = subprocess.run(
                [str(self.path), *map(str, arguments)],
                cwd=cwd,
                env={**os.environ, "PATH": search},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise UnreadableError(f"cuobjdump did not finish in {_TIMEOUT_S} s") from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
            reason = lines[-1].removeprefix("cuobjdump fatal   : ").split(" in '")[0]
            raise UnreadableError(f"cuobjdump can't read it: {reason}")
        return done.stdout


def find_cuobjdump() -> Cuobjdump:
    """From CUDA_HOME or CUDA_PATH, PATH, or this Python's packages. Raises ToolMissingError."""
    folders = [Path(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = shutil.which("cuobjdump")
    if on_path:
        folders.append(Path(on_path).parent)
    try:
        package = find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        package = None
    folders += [Path(place, "bin") for place in (package.submodule_search_locations or () if package else ())]
    for folder in folders:
        tool = folder / f"cuobjdump{_EXE}"
        if tool.is_file() and ((folder / f"nvdisasm{_EXE}").is_file() or shutil.which("nvdisasm")):
            return Cuobjdump(tool)
    raise ToolMissingError(
        "no cuobjdump with nvdisasm beside it in CUDA_HOME, CUDA_PATH, PATH or this Python's packages: "
        'pip install "cuda-toolkit[cuobjdump,nvdisasm]==13.4.*"'
    )
