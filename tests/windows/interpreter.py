"""A CPython for Windows with torch, as a user would have it, in a folder with a difficult name."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from windows import downloads, signature
from windows.downloads import Embedded
from windows.wine import Wine, windows_path

DIFFICULT = "Programme für Jürgen Łukasz"  # spaces, and letters of two Windows code pages
# Of torch: what only compilers use.
_UNNEEDED = (".lib", ".h", ".hpp", ".cuh", ".cmake", ".exe")


@dataclass(frozen=True)
class Interpreter:
    """One CPython for Windows, with the wheel under test in its site-packages once it is installed."""

    kind: Embedded
    wine: Wine
    folder: Path

    @property
    def site_packages(self) -> Path:
        return self.folder / "Lib/site-packages"

    @property
    def package(self) -> Path:
        return self.site_packages / "flash_attn"

    def run(
        self, *arguments: str, cwd: Path | None = None, seconds: float = 180, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        # Intel's OpenMP asks the processors in a way that Wine 8 can't answer.
        settings = {"KMP_AFFINITY": "disabled", "PYTHONUTF8": "1", **variables}
        return self.wine.run(
            self.folder / "python.exe", *arguments, cwd=cwd or self.folder, seconds=seconds, **settings
        )

    def install(self, wheel: Path) -> None:
        done = self.run(
            "-m", "pip", "install", "--no-index", "--no-deps",
            "--disable-pip-version-check", "--no-warn-script-location", windows_path(wheel),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert (self.package / "lib/flash_attn.dll").is_file(), done.stdout


def make(kind: Embedded, wine: Wine, wheel: Path, cache: Path, folder: Path) -> Interpreter:
    """Unpacks CPython, adds torch, lets pip for Windows install the wheel there."""
    wheels = downloads.wheels(kind, cache / "downloads")
    torch = _unpacked(wheels, cache / f"torch-{wheels[0].parent.name}")
    place = unpack(kind, cache, folder / DIFFICULT / f"Python {kind.minor}")
    (settings,) = place.glob("python*._pth")
    (pip,) = (windows_path(path) for path in wheels if path.name.startswith("pip-"))
    lines = (settings.name.replace("._pth", ".zip"), ".", windows_path(torch), pip, "import site")
    settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
    interpreter = Interpreter(kind, wine, place)
    interpreter.install(wheel)
    return interpreter


def unpack(kind: Embedded, cache: Path, place: Path) -> Path:
    """CPython for Windows as python.org gives it, its signatures checked, in the folder."""
    archive = downloads.embedded_archive(kind, cache / "downloads")
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(archive) as tar:
        member = tar.extractfile(kind.data)
        assert member is not None
        with zipfile.ZipFile(io.BytesIO(member.read())) as data:
            for entry in data.infolist():
                if not entry.is_dir():
                    entry.filename = Path(entry.filename).name
                    data.extract(entry, place)
    assert signature.problems_of_python(place) == []
    return place


def _unpacked(wheels: list[Path], place: Path) -> Path:
    """All wheels but pip's in one folder, which stays for the next run."""
    if not place.is_dir():
        half = place.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        for wheel in wheels:
            if not wheel.name.startswith("pip-"):
                with zipfile.ZipFile(wheel) as archive:
                    names = [name for name in archive.namelist() if not name.endswith(_UNNEEDED)]
                    archive.extractall(half, names)
        half.rename(place)
    return place
