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


def test_only_files_can_be_compared(tmp_path: Path) -> None:
    """Python packs in another way on Windows: another system's mark, another compressor."""
    first, second = wheel(tmp_path / "a", library="1"), wheel(tmp_path / "b", year=2025, library="1")
    assert difference(first, second, files=True) == ""
    assert problems([first, second], files=True) == []
    third = wheel(tmp_path / "c", year=2025, library="2")
    assert difference(first, third, files=True) == "library"
    for option, code in (("--files", 0), ("--bytes", 1)):
        arguments = ["same", option, str(tmp_path / "a"), str(tmp_path / "b")]
        assert CliRunner().invoke(build_app(arguments), arguments).exit_code == code


def test_a_place_without_a_wheel_to_compare_is_an_error(tmp_path: Path) -> None:
    """Else a wheel of another name would pass for the same."""
    wheel(tmp_path / "dist", library="1")
    other = wheel(tmp_path / "wheelhouse", library="1")
    other.rename(other.with_name("flash_attn-2.9.0-py3-none-win_arm64.whl"))
    arguments = ["same", str(tmp_path / "dist"), str(tmp_path / "wheelhouse")]
    ran = CliRunner().invoke(build_app(arguments), arguments)
    assert ran.exit_code == 1
    assert f"No wheel of {tmp_path / 'dist'} is in another place too" in ran.output


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
