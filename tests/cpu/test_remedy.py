"""How sentences tell to install flash_attn anew: with a command that can be copied as it is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from mock_driver import package
from mock_driver.isolated import isolated

import flash_attn
from flash_attn import _launcher, _remedy

ROOT = Path(__file__).parents[2]
NAMED = f"flash-attn=={flash_attn.__version__}"


def test_the_python_that_runs_is_named() -> None:
    assert _remedy.pip("list") == f"{_remedy.quoted(sys.executable)} -m pip list"
    portable = "C:\\ComfyUI_windows_portable\\python_embeded\\python.exe"
    assert _remedy.pip("list", portable) == f"{portable} -m pip list"
    assert _remedy.pip("list", "C:\\Comfy UI\\python.exe") == '"C:\\Comfy UI\\python.exe" -m pip list'
    wheel = "C:\\Downloads\\flash_attn (1).whl"
    assert _remedy.reinstall(wheel, portable) == (
        f"close every program that uses flash_attn and run {portable} -m pip install --force-reinstall "
        f'--no-deps "{wheel}"'
    )


def test_an_index_need_not_have_it() -> None:
    """As where pip's record is of another version than the files: the file it came from is not known."""
    assert _remedy.reinstall(NAMED, "python") == (
        f"close every program that uses flash_attn and run (with the wheel's file for {NAMED} where no index "
        f"has it) python -m pip install --force-reinstall --no-deps {NAMED}"
    )


def test_where_pip_is_missing_uv_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_remedy, "find_spec", lambda name: None)
    assert _remedy.pip("uninstall flash-attn", "/venv/python") == (
        "uv pip uninstall flash-attn --python /venv/python"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="the paths are those of Linux")
@pytest.mark.parametrize(
    ("version", "record", "origin"),
    [
        (None, {"url": "file:///home/a%20b/f%C3%BCr.whl", "archive_info": {}}, "/home/a b/für.whl"),
        (None, {"url": "file://server/share/a.whl", "archive_info": {}}, "//server/share/a.whl"),
        (None, {"url": "https://example.org/a.whl#sha256=1", "archive_info": {}}, None),
        (None, {"url": "file:///home/me/flash", "dir_info": {"editable": True}}, "/home/me/flash"),
        (None, {"url": "https://example.org/me/flash.git", "vcs_info": {"vcs": "git"}}, NAMED),
        ("2.8.3", {"url": "file:///home/me/old.whl", "archive_info": {}}, NAMED),
        (None, {"archive_info": {}}, NAMED),
        (None, [], NAMED),
        (None, "archive_info", NAMED),
        (None, None, NAMED),
    ],
)
def test_what_pip_was_given_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, record: object, origin: str | None
) -> None:
    version = version or flash_attn.__version__
    info = tmp_path / f"flash_attn-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {version}\n")
    if record is not None:
        (info / "direct_url.json").write_text(json.dumps(record))
    monkeypatch.syspath_prepend(tmp_path)
    if origin is None:
        assert isinstance(record, dict)
        origin = record["url"]
    assert _remedy.installed_from() == origin
    (info / "direct_url.json").write_bytes(b"\xff{")
    assert _remedy.installed_from() == NAMED


@isolated
def test_the_launcher_s_sentence_ends_in_the_command(tmp_path: str) -> None:
    package.pretend(Path(tmp_path) / "flash_attn")
    fatbin = Path(tmp_path) / "flash_attn/kernels/flash_fwd_hdim64_fp16.fatbin"
    fatbin.unlink()
    q = torch.zeros(1, 4, 2, 64, dtype=torch.float16)
    with pytest.raises(RuntimeError) as error:
        flash_attn.flash_attn_func(q, q, q)
    assert str(error.value) == f"The kernel file {fatbin} is missing: {_remedy.reinstall()}"


@isolated
def test_files_of_two_versions(tmp_path: str) -> None:
    package.pretend(Path(tmp_path) / "flash_attn")
    _launcher._abi.ABI_VERSION += 1
    with pytest.raises(RuntimeError, match="speaks interface version") as error:
        _launcher.launcher()
    assert str(error.value).endswith(f": {_remedy.reinstall()}")
    _launcher._abi.ABI_VERSION -= 1
    _launcher._abi.PROTOTYPES["flash_attn_new"] = (None, ())
    with pytest.raises(RuntimeError, match="has no flash_attn_new, so it is of another version") as error:
        _launcher.launcher()
    assert str(error.value).endswith(f": {_remedy.reinstall()}")


def test_nothing_else_words_it() -> None:
    """In C at the end of a sentence, where Python puts the command in its place; in Python nowhere."""
    words = [
        (path.name, found)
        for folder, kind in ((ROOT / "csrc/flash_attn/launch", "*.c"), (ROOT / "flash_attn", "*.py"))
        for path in sorted(folder.rglob(kind))
        for found in re.findall(r"[Rr]einstall flash.{0,6}", path.read_text(encoding="utf-8"))
    ]
    assert ("_remedy.py", 'reinstall flash-attn"') in words
    assert {found[:21] for name, found in words} == {'reinstall flash-attn"'}
    assert {name for name, found in words if name.endswith(".py")} == {"_remedy.py"}
    assert len(words) >= 4
