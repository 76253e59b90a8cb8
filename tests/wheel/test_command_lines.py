"""Every command, given what is no wheel, no folder or no document: one line, status 1, nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from plain_wheel import plain_wheel
from typer.testing import CliRunner

from tools.__main__ import build_app
from tools.kernels import command as kernels
from tools.trust.source import Source

ROOT = Path(__file__).resolve().parents[2]
NAME = "flash_attn-2.9.0-py3-none-win_amd64.whl"
COMMIT = "a" * 40
Make = Callable[[Path], None]


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """attest looks at its wheels, whatever is not yet committed here."""
    monkeypatch.setattr("tools.trust.source.read_source", lambda root: Source(tmp_path, COMMIT, "0" * 64))


def run(*arguments: object) -> Any:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(build_app(words), words)


def refused(*arguments: object) -> str:
    """What the command says; it has to be one line, and no surprise to the command."""
    ran = run(*arguments)
    assert ran.exit_code == 1, ran.output
    assert isinstance(ran.exception, SystemExit), ran.exception
    said = ran.stderr.removesuffix("\n")
    assert said.startswith("error: ")
    assert said.isprintable()
    assert ran.stdout == ""
    return said


def cut_short(path: Path) -> None:
    whole = plain_wheel(path.parent)
    path.write_bytes(whole.read_bytes()[:300])
    if whole != path:
        whole.unlink()


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def bomb(path: Path) -> None:
    """Says of itself that it unpacks to 4 GiB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(1000))
    data = path.read_bytes()
    path.write_bytes(data.replace((1000).to_bytes(4, "little"), b"\xff\xff\xff\xfe"))


BAD: dict[str, Make] = {
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "text": lambda path: path.write_bytes(b"hello\n"),  # type: ignore[func-returns-value]
    "cut": cut_short,
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "huge": huge,
    "bomb": bomb,
}
if hasattr(os, "mkfifo"):
    BAD["pipe"] = os.mkfifo
    BAD["endless"] = lambda path: path.symlink_to("/dev/zero")

JUDGES = {
    "attest": lambda path, output: ("attest", path),
    "index": lambda path, output: ("index", path, "--output", output),
    "provenance": lambda path, output: ("verify", "--provenance", path),
    "repair": lambda path, output: ("repair", path, "--output", output),
    "same": lambda path, output: ("same", path),
}


@pytest.mark.parametrize("command", JUDGES)
@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_wheel(tmp_path: Path, bad: str, command: str) -> None:
    folder, output = tmp_path / "with space", tmp_path / "output"
    folder.mkdir()
    BAD[bad](folder / NAME)
    before = {path.name for path in folder.iterdir()}
    said = refused(*JUDGES[command](folder / NAME, output))
    if (bad, command) == ("folder", "index") or (bad, command) == ("folder", "same"):
        assert str(folder / NAME) in said
    else:
        assert NAME in said
    assert not output.exists()
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "name", ["a\nb.whl", "x.whl", "flash_attn-2.9.0-py3-none-win\u00e9.whl", "\n.tar.gz"]
)
@pytest.mark.parametrize("command", ["attest", "index", "repair", "same"])
def test_names_that_no_wheel_has(tmp_path: Path, name: str, command: str) -> None:
    path = tmp_path / name
    path.write_bytes(plain_wheel(tmp_path / "made").read_bytes())
    said = refused(*JUDGES[command](path, tmp_path / "output"))
    assert str(tmp_path) in said
    assert not (tmp_path / "output").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"flash_attn-2.9.0-py3-none-\xff.whl")
    path.write_bytes(plain_wheel(tmp_path / "made").read_bytes())
    for command in ("attest", "index", "repair", "same"):
        assert r"py3-none-\udcff.whl" in refused(*JUDGES[command](path, tmp_path / "output"))
    assert not (tmp_path / "output").exists()


def test_no_name_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # which some commands take it for
    for command in JUDGES.values():
        refused(*command("", "output"))


def test_an_output_that_is_a_file(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.touch()
    path = plain_wheel(tmp_path / "made")
    assert str(output) in refused("repair", path, "--output", output)
    assert str(output) in refused("index", path, "--output", output)
    assert output.read_bytes() == b""


def test_an_output_among_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that fills a folder takes none that holds something else, and says so before it works."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "windows.md").write_text("# Windows\n")
    (tmp_path / "docs" / "other.fatbin").write_text("")
    output = ("--output", tmp_path / "docs")
    said = f"{tmp_path / 'docs'} holds windows.md, which no set of kernels has; name a folder that is empty,"
    assert said in refused("merge", tmp_path / "shard", *output)
    assert "holds other.fatbin, which no index has" in refused("index", plain_wheel(tmp_path / "x"), *output)
    with pytest.raises(typer.Exit):
        kernels("90", output=tmp_path / "docs")
    assert said in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == ["other.fatbin", "windows.md"]


@pytest.mark.skipif(os.name == "nt", reason="links want a privilege on Windows")
def test_a_link_in_a_circle(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert f"{loop} is no folder" in refused("merge", tmp_path, "--output", loop)
    assert f"{loop} is no folder" in refused("index", plain_wheel(tmp_path / "x"), "--output", loop)
    assert "manifest.json can't be read" in refused("merge", loop, "--output", tmp_path / "merged")


def test_two_words_about_one_version(tmp_path: Path) -> None:
    path, output = plain_wheel(tmp_path / "made"), tmp_path / "index"
    said = refused("index", path, "--output", output, "--yank", "2.9.0=slow", "--unyank", "2.9.0")
    assert "name 2.9.0 more than once" in said
    said = refused("index", path, "--output", output, "--yank", "2.9.0=slow", "--yank", " 2.9.0 =wrong")
    assert "name 2.9.0 more than once" in said
    assert not output.exists()


DEEP = "[" * 100_000
DOCUMENTS = ["", "\0", "{", "[]", "3", '"text"', "null", "{}", '{"schema": 1}', DEEP, "\udcff"]


@pytest.mark.parametrize("content", DOCUMENTS, ids=[repr(text[:15]) for text in DOCUMENTS])
def test_documents_of_another_form(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tree may be a nightly's, of which no other nightly is made.
    monkeypatch.setattr("tools.release.project_version.read_version", lambda root: "2.9.0")
    data = content.encode(errors="surrogateescape")
    shard, nightlies, output = tmp_path / "shard", tmp_path / "nightlies", tmp_path / "output"
    for path in (
        shard / "manifest.json", nightlies / "x.dev20261201-x.provenance.json",
        tmp_path / f"{NAME}.provenance.json",
        output / "simple" / "flash-attn" / "index.json", tmp_path / "run.json", tmp_path / "matrix.toml",
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    wheel = plain_wheel(tmp_path / "made").rename(tmp_path / NAME)
    assert str(shard / "manifest.json") in refused("merge", shard, "--output", tmp_path / "merged")
    assert str(nightlies) in refused("nightly", nightlies, "--commit", COMMIT)
    assert f"{NAME}.provenance.json" in refused("verify", "--provenance", wheel)
    (tmp_path / f"{NAME}.provenance.json").unlink()
    assert "index.json" in refused("index", wheel, "--output", output)
    assert "matrix.toml: " in refused("matrix", "--event", "release", "--file", tmp_path / "matrix.toml")
    assert "run.json" in refused("bench", "--from", tmp_path / "run.json")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("broken", [{"sass": {"90": 1}}, {"sass": "90"}, {"ptx": [1]}, {"ptx": None}, {}])
def test_a_shard_whose_architectures_are_odd(tmp_path: Path, broken: dict[str, object]) -> None:
    manifest = {
        **dict.fromkeys(("version", "source_sha256", "toolkit", "flags", "families"), ""),
        "schema": 1, "fatbins": [], "architectures": broken and {"sass": ["90"], "ptx": ["90"], **broken},
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    said = refused("merge", tmp_path, "--output", tmp_path / "merged")
    assert "manifest.json is no manifest of this project's schema 1" in said


def test_a_run_of_another_form(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    head = {"schema": 1, "device": "x", "torch": "x", "flash_attn": "x", "dtype": "bf16"}
    for sections in ([], 3, {"forward": 3}, {"forward": [{"a": 1}]}, {"forward": [{"speedup": 0.0}]}):
        path.write_text(json.dumps({**head, "sections": sections}))
        ran = run("bench", "--from", path)
        assert ran.exit_code == 1, sections
        assert f"{path} is no run of this benchmark" in ran.stderr
    assert "is a folder; name a file" in refused("bench", "--from", path, "--json", tmp_path)


WITHOUT = """
import runpy, sys
absent, module, *sys.argv[1:] = sys.argv[1:]
sys.modules[absent] = None
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("absent", "arguments"),
    [
        ("typer", "tools verify {wheel}"),
        ("rich", "tools matrix --event release"),
        ("packaging", "tools version"),
        ("pefile", "tools verify {wheel}"),
        ("elftools", "tools verify {wheel}"),
        ("jinja2", "tools index {wheel} --output {output}"),
        ("cyclonedx", "tools attest {wheel}"),
        ("torch", "tools bench"),
        ("torch", "tools.bench"),
    ],
)
def test_a_package_that_is_not_installed(tmp_path: Path, absent: str, arguments: str) -> None:
    wheel, output = plain_wheel(tmp_path / "made"), tmp_path / "output"
    words = [word.format(wheel=wheel, output=output) for word in arguments.split()]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, absent, *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1), ran.stderr
    if absent == "torch":
        assert ": PyTorch can't be imported here (import of torch halted" in ran.stderr
    else:
        assert ran.stderr.startswith(f"error: The Python package of {absent} is not installed here (")
        assert "run pip install -r ci/tools.txt" in ran.stderr
    assert not output.exists()


def test_a_file_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is measured; a full disk is no traceback either."""
    path = tmp_path / "none" / "run.json"
    assert f"{tmp_path / 'none'} is no folder; name a file in one" in refused("bench", "--json", path)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr("tools.release.project_version.ROOT", tmp_path)
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text('__version__ = "2.9.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## 2.9.0, 2026-12-24\n\n- Fast.\n")
    for words in (
        ("version", "--dev", "20261201"),
        ("release", "--tag", "v2.9.0", "--notes", tmp_path / "notes.md"),
    ):
        assert "can't be written (No space left on device); name another file." in refused(*words)


def test_a_list_of_kernels_that_is_none(tmp_path: Path) -> None:
    wheel = plain_wheel(tmp_path)
    said = refused("verify", wheel, "--kernels", tmp_path / "none.json")
    assert said == f"error: {tmp_path / 'none.json'} can't be read (No such file or directory); " + (
        "name a list of kernels."
    )
    assert "is no list of kernels" in refused("verify", wheel, "--kernels", wheel)


def test_a_summary_that_can_not_be_written(tmp_path: Path) -> None:
    said = refused("verify", plain_wheel(tmp_path), "--summary", tmp_path / "none" / "summary.md")
    assert f"{tmp_path / 'none' / 'summary.md'} can't be written" in said
