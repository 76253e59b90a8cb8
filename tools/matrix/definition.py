"""Reads ``ci/matrix.toml`` and refuses what is unknown or contradicts itself or the tree, in one sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tools.reading import read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "ci" / "matrix.toml"
RELEASED = "pypi"  # the index that decides which torch is the newest
NIGHTLY = "nightly"
NO_TORCH = "none"
CHOICES = ("oldest", "newest", NIGHTLY)

_BUILD = re.compile(r"cpu|cu\d{3}")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_ARCHITECTURE = re.compile(r"(\d{2,3})[af]?")
_OLDEST_ARCHITECTURE = 80
_PYTHON = re.compile(r"(3\.\d+)t?")
_ZIG_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # where a wheel's tag calls them otherwise
_LARGEST = 2**20  # bytes
_LONGEST_JOB = 360  # minutes, on a runner of GitHub


class MatrixError(Exception):
    """What is wrong with the matrix: the file, the key and the reason, in one sentence."""


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit, by the version of the package cuda-toolkit; ``release`` marks the wheels' own."""

    version: str
    release: bool = False

    @property
    def cuda(self) -> str:
        """``cu134`` for 13.4.3."""
        return "cu" + "".join(self.version.split(".")[:2])


@dataclass(frozen=True)
class Platform:
    """A wheel's platform: where it is built and tested, and what a cross build is told (`tools.cross`).

    ``tag`` is the newest platform tag its wheel may carry, ``image`` the container ("" outside Linux),
    ``arch`` cibuildwheel's name, ``torch`` the column of the torch lines that holds its builds, or ``none``.
    ``native`` names the compiler of a build there that compiles the kernels too ("" for no such build),
    ``wine`` the machine that tests the wheel under Wine ("" for none).
    """

    runner: str
    tag: str
    arch: str
    zig: str
    host: str
    torch: str
    image: str = ""
    native: str = ""
    native_may_fail: bool = False
    wine: str = ""


@dataclass(frozen=True)
class Index:
    """Where torch comes from. ``url`` is empty for PyPI; ``cuda`` is what every build there must hold."""

    url: str = ""
    cuda: str = ""
    pre: bool = False


@dataclass(frozen=True)
class Source:
    """Where a line of torch is known from; ``asked`` when the index itself was."""

    text: str
    asked: bool = False


@dataclass(frozen=True)
class Torch:
    """One torch of one index: its Pythons, and by column ("linux") what its build holds ("cu130", "cpu")."""

    version: str
    index: str
    pythons: tuple[str, ...]
    source: Source
    builds: Mapping[str, str]

    @property
    def may_fail(self) -> bool:
        return not self.source.asked

    @property
    def short(self) -> str:
        """``2.10`` for 2.10.0, ``2.12.1`` for itself."""
        return self.version.removesuffix(".0") if self.version.count(".") == 2 else self.version


@dataclass(frozen=True)
class Event:
    """What an event runs. ``torch`` is ``("released",)`` or several of oldest, newest and nightly; ``native``
    holds the architectures of the native builds."""

    architectures: tuple[str, ...]
    platforms: tuple[str, ...]
    toolkits: bool
    torch: tuple[str, ...]
    pythons: str
    native: tuple[str, ...]


@dataclass(frozen=True)
class Minutes:
    """Runner minutes of one job of each kind; a native build takes ``shard`` an architecture besides."""

    shard: int
    wheel: int
    cell: int
    native: int
    wine: int


@dataclass(frozen=True)
class Definition:
    """All of ``ci/matrix.toml``, or of another ``file``."""

    file: str
    architectures: tuple[str, ...]
    shard_runner: str
    toolkits: tuple[Toolkit, ...]
    torch: tuple[Torch, ...]
    without_cibuildwheel: tuple[str, ...]
    platforms: Mapping[str, Platform]
    indexes: Mapping[str, Index]
    sources: Mapping[str, Source]
    events: Mapping[str, Event]
    minutes: Minutes

    @property
    def release_toolkit(self) -> Toolkit:
        return next(toolkit for toolkit in self.toolkits if toolkit.release)


Table = TypeVar("Table")


class Reader:
    """Turns TOML values into the dataclasses above; every refusal names the file and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def file(self) -> str:
        return self.path.relative_to(ROOT).as_posix() if self.path.is_relative_to(ROOT) else str(self.path)

    def refuse(self, key: str, reason: str) -> MatrixError:
        text = f"{self.file}: {key}: {reason}"
        return MatrixError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))

    def document(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = tomllib.loads(read_bytes(self.path, _LARGEST).decode("utf-8"))
        except OSError as error:
            raise self.refuse("the file", f"can't be read ({error.strerror}).") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self.refuse("the file", f"is not TOML: {error}.") from None
        except RecursionError:
            raise self.refuse("the file", "is nested too deeply; no key of the matrix is.") from None
        return document

    def mapping(self, key: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(key, f"expected a table, found {value!r}.")
        return value

    def rows(self, key: str, value: object) -> list[tuple[str, dict[str, Any]]]:
        if not isinstance(value, list) or not value:
            raise self.refuse(key, f"expected a list of tables, found {value!r}.")
        return [(f"{key}[{i}]", self.mapping(f"{key}[{i}]", row)) for i, row in enumerate(value)]

    def text(self, key: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self.refuse(key, f"expected text of one line, found {value!r}.")
        return value

    def truth(self, key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise self.refuse(key, f"expected true or false, found {value!r}.")
        return value

    def minutes(self, key: str, value: object) -> int:
        if type(value) is not int or not 1 <= value <= _LONGEST_JOB:
            raise self.refuse(key, f"expected whole minutes from 1 to {_LONGEST_JOB}, found {value!r}.")
        return value

    def texts(self, key: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise self.refuse(key, f"expected a list of texts, found {value!r}.")
        found = tuple(self.text(f"{key}[{i}]", item) for i, item in enumerate(value))
        self.unique(key, found)
        return found

    def unique(self, key: str, values: Iterable[Hashable]) -> None:
        seen = set()
        for value in values:
            if value in seen:
                raise self.refuse(key, f"lists {value} twice; remove one.")
            seen.add(value)

    def version(self, key: str, value: str) -> Version:
        if not _RELEASE.fullmatch(value):
            raise self.refuse(key, f"{value!r} is no version; write three numbers, such as 2.10.0.")
        return Version(value)

    def known(self, key: str, value: str, among: Iterable[str]) -> str:
        if value not in (names := list(among)):
            raise self.refuse(key, f"{value!r} is unknown; expected {_either(names)}.")
        return value

    def keys(self, key: str, table: Mapping[str, Any], wanted: Iterable[Field[Any]]) -> None:
        """Refuses a key that no field has, and a field without a default that no key gives."""
        names = {field.name: field for field in wanted}
        prefix = f"{key}." if key else ""
        for name in table:
            if name not in names:
                raise self.refuse(f"{prefix}{name}", f"is an unknown key; expected {_either(names)}.")
        for name, field in names.items():
            if name not in table and field.default is MISSING:
                raise self.refuse(f"{prefix}{name}", "is missing; add it.")

    def table(self, kind: Callable[..., Table], key: str, table: Mapping[str, Any]) -> Table:
        """A dataclass whose fields are texts, truths, whole numbers or lists of texts."""
        found = fields(kind)  # type: ignore[arg-type]
        self.keys(key, table, found)
        readers: dict[str, Callable[[str, object], object]] = {
            "str": self.text, "bool": self.truth, "int": self.minutes, "tuple[str, ...]": self.texts,
        }  # fmt: skip
        types = {field.name: str(field.type) for field in found}
        return kind(**{name: readers[types[name]](f"{key}.{name}", value) for name, value in table.items()})


def _either(names: Iterable[str]) -> str:
    return "one of " + ", ".join(names)


def _toolkits(reader: Reader, value: object) -> tuple[Toolkit, ...]:
    found = []
    for key, row in reader.rows("toolkits", value):
        toolkit = reader.table(Toolkit, key, row)
        if reader.version(f"{key}.version", toolkit.version) < Version("13.0"):
            raise reader.refuse(f"{key}.version", f"is {toolkit.version}; 13.0 is the oldest that compiles.")
        found.append(toolkit)
    reader.unique("toolkits", (toolkit.cuda for toolkit in found))
    released = [toolkit.version for toolkit in found if toolkit.release]
    if len(released) != 1:
        raise reader.refuse("toolkits", f"one must have release = true, but {len(released)} have.")
    pin = ROOT / "cmake" / "cuda-toolkit.txt"
    pinned = re.search(r"cuda-toolkit(?:\[[^\]]*\])?==([\w.]+)", pin.read_text(encoding="utf-8"))
    if pinned is None or pinned[1] != released[0]:
        raise reader.refuse(
            "toolkits",
            f"releases use {released[0]}, but cmake/cuda-toolkit.txt pins "
            f"{pinned[1] if pinned else 'none'}; make them agree.",
        )
    return tuple(found)


def _architectures(reader: Reader, key: str, value: object) -> tuple[str, ...]:
    found = reader.texts(key, value)
    for arch in found:
        match = _ARCHITECTURE.fullmatch(arch)
        if not match or int(match[1]) < _OLDEST_ARCHITECTURE:
            raise reader.refuse(key, f'"{arch}" is no architecture from {_OLDEST_ARCHITECTURE} on.')
    return found


def _platforms(reader: Reader, value: object) -> dict[str, Platform]:
    found = {}
    for name, row in reader.mapping("platforms", value).items():
        key = f"platforms.{name}"
        found[name] = platform = reader.table(Platform, key, reader.mapping(key, row))
        system, _, machine = name.partition("_")
        of_linux = system == "manylinux" and re.fullmatch(rf"manylinux_\d+_\d+_{machine}", platform.tag)
        if not of_linux and not (system == "win" and platform.tag == name):
            raise reader.refuse(f"{key}.tag", f"is {platform.tag}, which is no tag of {name}.")
        if platform.tag.startswith("manylinux") != bool(platform.image):
            raise reader.refuse(f"{key}.image", "a manylinux wheel has an image, and only such a one.")
        target = f"{_ZIG_MACHINES.get(machine, machine)}-{'windows' if system == 'win' else 'linux'}-gnu"
        for field, right in (
            ("arch", platform.arch.lower() == machine),
            ("zig", platform.zig == target or platform.zig.startswith(f"{target}.")),
            ("host", platform.host == f"{'win' if system == 'win' else 'linux'}-{machine}"),
            ("image", not platform.image or platform.image.split(":")[0].endswith(machine)),
        ):
            if not right:
                raise reader.refuse(
                    f"{key}.{field}", f"is {getattr(platform, field)}, which is none of {name}."
                )
    if not found:
        raise reader.refuse("platforms", "lists no platform.")
    return found


def _indexes(reader: Reader, value: object) -> dict[str, Index]:
    found = {}
    for name, row in reader.mapping("indexes", value).items():
        key = f"indexes.{name}"
        found[name] = index = reader.table(Index, key, reader.mapping(key, row))
        if index.url.startswith("https://") != (name != RELEASED) or (index.url and name == RELEASED):
            expected = "PyPI needs none" if name == RELEASED else "write one that starts with https://"
            raise reader.refuse(f"{key}.url", f"is {index.url!r}; {expected}.")
        if index.cuda and (index.cuda == "cpu" or not _BUILD.fullmatch(index.cuda)):
            raise reader.refuse(f"{key}.cuda", f"is {index.cuda!r}, which is no CUDA such as cu130.")
        if index.pre != (name == NIGHTLY):
            raise reader.refuse(
                f"{key}.pre", f"is true for {NIGHTLY}, whose builds are pre-releases, and there alone."
            )
    return found


def _sources(reader: Reader, value: object) -> dict[str, Source]:
    rows = {f"sources.{name}": row for name, row in reader.mapping("sources", value).items()}
    found = {key: reader.table(Source, key, reader.mapping(key, row)) for key, row in rows.items()}
    return {key.removeprefix("sources."): source for key, source in found.items()}


def _torch(
    reader: Reader,
    value: object,
    columns: set[str],
    indexes: Mapping[str, Index],
    sources: Mapping[str, Source],
) -> tuple[Torch, ...]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest_torch = next(
        need.removeprefix("torch") for need in project["dependencies"] if need.startswith("torch")
    )
    shared = [field for field in fields(Torch) if field.name != "builds"]
    found = []
    for key, row in reader.rows("torch", value):
        builds = {name: reader.text(f"{key}.{name}", row[name]) for name in sorted(columns & row.keys())}
        rest = {name: item for name, item in row.items() if name not in builds}
        reader.keys(key, rest, shared)
        torch = Torch(
            reader.text(f"{key}.version", rest["version"]),
            reader.known(f"{key}.index", reader.text(f"{key}.index", rest["index"]), indexes),
            reader.texts(f"{key}.pythons", rest["pythons"]),
            sources[reader.known(f"{key}.source", reader.text(f"{key}.source", rest["source"]), sources)],
            builds,
        )
        index = indexes[torch.index]
        if not builds:
            raise reader.refuse(key, f"torch {torch.version} has no build; name one of {', '.join(columns)}.")
        for column, build in builds.items():
            if not _BUILD.fullmatch(build):
                raise reader.refuse(f"{key}.{column}", f"{build!r} is neither cpu nor a CUDA such as cu130.")
            if index.cuda and build != index.cuda:
                raise reader.refuse(
                    f"{key}.{column}", f"is {build}, but the index holds {index.cuda} builds."
                )
        if (torch.version == NIGHTLY) != (torch.index == NIGHTLY):
            raise reader.refuse(f"{key}.index", f"is {torch.index}; nightly builds alone come from nightly.")
        if torch.version != NIGHTLY and not SpecifierSet(oldest_torch).contains(
            reader.version(f"{key}.version", torch.version)
        ):
            raise reader.refuse(
                f"{key}.version", f"is {torch.version}, but pyproject.toml asks for torch{oldest_torch}."
            )
        for python in torch.pythons:
            match = _PYTHON.fullmatch(python)
            if not match or not SpecifierSet(project["requires-python"]).contains(match[1]):
                raise reader.refuse(
                    f"{key}.pythons",
                    f"{python!r} is no Python {project['requires-python']}, which pyproject.toml asks for.",
                )
        found.append(torch)
    reader.unique("torch", (f"torch {torch.version} of {torch.index}" for torch in found))
    released = [Version(torch.version) for torch in found if torch.index == RELEASED]
    if not released or released != sorted(released):
        raise reader.refuse("torch", f"lines of index {RELEASED} must be there, oldest first.")
    return tuple(found)


def _event(
    reader: Reader, name: str, value: object, architectures: tuple[str, ...], platforms: Iterable[str]
) -> Event:
    key = f"events.{name}"
    row = reader.mapping(key, value)
    reader.keys(key, row, fields(Event))

    def part(what: str, everything: Iterable[str]) -> tuple[str, ...]:
        if row[what] == "all":
            return tuple(everything)
        return tuple(
            reader.known(f"{key}.{what}", one, everything) for one in reader.texts(f"{key}.{what}", row[what])
        )

    if row["torch"] == "released":
        torch: tuple[str, ...] = ("released",)
    else:
        torch = tuple(
            reader.known(f"{key}.torch", one, CHOICES) for one in reader.texts(f"{key}.torch", row["torch"])
        )
    return Event(
        part("architectures", architectures),
        part("platforms", list(platforms)),
        reader.truth(f"{key}.toolkits", row["toolkits"]),
        torch,
        reader.known(f"{key}.pythons", reader.text(f"{key}.pythons", row["pythons"]), ("all", "ends")),
        () if row["native"] == "none" else part("native", architectures),
    )


def read_definition(path: Path = MATRIX) -> Definition:
    """The checked matrix; MatrixError names the file, the key and the reason."""
    reader = Reader(path)
    document = reader.document()
    reader.keys("", document, [field for field in fields(Definition) if field.name != "file"])
    architectures = _architectures(reader, "architectures", document["architectures"])
    platforms = _platforms(reader, document["platforms"])
    indexes = _indexes(reader, document["indexes"])
    columns = {platform.torch for platform in platforms.values()} - {NO_TORCH}
    sources = _sources(reader, document["sources"])
    torch = _torch(reader, document["torch"], columns, indexes, sources)
    for name, source in sources.items():
        if source not in [line.source for line in torch]:
            raise reader.refuse(f"sources.{name}", "is named by no line of torch; remove it.")
    for name, platform in platforms.items():
        if platform.torch != NO_TORCH and not any(platform.torch in line.builds for line in torch):
            reason = f"no line of torch has {platform.torch}; name a column of theirs, or {NO_TORCH}."
            raise reader.refuse(f"platforms.{name}.torch", reason)
        if platform.native_may_fail and not platform.native:
            raise reader.refuse("platforms", "native_may_fail is for platforms that have a native build.")
        if platform.wine and not platform.tag.startswith("win_"):
            raise reader.refuse(f"platforms.{name}.wine", "is for wheels for Windows.")
    without = reader.texts("without_cibuildwheel", document["without_cibuildwheel"])
    for python in without:
        reader.known("without_cibuildwheel", python, sorted({one for line in torch for one in line.pythons}))
    events = reader.mapping("events", document["events"])
    if not events:
        raise reader.refuse("events", "lists no event.")
    return Definition(
        reader.file,
        architectures,
        reader.text("shard_runner", document["shard_runner"]),
        _toolkits(reader, document["toolkits"]),
        torch,
        without,
        platforms,
        indexes,
        sources,
        {name: _event(reader, name, row, architectures, platforms) for name, row in events.items()},
        reader.table(Minutes, "minutes", reader.mapping("minutes", document["minutes"])),
    )


@cache
def definition() -> Definition:
    """The matrix of this tree, read once."""
    return read_definition()
