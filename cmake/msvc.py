"""Visual Studio's compiler for a build on Windows that starts in a plain shell.

The kernels are built by Ninja, which takes the compiler from the environment, and only Visual Studio's own
command prompts set that. So this asks vswhere where the newest Visual Studio with C++ tools is, and its
vcvarsall.bat for the environment. It looks for nothing on other systems, in such a prompt, or when the
builder names a compiler, a toolchain file or Visual Studio's own generator.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST = "17.0"  # Visual Studio 2022
INSTALLER = Path("Microsoft Visual Studio", "Installer", "vswhere.exe")
VCVARSALL = Path("VC", "Auxiliary", "Build", "vcvarsall.bat")
WHAT_TO_DO = (
    'install the Build Tools for Visual Studio 2022 or newer with "Desktop development with C++", '
    "or name a compiler in CC"
)
_NAMES_A_COMPILER = ("CC", "CMAKE_TOOLCHAIN_FILE", "FLASH_ATTN_ZIG_TARGET")
_DEFINES_A_COMPILER = {"CMAKE_C_COMPILER", "CMAKE_TOOLCHAIN_FILE"}
_32_BIT = ("x86", "arm")
_SECONDS = 300

# JSON is ASCII, whatever letters the environment's paths hold and whatever code page cmd writes in.
_PRINT = "import json, os; print(json.dumps(dict(os.environ)))"


class MsvcError(Exception):
    """Why there is no compiler, in one sentence."""


@dataclass(frozen=True)
class Target:
    """A Windows that is built for: its name to vcvarsall.bat, and the Visual Studio component it needs."""

    machine: str
    component: str


TARGETS = {
    "win-amd64": Target("amd64", "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"),
    "win-arm64": Target("arm64", "Microsoft.VisualStudio.Component.VC.Tools.ARM64"),
}


def generator(
    environment: Mapping[str, str], defined: Collection[str] = (), system: str = sys.platform
) -> dict[str, str]:
    """Ninja, on Windows, where CMake would choose Visual Studio's own; empty when the builder names one."""
    named = environment.get("CMAKE_GENERATOR") or "CMAKE_GENERATOR" in defined
    return {"CMAKE_GENERATOR": "Ninja"} if system == "win32" and not named else {}


def additions(
    environment: Mapping[str, str],
    defined: Collection[str] = (),
    *,
    system: str = sys.platform,
    platform: str = sysconfig.get_platform(),
) -> dict[str, str]:
    """What a build must add to this environment in order to compile; MsvcError says why it can't.

    ``defined`` holds the names of the CMake variables that the builder sets.
    """
    if system != "win32":
        return {}
    found = generator(environment, defined, system)
    if (
        any(environment.get(name) for name in _NAMES_A_COMPILER)
        or _DEFINES_A_COMPILER & set(defined)
        or "CMAKE_GENERATOR" in defined
        or "Visual Studio" in environment.get("CMAKE_GENERATOR", "")
    ):
        return found
    if shutil.which("cl", path=environment.get("PATH", "")):
        prompt = environment.get("VSCMD_ARG_TGT_ARCH", "")
        if prompt in _32_BIT:
            raise MsvcError(
                f"This Visual Studio command prompt compiles for 32-bit Windows ({prompt}), and flash_attn "
                "is 64-bit; build in a plain command prompt, where the right compiler is found."
            )
        return found
    # cibuildwheel and setuptools say so when an x64 Python builds for Arm.
    cross = "arm64" in environment.get("SETUPTOOLS_EXT_SUFFIX", "").lower()
    name = "win-arm64" if cross else platform
    if name not in TARGETS:
        raise MsvcError(
            f"This Python is for {name}, and flash_attn is for 64-bit Windows; use a 64-bit Python."
        )
    target = TARGETS[name]
    vcvarsall = visual_studio(environment, target) / VCVARSALL
    if not vcvarsall.is_file():
        raise MsvcError(f"Visual Studio has no {vcvarsall}; repair its C++ tools with its installer.")
    return found | changes(environment, vcvarsall, machine_argument(environment, target))


def machine_argument(environment: Mapping[str, str], target: Target) -> str:
    """What vcvarsall.bat is told: compilers that run on this machine, and for what they compile."""
    told = environment.get("PROCESSOR_ARCHITEW6432") or environment.get("PROCESSOR_ARCHITECTURE", "AMD64")
    host = "arm64" if told.upper() == "ARM64" else "amd64"
    return target.machine if host == target.machine else f"{host}_{target.machine}"


def visual_studio(environment: Mapping[str, str], target: Target) -> Path:
    """The folder of the newest Visual Studio that compiles C++ for the target."""
    folders = (environment.get(name) for name in ("ProgramFiles(x86)", "ProgramFiles"))
    programs = [Path(folder) / INSTALLER for folder in folders if folder]
    vswhere = next((program for program in programs if program.is_file()), None)
    if vswhere is None:
        raise MsvcError(
            "No C compiler was found: cl.exe is not on PATH, and there is no vswhere.exe of a Visual Studio; "
            f"{WHAT_TO_DO}."
        )
    command = [
        str(vswhere), "-latest", "-products", "*", "-version", f"[{OLDEST},", "-requires", target.component,
        "-property", "installationPath", "-utf8",
    ]  # fmt: skip
    done = _run(command, environment, str(vswhere))
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        raise MsvcError(f"{vswhere} failed ({_last_line(text) or f'code {done.returncode}'}); {WHAT_TO_DO}.")
    if not text.strip():
        raise MsvcError(
            f"vswhere.exe knows no Visual Studio 2022 or newer with C++ tools for {target.machine}; "
            f"{WHAT_TO_DO}."
        )
    return Path(text.strip().splitlines()[-1])


def changes(environment: Mapping[str, str], vcvarsall: Path, machine: str) -> dict[str, str]:
    """The variables that vcvarsall.bat sets or changes."""
    helpers = {"FLASH_ATTN_VCVARSALL": str(vcvarsall), "FLASH_ATTN_PYTHON": sys.executable}
    done = in_cmd(machine, {**environment, **helpers})
    try:
        after: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        after = {}
    # Its exit code says little: it is 0 after some failures.
    if shutil.which("cl", path=after.get("PATH", "")) is None:
        said = _last_line(done.stderr.decode("utf-8", "replace"))
        raise MsvcError(
            f"{vcvarsall} {machine} put no cl.exe on PATH ({said or 'and said nothing'}); repair "
            "Visual Studio's C++ tools with its installer."
        )
    return {
        name: text for name, text in after.items() if environment.get(name) != text and name not in helpers
    }


def in_cmd(machine: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Runs vcvarsall.bat, its words on standard error, and prints the environment that it leaves.

    ``environment`` names the two programs, so that no letter of their paths means something to cmd.
    """
    script = f'call "%FLASH_ATTN_VCVARSALL%" {machine} 1>&2 & "%FLASH_ATTN_PYTHON%" -I -S -c "{_PRINT}"'
    # One text: cmd has rules of its own for quotes, which a list's would break.
    command = f'"{environment.get("COMSPEC") or "cmd.exe"}" /d /s /c "{script}"'
    return _run(command, environment, environment["FLASH_ATTN_VCVARSALL"])


def _run(
    command: str | list[str], environment: Mapping[str, str], what: str
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MsvcError(f"{what} can't be run ({error}); {WHAT_TO_DO}.") from None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def prepare(defined: Collection[str] = ()) -> None:
    """Adds to this process's environment what a build needs. Raises MsvcError."""
    os.environ.update(additions(os.environ, defined))
