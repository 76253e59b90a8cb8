"""Opens wheels, reads each fatbin once, and gathers what every rule says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tools.verify.check_kernels import (
    FOLDER,
    Wanted,
    check_code,
    check_digests,
    check_gates,
    check_manifest,
    check_toolkit,
    wanted,
)
from tools.verify.check_library import check_library, declared_symbols, read_library
from tools.verify.check_wheel import check_metadata, check_size, check_tags, check_vendored
from tools.verify.cuobjdump import Cuobjdump
from tools.verify.expected import KernelList, Manifest, parse_manifest
from tools.verify.fatbin import Fatbin, read_fatbin
from tools.verify.library import Library
from tools.verify.platforms import platform_of
from tools.verify.problems import Problem, UnreadableError
from tools.verify.sass import InstructionFinder
from tools.verify.wheel import Wheel, check_record, read_wheel

_WORKERS = 2


@dataclass(frozen=True)
class Verdict:
    """All that is known of one wheel. A part that could not be read is None and has its problem."""

    path: Path
    problems: tuple[Problem, ...]
    wheel: Wheel | None = None
    library: tuple[str, Library] | None = None
    manifest: Manifest | None = None
    want: Wanted | None = None
    fatbins: Mapping[str, Fatbin] = field(default_factory=dict)


class Inspector:
    """Verifies wheels one after the other; a fatbin that several of them carry is read once."""

    def __init__(self, tool: Cuobjdump, listed: KernelList | None, archs: Sequence[str]) -> None:
        self._tool = tool
        self._listed = listed
        self._archs = tuple(archs)
        self._finder = InstructionFinder(tool)
        self._read: dict[bytes, Fatbin | UnreadableError] = {}

    def verify(self, path: Path) -> Verdict:
        try:
            wheel = read_wheel(path)
        except UnreadableError as error:
            return Verdict(path, (Problem("wheel", f"{error}; build or copy it again"),))
        problems: list[Problem] = []
        manifest = self._manifest(wheel, problems)
        platform = platform_of(wheel.platforms)
        problems += check_tags(wheel, platform)
        problems += check_size(wheel)
        problems += check_record(wheel)
        problems += check_metadata(wheel, manifest)
        problems += check_vendored(wheel)
        library = None
        try:
            library = read_library(wheel)
            if library:
                problems += check_library(*library, platform, declared_symbols())
            else:
                problems.append(Problem("library", "there is no launcher in flash_attn/lib"))
        except UnreadableError as error:
            problems.append(Problem("library", str(error)))
        if manifest is None:
            return Verdict(path, tuple(problems), wheel, library)
        want = wanted(manifest, self._listed, self._archs)
        problems += check_manifest(manifest, self._listed, self._archs)
        problems += check_digests(wheel.files, manifest)
        with tempfile.TemporaryDirectory() as scratch:
            readable = dict(self._fatbins(wheel, Path(scratch), problems))
            fatbins = {name: fatbin for name, (_, fatbin) in readable.items()}
            problems += check_toolkit(manifest, fatbins)
            problems += check_code(want, manifest, fatbins)
            problems += check_gates(want, readable, self._finder)
        return Verdict(path, tuple(problems), wheel, library, manifest, want, fatbins)

    @staticmethod
    def _manifest(wheel: Wheel, problems: list[Problem]) -> Manifest | None:
        name = f"{FOLDER}manifest.json"
        try:
            if name not in wheel.files:
                raise UnreadableError("it is not in the wheel")
            return parse_manifest(wheel.files[name])
        except UnreadableError as error:
            problems.append(Problem("manifest", f"{name}: {error}"))
            return None

    def _fatbins(
        self, wheel: Wheel, scratch: Path, problems: list[Problem]
    ) -> Iterator[tuple[str, tuple[Path, Fatbin]]]:
        names = sorted(name for name in wheel.files if name.startswith(FOLDER) and name.endswith(".fatbin"))
        paths = [scratch / f"{number}.fatbin" for number, _ in enumerate(names)]
        for name, path in zip(names, paths, strict=True):
            path.write_bytes(wheel.files[name])
        with ThreadPoolExecutor(_WORKERS) as pool:
            results = pool.map(self._fatbin, (wheel.files[name] for name in names), paths)
            for name, path, result in zip(names, paths, results, strict=True):
                if isinstance(result, UnreadableError):
                    problems.append(Problem("fatbins", f"{name} is damaged: {result}"))
                else:
                    yield name.removeprefix(FOLDER), (path, result)

    def _fatbin(self, data: bytes, path: Path) -> Fatbin | UnreadableError:
        if data not in self._read:
            try:
                self._read[data] = read_fatbin(path, self._tool)
            except UnreadableError as error:
                self._read[data] = error
        return self._read[data]


def compare(verdicts: Iterable[Verdict]) -> tuple[Problem, ...]:
    """One problem for each file of the kernels' folder that is not the same, byte for byte, in all wheels."""
    wheels = [verdict.wheel for verdict in verdicts if verdict.wheel]
    names = sorted({name for wheel in wheels for name in wheel.files if name.startswith(FOLDER)})
    problems = []
    for name in names:
        first, *others = wheels
        different = [wheel.path.name for wheel in others if wheel.files.get(name) != first.files.get(name)]
        if different:
            text = f"{name} is not the same file in {first.path.name} and in {', '.join(different)}"
            problems.append(Problem("identical", text))
    return tuple(problems)
