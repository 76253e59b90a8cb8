"""A matrix that is unknown or contradictory somewhere stops, with the file, the key and the reason."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from matrix_lines import next_torch, with_torch
from typer.testing import CliRunner

from tools.__main__ import build_app
from tools.matrix.definition import MATRIX, Definition, MatrixError, Reader, read_definition
from tools.matrix.plan import expand

REFUSED = [
    ("image =", "imago =", r"platforms\.manylinux_x86_64\.imago: is an unknown key; expected one of run"),
    (
        'native = "none"',
        'native = "no"',
        r"events\.pull_request\.native: expected a list of texts, found 'no'",
    ),
    (
        'native = ["120"]',
        'native = ["999"]',
        r"events\.nightly\.native: '999' is unknown; expected one of 80",
    ),
    (', native = "msvc"', "", r"platforms: native_may_fail is for platforms that have a native build"),
    (
        'without_cibuildwheel = ["3.13t"]',
        'without_cibuildwheel = ["3.9"]',
        r"without_cibuildwheel: '3\.9' is unknown; expected one of 3\.10",
    ),
    (
        'native = "gcc"',
        'wine = "ubuntu-24.04"',
        r"platforms\.manylinux_x86_64\.wine: is for wheels for Windows",
    ),
    ("shard_runner =", "shard_walker =", r"shard_walker: is an unknown key"),
    ("cell = 10", "", r"minutes\.cell: is missing; add it\."),
    ("cell = 10", "cell = -8", r"minutes\.cell: expected whole minutes from 1 to 360, found -8\."),
    ("cell = 10", 'cell = "8"', r"minutes\.cell: expected whole minutes"),
    ('"3.13t", "3.14"', '"3.13t", "3.13t"', r"torch\[0\]\.pythons: lists 3\.13t twice"),
    ('"3.10", "3.11"', '"3.9", "3.11"', r"torch\[0\]\.pythons: '3\.9' is no Python >=3\.10"),
    ('"3.10", "3.11"', '"python3", "3.11"', r"torch\[0\]\.pythons: 'python3' is no Python"),
    (
        'version = "2.11.0", index = "pypi"',
        'version = "2.10.0", index = "pypi"',
        r"torch: lists torch 2\.10\.0 of pypi twice",
    ),
    (
        'version = "2.10.0"',
        'version = "2.9.1"',
        r"torch\[0\]\.version: is 2\.9\.1, but pyproject\.toml asks for torch>=2\.10",
    ),
    ('version = "2.10.0"', 'version = "two"', r"torch\[0\]\.version: 'two' is no version"),
    ('version = "2.15.0"', 'version = "2.10.5"', r"torch: lines of index pypi must be there, oldest first"),
    (
        'linux = "cu128"',
        'linux = "12.8"',
        r"torch\[0\]\.linux: '12\.8' is neither cpu nor a CUDA such as cu130",
    ),
    (
        'windows = "cu130"',
        'windows = "cu128"',
        r"torch\[1\]\.windows: is cu128, but the index holds cu130 builds",
    ),
    ('linux = "cu128"', 'lunix = "cu128"', r"torch\[0\]\.lunix: is an unknown key"),
    ('index = "pypi"', 'index = "conda"', r"torch\[0\]\.index: 'conda' is unknown; expected one of pypi"),
    ('index = "nightly"', 'index = "pypi"', r"torch\[\d+\]\.index: is pypi; nightly builds alone"),
    ('source = "told"', 'source = "heard"', r"torch\[1\]\.source: 'heard' is unknown; expected one of asked"),
    ('source = "named"', 'source = "told"', r"sources\.named: is named by no line of torch; remove it\."),
    ("asked = true", "asked = 1", r"sources\.asked\.asked: expected true or false, found 1\."),
    (", release = true", "", r"toolkits: one must have release = true, but 0 have"),
    ('"13.0.3"', '"13.0.3", release = true', r"toolkits: one must have release = true, but 2 have"),
    ('"13.0.3"', '"12.9.1"', r"toolkits\[0\]\.version: is 12\.9\.1; 13\.0 is the oldest"),
    ('"13.0.3"', '"13.2.1"', r"toolkits: lists cu132 twice"),
    ('["80", ', '["80", "80", ', r"architectures: lists 80 twice"),
    ('["80", ', '["75", ', r'architectures: "75" is no architecture from 80 on'),
    ('["80", ', "[80, ", r"architectures\[0\]: expected text of one line, found 80"),
    (
        'tag = "win_arm64"',
        'tag = "win_amd64"',
        r"platforms\.win_arm64\.tag: is win_amd64, which is no tag of win_arm64",
    ),
    (
        'zig = "aarch64-windows-gnu"',
        'zig = "aarch64-linux-gnu"',
        r"platforms\.win_arm64\.zig: is aarch64-linux-gnu",
    ),
    (
        'tag = "win_amd64"',
        'image = "some", tag = "win_amd64"',
        r"platforms\.win_amd64\.image: a manylinux wheel has",
    ),
    (
        'architectures = ["90"]',
        'architectures = ["91"]',
        r"events\.pull_request\.architectures: '91' is unknown",
    ),
    (
        'platforms = ["manylinux_x86_64"]',
        'platforms = ["plan9"]',
        r"events\.pull_request\.platforms: 'plan9' is unknown",
    ),
    ('["oldest", "newest"]', '["oldest", "latest"]', r"events\.pull_request\.torch: 'latest' is unknown"),
    ('pythons = "ends"', 'pythons = "some"', r"events\.pull_request\.pythons: 'some' is unknown"),
    (
        '"win-arm64", torch = "none"',
        '"win-arm64", torch = "windoze"',
        r"platforms\.win_arm64\.torch: no line of torch has windoze",
    ),
    ('arch = "ARM64"', 'arch = "AMD64"', r"platforms\.win_arm64\.arch: is AMD64, which is none of win_arm64"),
    ('host = "win-arm64"', 'host = "win-amd64"', r"platforms\.win_arm64\.host: is win-amd64"),
    ('2_28_aarch64", tag', '2_28_x86_64", tag', r"platforms\.manylinux_aarch64\.image: is quay"),
    ("https://download", "http://download", r"indexes\.cu130\.url: is 'http://"),
    ('cuda = "cu130"', 'cuda = "cpu"', r"indexes\.cu130\.cuda: is 'cpu', which is no CUDA"),
    (", pre = true", "", r"indexes\.nightly\.pre: is true for nightly"),
    ("cell = 10", "cell = 361", r"minutes\.cell: expected whole minutes from 1 to 360, found 361\."),
    ('"13.0.3"', '"13.0"', r"toolkits\[0\]\.version: '13\.0' is no version"),
    (
        'runner = "windows-2022"',
        'runner = "windows\\n2022"',
        r"platforms\.win_amd64\.runner: expected text of",
    ),
    ("[minutes]", "[minutes", r"the file: is not TOML"),
    ("shard = 4", "shard = 4\nshard = 5", r"the file: is not TOML"),
]


@pytest.mark.parametrize(("old", "new", "said"), REFUSED)
def test_what_contradicts_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = MATRIX.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "matrix.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(MatrixError, match=rf"^{re.escape(str(path))}: {said}") as refused:
        read_definition(path)
    assert "\n" not in str(refused.value)


WRONG: tuple[object, ...] = (
    "", " ", "a\nb", "nonsense", 0, -1, 2**70, 3.5, float("nan"), True, False,
    [], [[]], [1], [{}], ["x", "x"], {}, {"x": 1}, date(2026, 12, 1),
)  # fmt: skip
Place = tuple["str | int", ...]


def places(value: object, place: Place = ()) -> Iterator[tuple[Place, object]]:
    """Everything that has a key or an index, from the outside in."""
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, inner in items:
        yield (*place, key), inner
        yield from places(inner, (*place, key))


def changed(document: dict[str, Any], place: Place, value: object) -> dict[str, Any]:
    made = copy.deepcopy(document)
    *way, last = place
    inside: Any = made
    for step in way:
        inside = inside[step]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    return made


def refusal() -> str | None:
    """What is said of the matrix or of one of its events; None when nothing is."""
    try:
        definition = read_definition()
        for event in definition.events:
            expand(definition, event)
    except MatrixError as error:
        return str(error)
    return None


@pytest.mark.parametrize("top", [field.name for field in fields(Definition) if field.name != "file"])
def test_every_key_with_a_wrong_value(monkeypatch: pytest.MonkeyPatch, top: str) -> None:
    """One line that begins with the file and the key, or with the outer key, or the key it contradicts."""
    document = Reader(MATRIX).document()
    tried = 0
    for place, there in [(place, there) for place, there in places(document) if place[0] == top]:
        for value in (None, *WRONG):
            with monkeypatch.context() as patch:
                wrong = changed(document, place, value)
                patch.setattr(Reader, "document", lambda self, wrong=wrong: wrong)
                said = refusal()
            if said is None:
                assert value is None or type(value) is type(there), (place, value)
                continue
            assert re.match(r"ci/matrix\.toml: [\w.\[\]]+: ", said), (place, value)
            assert said.isprintable(), (place, value)
            tried += 1
    assert tried >= len(WRONG)


def test_an_unknown_key_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    document = Reader(MATRIX).document()
    tables = [place for place, inside in places(document) if isinstance(inside, dict)]
    for place in [(), *tables]:
        if place in [("platforms",), ("indexes",), ("sources",), ("events",)]:  # these name their own
            continue
        wrong = changed(document, (*place, "odd\nkey"), "x")
        monkeypatch.setattr(Reader, "document", lambda self, wrong=wrong: wrong)
        with pytest.raises(
            MatrixError, match=r"^ci/matrix\.toml: [\w.\[\]]*odd\\nkey: is an unknown key; expected"
        ):
            read_definition()
    assert len(tables) > 20


@pytest.mark.parametrize("content", ["", "architectures = 3", "torch = []", "\x00", "= ="])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.toml"
    path.write_text(content)
    with pytest.raises(MatrixError, match=r"^.*other\.toml: "):
        read_definition(path)


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    ran = CliRunner().invoke(build_app(["matrix"]), ["matrix", "--event", "release", "--file", str(missing)])
    assert ran.exit_code == 1
    assert ran.output == f"error: {missing}: the file: can't be read (No such file or directory).\n"


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(
        MatrixError,
        match=r"^ci/matrix\.toml: events: there is no event 'weekly'; name one of pull_request, nightly",
    ):
        expand(read_definition(), "weekly")


def test_a_toolkit_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    text = MATRIX.read_text(encoding="utf-8").replace(", release = true", "")
    path = tmp_path / "matrix.toml"
    path.write_text(text.replace('"13.0.3"', '"13.0.3", release = true'), encoding="utf-8")
    with pytest.raises(
        MatrixError, match=r"toolkits: releases use 13\.0\.3, but cmake/cuda-toolkit\.txt pins"
    ):
        read_definition(path)


def test_more_jobs_than_github_takes_are_refused(tmp_path: Path) -> None:
    definition = read_definition()
    text = MATRIX.read_text(encoding="utf-8")
    major = int(next_torch(definition).partition(".")[0])
    for patch in range(60):
        text = with_torch(text, definition, f"{major}.1.{patch}")
    path = tmp_path / "matrix.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(
        MatrixError, match=r"matrix\.toml: events\.release: gives \d+ cells, but GitHub runs at most 256 jobs"
    ):
        expand(read_definition(path), "release")


def test_two_cells_with_one_id_are_refused(tmp_path: Path) -> None:
    text = MATRIX.read_text(encoding="utf-8")
    wrong = text.replace('"2.11.0", index = "cu130", ', '"2.11.0", index = "cu130", linux = "cu130", ')
    assert wrong != text
    path = tmp_path / "matrix.toml"
    path.write_text(wrong, encoding="utf-8")
    with pytest.raises(
        MatrixError,
        match=r"events\.release: gives two cells with the id cu130-torch2\.11-cp310-manylinux_x86_64",
    ):
        expand(read_definition(path), "release")
