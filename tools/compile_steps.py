"""Runs a build that Ninja drives, shows its steps, and says in one sentence why it stopped."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).parent.parent
NINJA_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
CMAKE_ERROR = re.compile(r"^CMake Error(?: at .*)?:\n((?:\n|[ \t]+\S.*\n)+)", re.MULTILINE)
BACKEND_ERROR = re.compile(r"^flash-attn can't be built: .+$", re.MULTILINE)


class BuildError(Exception):
    """Why nothing was built, in one sentence."""


def error_in(log: str) -> str | None:
    """CMake's message, unwrapped, when the configure step stopped on one; or the build backend's."""
    if told := BACKEND_ERROR.search(log):
        return told[0].strip()
    match = CMAKE_ERROR.search(log)
    return " ".join(match[1].split()) if match else None


def lines_of(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """The command's output, line by line; raises BuildError when it fails."""
    log: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, encoding="utf-8", errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            yield line.rstrip("\n")
    if process.returncode != 0:
        text = "".join(log)
        raise BuildError(error_in(text) or f"The build failed; its last lines were:\n{''.join(log[-40:])}")


def run_steps(command: list[str], environment: dict[str, str], console: Console) -> int:
    """Runs the command with a progress bar, or a line a step where there is no terminal; gives the steps."""
    start = time.monotonic()
    steps = 0
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    with progress:
        task = progress.add_task("Configuring", total=None)
        for line in lines_of(command, environment):
            step = NINJA_STEP.match(line)
            if step and not step[3].startswith("Re-"):
                steps = int(step[2])
                what = step[3].rsplit("/", 1)[-1]
                progress.update(task, completed=int(step[1]), total=steps, description=what)
                if not console.is_terminal:
                    console.print(
                        f"{time.monotonic() - start:6.0f} s  {step[1]}/{step[2]}  {what}", highlight=False
                    )
    return steps
