"""Wheels that several builds made: the same bytes, or a sentence that names what differs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.__main__ import build_app
from tools.same import difference, problems, wheels_in

NAME = "flash_attn-2.9.0-py3-none-win_amd64.whl"


def wheel(folder: Path, year: int = 2026, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), text)
        record = zipfile.ZipInfo("flash_attn-2.9.0.dist-info/RECORD", (year, 1, 1, 0, 0, 0))
        archive.writestr(record, repr(files))
    return folder / NAME


def test_wheels_of_the_same_bytes_are_the_same(tmp_path: Path) -> None:
    first, second = wheel(tmp_path / "a", library="1"), wheel(tmp_path / "b", library="1")
    assert difference(first, second) == ""
    assert problems([first, second]) == []


@pytest.mark.parametrize(
    ("other", "told"),
    [({"library": "2"}, "library"), ({}, "library"), ({"library": "1", "more": ""}, "more")],
)
def test_the_file_that_differs_is_named(tmp_path: Path, other: dict[str, str], told: str) -> None:
    first, second = wheel(tmp_path / "a", library="1"), wheel(tmp_path / "b", **other)
    assert difference(first, second) == told


def test_another_time_in_the_archive_is_a_difference(tmp_path: Path) -> None:
    first, second = wheel(tmp_path / "a", library="1"), wheel(tmp_path / "b", year=2025, library="1")
    assert "how the archive was packed" in difference(first, second)


def test_what_is_no_archive_is_a_difference(tmp_path: Path) -> None:
    first, second = wheel(tmp_path / "a", library="1"), tmp_path / "b" / NAME
    second.parent.mkdir()
    second.write_bytes(b"no zip")
    assert "can't be read" in difference(first, second)


def test_the_command_looks_into_folders_and_fails_on_a_difference(tmp_path: Path) -> None:
    wheel(tmp_path / "cells" / "a", library="1")
    wheel(tmp_path / "cells" / "b", library="1")
    arguments = ["same", str(tmp_path / "cells")]
    ran = CliRunner().invoke(build_app(arguments), arguments)
    assert ran.exit_code == 0
    assert "2 builds, all the same" in ran.output
    wheel(tmp_path / "cells" / "b", library="2")
    ran = CliRunner().invoke(build_app(arguments), arguments)
    assert ran.exit_code == 1
    assert "differs from" in ran.output
    assert "library" in ran.output


def test_no_wheel_is_an_error(tmp_path: Path) -> None:
    assert wheels_in([tmp_path]) == []
    ran = CliRunner().invoke(build_app(["same", str(tmp_path)]), ["same", str(tmp_path)])
    assert ran.exit_code == 1
    assert "There is no wheel in" in ran.output
