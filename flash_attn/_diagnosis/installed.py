"""Facts about what is installed: this package, others of its name, torch, kernels, launcher."""

from __future__ import annotations

import email
import hashlib
import importlib.util
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from .. import __version__, _launcher, _remedy
from .facts import Distribution, Extension, Kernels, Launcher, Package, Torch

PACKAGE = "flash_attn"
EXTENSION = "flash_attn_2_cuda"


def one_line(error: BaseException) -> str:
    """An exception as part of a sentence: its first line that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def package() -> Package:
    folder = _folder()
    return Package(
        version=__version__,
        folder=str(folder),
        python=platform.python_version(),
        executable=sys.executable or "python",
        platform=platform.platform(),
        origin=_remedy.installed_from(),
        distributions=tuple(_distributions(folder)),
        folders=tuple(_folders(folder)),
        extensions=tuple(_extensions()),
    )


def _folder() -> Path:
    return Path(__file__).resolve().parents[1]


def _search_path() -> Iterator[Path]:
    seen = set()
    for entry in sys.path:
        try:
            place = Path(entry or ".").resolve()
            if place not in seen and place.is_dir():
                seen.add(place)
                yield place
        except OSError:  # a drive that is gone, a folder that may not be read
            continue


def _distributions(folder: Path) -> list[Distribution]:
    found: dict[tuple[Path, str], Distribution] = {}
    for distribution in metadata.distributions():
        try:
            if re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower() != "flash-attn":
                continue
            place = Path(str(distribution.locate_file(""))).resolve()
            tags = email.message_from_string(distribution.read_text("WHEEL") or "").get_all("Tag", [])
            version = distribution.version
        except (OSError, KeyError, TypeError, ValueError):  # a record that can't be read is nobody's
            continue
        found.setdefault((place, version), Distribution(version, str(place), tuple(map(str, tags))))
    return sorted(found.values(), key=lambda one: Path(one.folder) != folder.parent)


def _folders(folder: Path) -> list[str]:
    """Every package of this name, the one that runs first."""
    places = [place / PACKAGE for place in _search_path() if (place / PACKAGE / "__init__.py").is_file()]
    return list(dict.fromkeys(str(place) for place in (folder, *(place.resolve() for place in places))))


def _extensions() -> Iterator[Extension]:
    try:
        spec = importlib.util.find_spec(EXTENSION)
    except (ImportError, ValueError):
        spec = None
    imported = Path(spec.origin).resolve() if spec and spec.origin else None
    for place in _search_path():
        for path in sorted(place.glob(f"{EXTENSION}.*")):
            if path.suffix in (".so", ".pyd"):
                yield Extension(str(path), path.resolve() == imported)


def torch() -> Torch:
    """Imports torch, whatever comes of it."""
    if importlib.util.find_spec("torch") is None:
        return Torch()
    try:
        import torch

        version, cuda = str(torch.__version__), torch.version.cuda
    except Exception as error:  # a broken installation fails in any way it likes
        return Torch(_torch_version(), import_error=f"{type(error).__name__}: {one_line(error)}")
    sees_gpus, cuda_error = False, None
    if cuda:
        try:
            sees_gpus = bool(torch.cuda.is_available())
            if not sees_gpus:
                torch.cuda.init()
        except Exception as error:
            cuda_error = one_line(error)
    folder = str(Path(torch.__file__).parent) if torch.__file__ else None
    return Torch(version, cuda, folder, None, sees_gpus, cuda_error)


def _torch_version() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "of unknown version"


def kernels() -> Kernels:
    """The manifest, and each file compared with it."""
    try:
        manifest = _launcher.manifest()
        return Kernels(
            folder=str(manifest.folder),
            toolkit=str(manifest.toolkit),
            sass=tuple(map(str, manifest.architectures.get("sass", ()))),
            ptx=tuple(map(str, manifest.architectures.get("ptx", ()))),
            families=tuple(sorted(manifest.families)),
            files=len(manifest.fatbins),
            damaged=tuple(_damaged(manifest)),
        )
    except RuntimeError as error:
        return Kernels(manifest_error=str(error))
    except (AttributeError, TypeError, ValueError) as error:  # JSON, but no manifest
        return Kernels(manifest_error=f"The manifest of the kernels makes no sense ({one_line(error)})")


def _damaged(manifest: _launcher.Manifest) -> Iterator[str]:
    for name, digest in manifest.fatbins:
        path = manifest.folder / name
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            yield f"The kernel file {path} is missing"
        except OSError as error:
            yield f"The kernel file {path} can't be read ({error.strerror or error})"
        else:
            if found != digest:
                yield f"The kernel file {path} is damaged: its SHA-256 is not the manifest's"


def launcher() -> Launcher:
    """Loads the library and lets it look at the driver."""
    places = [place / "lib" / _launcher.LIBRARY_NAME for place in _launcher._places()]
    path = next((str(place) for place in places if place.is_file()), None)
    try:
        loaded = _launcher.launcher()
    except Exception as error:
        return Launcher(path, one_line(error))
    try:
        loaded.devices()
    except RuntimeError as error:
        return Launcher(path, None, one_line(error))
    return Launcher(path)
