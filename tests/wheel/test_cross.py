"""Builds for other platforms: what they refuse before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tools.build_wheel import BuildError, build
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
