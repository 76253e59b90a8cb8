"""Builds for other platforms: what they refuse before anything is compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from tools.build_wheel import BuildError, build, refuse_other_architectures
from tools.cross import environment_for, targets


def test_the_targets_are_those_of_the_wheels() -> None:
    assert set(targets()) >= {"manylinux_x86_64", "manylinux_aarch64", "win_amd64", "win_arm64"}
    for target in targets().values():
        environment = environment_for(target)
        assert Path(environment["FLASH_ATTN_ZIG"]).is_file()
        assert Path(environment["CMAKE_TOOLCHAIN_FILE"]).is_file()
        assert environment["FLASH_ATTN_ZIG_TARGET"] == target.zig
        assert ("windows" in target.zig) == target.name.startswith("win")


def test_a_cross_build_without_fatbins_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLASH_ATTN_KERNELS_DIR", raising=False)
    with pytest.raises(BuildError, match=r"^A wheel for win_amd64 takes ready fatbins"):
        build(None, None, targets()["win_amd64"], tmp_path, Console())


@pytest.mark.parametrize("archs", ["", " ; "])
def test_no_architecture_is_not_all_of_them(tmp_path: Path, archs: str) -> None:
    with pytest.raises(BuildError, match="names no architecture; leave it out or name one"):
        build(archs, None, None, tmp_path, Console())


@pytest.mark.parametrize(("archs", "refused"), [("80", True), ("90;120", False), ("120, 90", False)])
def test_ready_fatbins_for_other_architectures_are_not_taken_in_silence(
    tmp_path: Path, archs: str, refused: bool
) -> None:
    manifest = {"architectures": {"sass": ["90", "120"], "ptx": ["120"]}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    if not refused:
        refuse_other_architectures(archs, tmp_path)
        return
    with pytest.raises(BuildError, match=r'^--archs asks for "80", but the ready .* 120, 90: '):
        refuse_other_architectures(archs, tmp_path)
