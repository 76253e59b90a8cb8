"""Wheels that are wrong as packages: tag, RECORD, metadata, size; and the command that says so."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner
from wheel_parts import KERNELS, LINUX_TAG, METADATA, Parts

from tools.__main__ import build_app
from tools.tables import LOG_WIDTH, table_console
from tools.verify import check_wheel
from tools.verify.cuobjdump import find_cuobjdump
from tools.verify.expected import CHECKOUT
from tools.verify.inspector import Inspector, Verdict
from tools.verify.problems import Problem, ToolMissingError
from tools.verify.report import as_json, judge, lines, show

Refused = Callable[[Parts], list[str]]
INFO = "flash_attn-2.9.0.dist-info/"


@pytest.mark.parametrize("tag", ["cp311-cp311", "cp311-abi3", "py3-abi3", "py2.py3-none"])
def test_tag_that_binds_to_a_python(parts: Parts, refused: Refused, tag: str) -> None:
    (line,) = refused(parts.but(tag=f"{tag}-{LINUX_TAG}"))
    assert line.startswith("the wheel is tagged ")
    assert line.endswith(", but must be py3-none: it binds to no Python")


def test_windows_wheel_for_one_python(windows_parts: Parts, refused: Refused) -> None:
    (line,) = refused(windows_parts.but(tag="cp311-cp311-win_amd64"))
    assert line.startswith("the wheel is tagged cp311-cp311")
    assert line.endswith(", but must be py3-none: it binds to no Python")


@pytest.mark.parametrize(
    "tag", ["any", "linux_x86_64", "musllinux_1_2_x86_64", "manylinux_2_17_x86_64.win_amd64"]
)
def test_platform_that_we_do_not_ship(parts: Parts, refused: Refused, tag: str) -> None:
    (line,) = refused(parts.but(tag=f"py3-none-{tag}"))
    assert line.startswith(f"the platform tag {tag} is none that we ship")


def test_tag_inside_is_another(parts: Parts, refused: Refused) -> None:
    wheel = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = refused(parts.but(files={f"{INFO}WHEEL": wheel}))
    assert lines == [
        f"the file name says py3-none-{LINUX_TAG}, but WHEEL inside says py3-none-any",
        "WHEEL does not say Root-Is-Purelib: false, which a shared library needs",
    ]


def test_record_with_a_wrong_hash(parts: Parts, refused: Refused) -> None:
    changed = b'__version__ = "2.9.0"\nimport evil\n'
    lines = refused(parts.but(tampered={"flash_attn/__init__.py": changed}))
    assert lines == ["flash_attn/__init__.py has not the hash and size that RECORD gives"]


def test_file_that_record_does_not_list(parts: Parts, refused: Refused) -> None:
    assert refused(parts.but(tampered={"flash_attn/more.py": b""})) == [
        "flash_attn/more.py is not listed in RECORD"
    ]


def test_record_missing_or_nonsense(parts: Parts, refused: Refused) -> None:
    assert refused(parts.but(files={f"{INFO}RECORD": None})) == []  # the factory then writes the right one
    lines = refused(parts.but(files={f"{INFO}RECORD": b"gone.py,sha256=x,1\nhalf a line\n"}))
    assert "RECORD lists gone.py, which is not in the wheel" in lines
    assert "RECORD has a line that is not path,hash,size: 'half a line'" in lines
    assert f"{INFO}METADATA is not listed in RECORD" in lines


def test_path_outside_site_packages(parts: Parts, refused: Refused) -> None:
    assert refused(parts.but(files={"../evil.py": b""})) == [
        "'../evil.py' would be unpacked outside site-packages"
    ]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("Version: 2.9.0", "Version: 2.9.1", "the file name says version 2.9.0, but METADATA says 2.9.1"),
        ("Name: flash-attn", "Name: flash", "METADATA names the project 'flash', not flash-attn"),
        (">=3.10", ">=3.9", "Requires-Python is '>=3.9'; it must be >=3.10"),
        (">=3.10", ">=3.10,<3.14", "Requires-Python is '>=3.10,<3.14'; it must be >=3.10"),
        ("torch>=2.10", "torch>=2.9", "the wheel requires torch>=2.9; it must require torch>=2.10"),
        ("torch>=2.10", "torch==2.11.0", "the wheel requires torch==2.11.0; it must require torch>=2.10"),
        (
            "Requires-Dist: torch>=2.10\n",
            "",
            "the wheel requires no torch at all; it must require torch>=2.10",
        ),
    ],
)
def test_metadata(parts: Parts, refused: Refused, old: str, new: str, sentence: str) -> None:
    assert refused(parts.but(metadata=METADATA.replace(old, new))) == [sentence]


def test_versions_that_differ(parts: Parts, refused: Refused) -> None:
    lines = refused(
        parts.but(manifest={"version": "2.8.3"}, files={"flash_attn/__init__.py": b'__version__ = "2.9.1"\n'})
    )
    assert lines == [
        "the file name says version 2.9.0, but flash_attn.__version__ says 2.9.1",
        "the file name says version 2.9.0, but manifest.json says 2.8.3",
    ]


def test_too_large(parts: Parts, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_wheel, "SIZE_LIMIT", 10_000)
    (line,) = refused(parts)
    assert line.startswith("the wheel has 0.1 MB; the limit is ")


@pytest.mark.parametrize(
    "name", ["flash_attn.libs/libz.so.1.2", "flash_attn/lib/extra.dll", "flash_attn_2_cuda.pyd"]
)
def test_foreign_library(parts: Parts, refused: Refused, name: str) -> None:
    assert refused(parts.but(files={name: b""})) == [f"{name} is a library that does not belong in the wheel"]


def test_no_wheel_at_all(inspector: Inspector, parts: Parts, tmp_path: Path) -> None:
    def message(path: Path) -> str:
        (problem,) = inspector.verify(path).problems
        return problem.message

    good = parts.build(tmp_path / "good")
    assert message(tmp_path / "none.txt").startswith("the file name is not that of a wheel")
    assert (
        message(tmp_path / good.name)
        == "it can't be opened (No such file or directory); build or copy it again"
    )
    cut = tmp_path / good.name
    data = good.read_bytes()
    for damaged in (b"", b"PK", data[: len(data) // 2], data[:100] + bytes(4000) + data[4100:]):
        cut.write_bytes(damaged)
        assert message(cut).startswith("it is not a whole zip file (")


def test_fatbins_of_several_wheels_are_the_same(
    parts: Parts,
    windows_parts: Parts,
    inspector: Inspector,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    linux = parts.build(tmp_path)
    windows = windows_parts.build(tmp_path)
    assert judge(inspector, [linux, windows], json_wanted=False) == 0
    other = windows_parts.but(fatbin=parts.kernels.fatbin("100", "90", "ptx")).build(tmp_path)
    assert judge(inspector, [linux, other], json_wanted=False) == 1
    fatbin = KERNELS + parts.kernels.fatbin_name
    assert (
        f"error: {fatbin} is not the same file in {linux.name} and in {other.name}\n"
        in capfd.readouterr().err
    )


def _run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools", *map(str, arguments)]
    return subprocess.run(
        command, cwd=CHECKOUT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


def test_command_shows_and_exits(parts: Parts, tmp_path: Path) -> None:
    wheel, listed = parts.build(tmp_path), parts.kernels.list_path
    done = _run("verify", wheel, "--kernels", listed, "--archs", "90", COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    assert parts.kernels.kernels[1].name in done.stdout
    assert "1 wheel verified: nothing is wrong." in done.stdout
    done = _run("verify", wheel, "--kernels", listed, "--archs", "90;86", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert not found["ok"]
    assert found["wheels"][0]["problems"][0] == {
        "check": "architectures",
        "message": "the manifest has 90, 100 but not architecture 86",
    }
    kernel = found["wheels"][0]["fatbins"][parts.kernels.fatbin_name]["sass"]["90"][
        parts.kernels.kernels[0].name
    ]
    assert 32 <= kernel["registers"] <= 255
    assert (
        done.stderr.splitlines()[0]
        == f"error: {wheel.name}: the manifest has 90, 100 but not architecture 86"
    )


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tools.__main__ import build_app; build_app([]); build_app(['verify', '--help']);"
        "print(sorted({'pefile', 'elftools', 'torch', 'rich.table'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n"
    assert "verify" in _run("--help").stdout


@pytest.mark.parametrize("archs", ["ninety", "90;x", "9", "", " ;, "])
@pytest.mark.parametrize("command", ["verify none.whl", "merge none --output merged"])
def test_bad_architecture(archs: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = [*command.split(), "--archs", archs]
    done = CliRunner().invoke(build_app(words), words)
    assert done.exit_code == 2
    said = "is no architecture" if archs.strip(" ;,") else f'"{archs}" names no architecture'
    assert f"{said}; expected numbers such as" in done.stderr


@pytest.mark.parametrize("width", [60, 200])
def test_every_figure_is_on_screen(inspector: Inspector, parts: Parts, tmp_path: Path, width: int) -> None:
    """A narrow terminal loses the tiles, and no figure."""
    verdict = inspector.verify(parts.build(tmp_path))
    shown = io.StringIO()
    show(Console(width=width, file=shown), verdict)
    rows = shown.getvalue().replace("\u2502", " ").splitlines()
    fatbin = verdict.fatbins[parts.kernels.fatbin_name]
    for kernel in parts.kernels.kernels:
        figures = [str(fatbin.sass[arch][kernel.name].registers) for arch in ("90", "100")]
        (row,) = (row.split() for row in rows if row.split()[:1] == [kernel.name])
        assert row[-3:] == [*figures, "yes"]
        assert ("warps," in row) == (width == 200)


def test_a_log_has_no_width_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "90")
    assert table_console().width == LOG_WIDTH
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    assert table_console().width == 90


def test_many_of_one_kind_are_counted() -> None:
    """The other kinds are not lost among them."""
    spilled = [f"kernel flash_{i} spills {i} bytes a thread on sm_90 (255 registers)" for i in range(900)]
    missing = [f"kernel fa_{i} has no SASS for sm_{arch} in f.fatbin" for i in range(5) for arch in (80, 90)]
    found = [Problem("x", text) for text in [*spilled, *missing, "no launcher"]]
    verdict = Verdict(Path("a.whl"), tuple(found))
    assert lines([verdict], ()) == [
        f"a.whl: {text}"
        for text in (
            *spilled[:4],
            "896 more of the kind of the line above; --json lists them all",
            *missing[::2],
            *missing[1::2],
            "no launcher",
        )
    ]
    assert len(as_json([verdict], ())["wheels"][0]["problems"]) == 911


def test_no_cuobjdump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tools.verify.cuobjdump.find_spec", lambda name: None)
    with pytest.raises(ToolMissingError, match="no cuobjdump with nvdisasm beside it"):
        find_cuobjdump()
