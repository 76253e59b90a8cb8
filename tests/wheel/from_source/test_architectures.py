"""FLASH_ATTN_CUDA_ARCHS: what each list compiles for, and which lists stop the configure step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tools import build_wheel
from tools.compile_steps import BuildError
from tools.kernels import compile_shard
from tools.matrix.definition import definition


def targets(command: str) -> tuple[list[str], list[str]]:
    """The architectures that a compile command makes SASS and PTX for."""
    codes = [code for group in re.findall(r"code=\[([^\]]*)\]", command) for code in group.split(",")]
    sass = [code.removeprefix("sm_") for code in codes if code.startswith("sm_")]
    ptx = [code.removeprefix("compute_") for code in codes if code.startswith("compute_")]
    return sass, ptx


@pytest.mark.parametrize(
    ("asked", "sass", "ptx"),
    [
        ("80;90;100;110;120", ["80", "90", "100", "110", "120"], ["120"]),
        ("90", ["90"], ["90"]),
        ("86", ["86"], ["86"]),
        ("121", ["121"], ["121"]),
        ("120 80", ["80", "120"], ["120"]),
        ("80,90,80", ["80", "90"], ["90"]),
        ("90a", ["90a"], ["90"]),
        ("80;100f", ["80", "100f"], ["100"]),
    ],
)
@pytest.mark.parametrize("where", ["cache", "environment"])
def test_good_lists(stand_ins: Any, asked: str, sass: list[str], ptx: list[str], where: str) -> None:
    stand_ins.nvcc()
    nvcc = {"CUDACXX": str(stand_ins.folder / "nvcc")}
    if where == "cache":
        done = stand_ins.configure(f"FLASH_ATTN_CUDA_ARCHS={asked}", FLASH_ATTN_CUDA_ARCHS="80", **nvcc)
    else:
        done = stand_ins.configure(FLASH_ATTN_CUDA_ARCHS=asked, **nvcc)
    assert done.ok, done.text
    commands = done.commands(".cu")
    assert commands
    for command in commands:
        assert targets(command) == (sass, ptx)


def test_default_is_what_the_matrix_lists(stand_ins: Any) -> None:
    listed = list(definition().architectures)
    done = stand_ins.configure(CUDACXX=str(stand_ins.nvcc()))
    assert done.ok, done.text
    assert targets(done.commands(".cu")[0]) == (listed, [max(listed, key=int)])


@pytest.mark.parametrize("bad", ["75", "70;90", "91", "sm_90", "90+PTX", "9.0", "all", "999", "80;;banana"])
def test_bad_entries_stop_with_one_sentence(stand_ins: Any, bad: str) -> None:
    done = stand_ins.configure(f"FLASH_ATTN_CUDA_ARCHS={bad}", CUDACXX=str(stand_ins.nvcc()))
    assert not done.ok
    wrong = next(entry for entry in bad.split(";") if entry not in ("80", "90", ""))
    assert (
        f'FLASH_ATTN_CUDA_ARCHS has "{wrong}", which can\'t be compiled: nvcc 13.4.92 supports 80, 86, 90,'
        in done.text
    )
    assert done.text.count("CMake Error") == 1


@pytest.mark.parametrize("option", ["--archs", "--arch"])
def test_the_option_that_was_typed_is_blamed(
    stand_ins: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    for name in ("FLASH_ATTN_CUDA_ARCHS", "FLASH_ATTN_KERNELS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDACXX", str(stand_ins.nvcc()))
    monkeypatch.setenv("PATH", stand_ins.environment["PATH"])
    monkeypatch.setattr(build_wheel, "ROOT", tiny)
    sentence = f'^{option} has "70", which can\'t be compiled: nvcc 13.4.92 supports 80, '
    quiet = Console(quiet=True)
    if option == "--archs":
        with pytest.raises(BuildError, match=sentence):
            build_wheel.build("70", None, None, tmp_path, quiet)
    else:
        with pytest.raises(BuildError, match=sentence):
            compile_shard("70", None, tmp_path / "tree", quiet)


def test_an_empty_list_stops(stand_ins: Any) -> None:
    done = stand_ins.configure("FLASH_ATTN_CUDA_ARCHS= ,", CUDACXX=str(stand_ins.nvcc()))
    assert not done.ok
    assert "FLASH_ATTN_CUDA_ARCHS names no architecture: nvcc 13.4.92 supports 80," in done.text


def test_an_entry_that_only_a_newer_toolkit_knows(stand_ins: Any) -> None:
    older = stand_ins.nvcc(version="13.0.88", archs="75 80 90 100 110 120")
    done = stand_ins.configure("FLASH_ATTN_CUDA_ARCHS=121", CUDACXX=str(older))
    assert not done.ok
    assert 'has "121", which can\'t be compiled: nvcc 13.0.88 supports 80, 90, 100, 110, 120;' in done.text


def with_gpus(folder: Path, answer: str) -> None:
    smi = folder / "gpus" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\n{answer}\n")
    smi.chmod(0o755)


def test_native_is_what_the_machine_has(stand_ins: Any) -> None:
    with_gpus(stand_ins.folder, "printf '12.0\\n8.6\\n8.6\\n'")
    path = f"{stand_ins.folder / 'gpus'}:{stand_ins.environment['PATH']}"
    done = stand_ins.configure("FLASH_ATTN_CUDA_ARCHS=native", CUDACXX=str(stand_ins.nvcc()), PATH=path)
    assert done.ok, done.text
    assert targets(done.commands(".cu")[0]) == (["86", "120"], ["120"])


@pytest.mark.parametrize("answer", [None, "echo 'No devices were found'; exit 6"])
def test_native_without_a_gpu_stops(stand_ins: Any, answer: str | None) -> None:
    path = stand_ins.environment["PATH"]
    if answer is not None:
        with_gpus(stand_ins.folder, answer)
        path = f"{stand_ins.folder / 'gpus'}:{path}"
    done = stand_ins.configure("FLASH_ATTN_CUDA_ARCHS=native", CUDACXX=str(stand_ins.nvcc()), PATH=path)
    assert not done.ok
    assert 'has "native", but nvidia-smi finds no GPU on this machine' in done.text


def test_native_with_a_gpu_that_is_too_old_stops(stand_ins: Any) -> None:
    with_gpus(stand_ins.folder, "echo 7.5")
    path = f"{stand_ins.folder / 'gpus'}:{stand_ins.environment['PATH']}"
    done = stand_ins.configure("FLASH_ATTN_CUDA_ARCHS=native", CUDACXX=str(stand_ins.nvcc()), PATH=path)
    assert not done.ok
    assert 'has "75", which can\'t be compiled' in done.text
