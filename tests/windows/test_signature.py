"""The check of python.exe's signature, which the making of each CPython relies on, sees what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windows import signature


def test_a_changed_program_is_refused(python: Any, tmp_path: Path) -> None:
    program = python.interpreter.folder / "python.exe"
    assert signature.problems(program) == []
    data = bytearray(program.read_bytes())
    data[5000] ^= 1
    changed = tmp_path / "python.exe"
    changed.write_bytes(data)
    (problem,) = signature.problems(changed)
    assert "is not what was signed" in problem


def test_another_signer_or_root_is_refused(python: Any, monkeypatch: Any) -> None:
    program = python.interpreter.folder / "python.exe"
    monkeypatch.setattr(signature, "SIGNER", "CN=Somebody Else")
    assert "was signed by" in signature.problems(program)[0]
    monkeypatch.undo()
    monkeypatch.setattr(signature, "ROOTS", {})
    assert "no known root" in signature.problems(program)[0]


def test_a_program_without_a_signature_is_refused(python: Any) -> None:
    library = python.interpreter.package / "lib/flash_attn.dll"
    assert signature.problems(library) == [f"{library} carries no signature"]
