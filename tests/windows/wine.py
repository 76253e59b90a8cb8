"""Programs for Windows on this machine, under Wine, in a Windows installation of the tests' own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MISSING = "wine is missing, which runs programs for Windows here: apt-get install -y wine"
# No menus, no browser, no .NET: they'd only take time. No WMI either, which Python 3.12 asks for its
# name, since Wine 8 breaks off where it answers; Python then asks elsewhere.
_OVERRIDES = "mscoree,mshtml,winemenubuilder.exe,wbemprox="


@dataclass(frozen=True)
class Wine:
    """A Windows installation in a folder."""

    prefix: Path

    @property
    def system32(self) -> Path:
        return self.prefix / "drive_c/windows/system32"

    def run(
        self,
        program: Path | str,
        *arguments: str,
        cwd: Path | None = None,
        seconds: float = 180,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end. Paths in arguments are Windows' (``windows_path``)."""
        return subprocess.run(
            ["wine", str(program), *arguments],
            # Wine starts only with an empty standard input and output into a pipe.
            stdin=subprocess.DEVNULL, capture_output=True,
            cwd=cwd, env=self._environment(variables), timeout=seconds,
            text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip

    def close(self) -> None:
        """Ends this installation's background processes."""
        subprocess.run(["wineserver", "-k"], env=self._environment({}), timeout=60)

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MOCK_"))},
            "WINEPREFIX": str(self.prefix),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": _OVERRIDES,
            "LC_ALL": "C.UTF-8",  # else Wine loses the letters of file names that ASCII lacks
            **variables,
        }


def windows_path(path: Path) -> str:
    """A file of this machine as Windows sees it."""
    return "Z:" + str(path.absolute()).replace("/", "\\")


def installation(folder: Path) -> Wine:
    """The Windows installation in the folder, made when it isn't there; takes 20 s then."""
    assert shutil.which("wine"), MISSING
    version = subprocess.run(["wine", "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
    wine = Wine(folder / version.split()[0])
    if not wine.prefix.is_dir():
        half = Wine(wine.prefix.with_suffix(".half"))
        shutil.rmtree(half.prefix, ignore_errors=True)
        half.prefix.mkdir(parents=True)
        # Wine 8 calls itself Windows 7, on which Python 3.11 doesn't start.
        for command in (("wineboot", "--init"), ("winecfg", "-v", "win10")):
            done = half.run(*command)
            assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
        subprocess.run(["wineserver", "-w"], env=half._environment({}), timeout=60)
        half.prefix.rename(wine.prefix)
    return wine
