"""A matrix that is unknown or contradictory somewhere stops, with the file, the key and the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.__main__ import build_app
from tools.matrix.definition import MATRIX, MatrixError, read_definition
from tools.matrix.plan import expand

REFUSED = [
    ("image =", "imago =", r"platforms\.manylinux_x86_64\.imago: is an unknown key; expected one of run"),
    ("shard_runner =", "shard_walker =", r"shard_walker: is an unknown key"),
    ("cell = 8", "", r"minutes\.cell: is missing; add it\."),
    ("cell = 8", "cell = -8", r"minutes\.cell: expected whole minutes from 1 on, found -8\."),
    ("cell = 8", 'cell = "8"', r"minutes\.cell: expected whole minutes"),
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
    ('index = "nightly"', 'index = "pypi"', r"torch\[10\]\.index: is pypi; nightly builds alone"),
    ("may_fail = true", "may_fail = 1", r"torch\[1\]\.may_fail: expected true or false, found 1\."),
    ('"13.4.3", release = true', '"13.4.3"', r"toolkits: one must have release = true, but 0 have"),
    ('"13.5.0"', '"13.5.0", release = true', r"toolkits: one must have release = true, but 2 have"),
    ('"13.4.3"', '"13.4.2"', r"toolkits: releases use 13\.4\.2, but cmake/cuda-toolkit\.txt pins"),
    ('"13.0.3"', '"12.9.1"', r"toolkits\[0\]\.version: is 12\.9\.1; 13\.0 is the oldest"),
    ('"13.5.0"', '"13.2.1"', r"toolkits: lists cu132 twice"),
    ('["80", "90", "100"', '["80", "80", "100"', r"architectures: lists 80 twice"),
    ('["80", "90", "100"', '["75", "90", "100"', r'architectures: "75" is no architecture from 80 on'),
    ('["80", "90", "100"', '[80, "90", "100"', r"architectures\[0\]: expected text, found 80"),
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
    ('torch = "none"', 'torch = "windoze"', None),
    ("[minutes]", "[minutes", r"the file: is not TOML"),
    ("shard = 4", "shard = 4\nshard = 5", r"the file: is not TOML"),
]


@pytest.mark.parametrize(("old", "new", "said"), REFUSED)
def test_what_contradicts_is_refused(tmp_path: Path, old: str, new: str, said: str | None) -> None:
    text = MATRIX.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "matrix.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    if said is None:  # a column that no torch fills is a platform without cells
        assert not any(
            cell.platform == "win_arm64" for cell in expand(read_definition(path), "release").cells
        )
        return
    with pytest.raises(MatrixError, match=rf"^{re.escape(str(path))}: {said}") as refused:
        read_definition(path)
    assert "\n" not in str(refused.value)


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
    with pytest.raises(MatrixError, match=r"^There is no event 'weekly'; name one of pull_request, nightly"):
        expand(read_definition(), "weekly")


def with_lines(folder: Path, lines: str) -> Path:
    """The matrix with more lines of torch behind the newest."""
    text = MATRIX.read_text(encoding="utf-8")
    end = text.index("\n", text.index('version = "2.15.0"')) + 1
    path = folder / "matrix.toml"
    path.write_text(f"{text[:end]}{lines}\n{text[end:]}", encoding="utf-8")
    return path


def test_more_jobs_than_github_takes_are_refused(tmp_path: Path) -> None:
    lines = "\n".join(
        f'{{ version = "2.15.{patch}", index = "pypi", linux = "cu132", pythons = ["3.11", "3.12"] }},'
        for patch in range(1, 60)
    )
    with pytest.raises(
        MatrixError, match=r"^The event release has \d+ cells, but GitHub runs at most 256 jobs"
    ):
        expand(read_definition(with_lines(tmp_path, lines)), "release")


def test_two_cells_with_one_id_are_refused(tmp_path: Path) -> None:
    line = '{ version = "2.12.0", index = "cu130", linux = "cu130", pythons = ["3.12"] },'
    with pytest.raises(MatrixError, match=r"two cells with the id cu130-torch2\.12-cp312-manylinux_x86_64"):
        expand(read_definition(with_lines(tmp_path, line)), "release")
