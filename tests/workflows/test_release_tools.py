"""What release and nightly workflows ask of ``python -m tools``: bad tags, days and states are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tools.__main__ import build_app

INIT = '"""Attention."""\n\n__version__ = "2.9.0"\n\nother = "2.9.0"\n'
CHANGES = "# Changelog\n\n## 2.9.0, 2026-12-24\n\n- Fast.\n\n## 2.8.0, 2025-01-01\n\n- Slow.\n"
COMMIT, OTHER = "a" * 40, "b" * 40


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands take for their checkout."""
    monkeypatch.setattr("tools.release.project_version.ROOT", tmp_path)
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text(INIT)
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    return tmp_path


def run(*words: str | Path) -> Any:
    command = list(map(str, words))
    return CliRunner().invoke(build_app(command), command)


def refused(*words: str | Path) -> str:
    ran = run(*words)
    assert ran.exit_code == 1, ran
    assert isinstance(ran.exception, SystemExit), ran.exception
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr


def version_of(tree: Path) -> str:
    return (tree / "flash_attn" / "__init__.py").read_text()


def test_a_nightly_changes_the_literal_and_nothing_else(tree: Path) -> None:
    ran = run("version", "--dev", "20261202")
    assert (ran.exit_code, ran.stdout) == (0, "2.9.0.dev20261202\n")
    assert version_of(tree) == INIT.replace('__version__ = "2.9.0"', '__version__ = "2.9.0.dev20261202"')


@pytest.mark.parametrize(
    "day",
    [
        "",
        "2026-12-02",
        "20261302",
        "20260230",
        "\u0662\u0660\u0662\u0666\u0661\u0662\u0660\u0662",
        "20261202; ls",
    ],
)
def test_what_is_no_day_is_refused(tree: Path, day: str) -> None:
    assert "day" in refused("version", "--dev", day)
    assert version_of(tree) == INIT


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (INIT.replace("2.9.0", "2.9.0.dev20261201"), "a nightly is made of a finished one"),
        (INIT * 2, "has 2 lines"),
        ("", "has 0 lines"),
        (INIT.replace("2.9.0", "two"), "has version 'two', which is none"),
    ],
)
def test_a_tree_without_one_finished_version_is_refused(tree: Path, text: str, said: str) -> None:
    (tree / "flash_attn" / "__init__.py").write_text(text)
    assert said in refused("version", "--dev", "20261202")
    assert version_of(tree) == text


@pytest.mark.parametrize("tag", ["v2.9.1", "2.9.0", "v2.9", "v2.9.0.post1", "V2.9.0", ""])
def test_a_tag_that_is_not_the_version_is_refused(tree: Path, tag: str) -> None:
    said = refused("release", "--tag", tag, "--notes", tree / "notes.md")
    assert f"The tag is {tag!r}" in said
    assert "version 2.9.0" in said
    assert not (tree / "notes.md").exists()


def test_notes_are_the_section_of_the_version(tree: Path) -> None:
    ran = run("release", "--tag", "v2.9.0", "--notes", tree / "notes.md")
    assert ran.exit_code == 0, ran.stderr
    assert (tree / "notes.md").read_text() == "- Fast.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CHANGES.replace(", 2026-12-24", ", not released yet"), "gives no day"),
        (CHANGES.replace("2.9.0", "2.9.1"), "has no section"),
        (CHANGES.replace("- Fast.\n", ""), "is empty"),
        (CHANGES.replace("2026-12-24", "2026-99-99"), "gives no day"),
        (CHANGES.replace("2026-12-24", "20261224"), "gives no day"),
        ("", "has no section"),
        ("# Changelog\n", "has no section"),
        ("\udcff", "can't be read ('utf-8' codec"),
    ],
)
def test_a_changelog_that_says_nothing_is_refused(tree: Path, text: str, said: str) -> None:
    (tree / "CHANGELOG.md").write_bytes(text.encode(errors="surrogateescape"))
    assert said in refused("release", "--tag", "v2.9.0")


def test_notes_that_can_not_be_written(tree: Path) -> None:
    words = ("release", "--tag", "v2.9.0", "--notes")
    said = refused(*words, tree / "none" / "notes.md")
    assert "notes.md can't be written (No such file or directory); name another file." in said
    assert f"{tree} can't be written (Is a directory)" in refused(*words, tree)


def test_a_changelog_that_is_no_file(tree: Path) -> None:
    (tree / "CHANGELOG.md").unlink()
    assert "can't be read (No such file or directory); the notes" in refused("release", "--tag", "v2.9.0")


def test_a_release_without_all_files_is_refused(tree: Path) -> None:
    from tools.index.distribution import Distribution
    from tools.release.notes import ReleaseError, check_complete, table

    def file(name: str, *platforms: str, version: str = "2.9.0") -> Distribution:
        from packaging.version import Version

        return Distribution(Path(name), Version(version), platforms, "0" * 64, 12_340_000, None, (), None)

    linux = file("l.whl", "manylinux2014_x86_64", "manylinux_2_17_x86_64")
    windows, source = file("w.whl", "win_amd64"), file("s.tar.gz")
    platforms = ("manylinux_x86_64", "win_amd64")
    check_complete([linux, windows, source], "2.9.0", platforms)
    assert "| `l.whl` | 12.34 MB |" in table([linux, windows, source])
    for files, said in (
        ([linux, source], "0 wheels for win_amd64"),
        ([linux, linux, windows, source], "2 wheels for manylinux_x86_64"),
        ([linux, windows], "0 source distributions"),
        ([linux, windows, source, file("m.whl", "macosx_14_0_arm64")], "for no platform"),
        ([linux, windows, source, file("o.whl", "win_amd64", version="2.8.0")], "of version 2.8.0"),
    ):
        with pytest.raises(ReleaseError, match=said):
            check_complete(files, "2.9.0", platforms)


def published(folder: Path, day: str, commit: str) -> None:
    materials = [{"name": "sources", "digest": {"gitCommit": commit}}, {"name": "nvcc"}]
    statement = {"predicate": {"buildDefinition": {"resolvedDependencies": materials}}}
    name = f"flash_attn-2.9.0.dev{day}-py3-none-manylinux_2_17_x86_64.whl.provenance.json"
    (folder / name).write_text(json.dumps(statement))


@pytest.mark.parametrize(
    ("nightlies", "due", "why"),
    [
        ({}, True, "No nightly"),
        ({"20261201": COMMIT}, False, "Nothing has changed"),
        ({"20261201": OTHER}, True, "was made of commit bbbb"),
        ({"20261130": COMMIT, "20261201": OTHER}, True, "was made of commit bbbb"),
        ({"20261130": OTHER, "20261201": COMMIT}, False, "Nothing has changed"),
        ({"20261126": COMMIT}, False, "Nothing has changed"),
        ({"20261125": COMMIT}, True, "a week ago"),
    ],
)
def test_a_nightly_is_due_when_something_changed(
    tree: Path, nightlies: dict[str, str], due: bool, why: str
) -> None:
    for day, commit in nightlies.items():
        published(tree, day, commit)
    ran = run("nightly", tree, "--commit", COMMIT, "--today", "20261202")
    assert (ran.exit_code, ran.stdout) == (0, f"due={str(due).lower()}\ndev=20261202\n")
    assert why in ran.stderr


def test_a_state_that_says_nothing_is_refused(tree: Path) -> None:
    assert "is no folder" in refused("nightly", tree / "gone", "--commit", COMMIT)
    assert "is no commit" in refused("nightly", tree, "--commit", "main")
    assert "no day" in refused("nightly", tree, "--commit", COMMIT, "--today", "20261302")
    assert "no day" in refused("nightly", tree, "--commit", COMMIT, "--today", "")
    (tree / "flash_attn-2.9.0.dev20261201-py3-none-win_amd64.whl.provenance.json").write_text("[]")
    assert "is no provenance" in refused("nightly", tree, "--commit", COMMIT)
