"""The check of CPython's signatures, which the making of each CPython relies on, sees what is wrong."""

from __future__ import annotations

import shutil
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


def test_a_changed_dll_of_python_is_refused(python: Any, tmp_path: Path) -> None:
    minor = python.interpreter.kind.minor.replace(".", "")
    names = ("python.exe", "python3.dll", f"python{minor}.dll")
    for name in names:
        shutil.copy(python.interpreter.folder / name, tmp_path)
    assert signature.problems_of_python(tmp_path) == []
    for name in names[1:]:
        changed = tmp_path / name
        whole = changed.read_bytes()
        changed.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        (problem,) = signature.problems_of_python(tmp_path)
        assert problem.startswith(f"{changed} is not what was signed")
        changed.write_bytes(whole)
    shutil.copy(python.interpreter.package / "lib/flash_attn.dll", tmp_path / "python3.dll")
    assert signature.problems_of_python(tmp_path) == [f"{tmp_path / 'python3.dll'} carries no signature"]


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
