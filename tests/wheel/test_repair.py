"""The repair step: which of auditwheel's answers make a wheel that is shipped, what is said of others."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools.repair import RepairError, check_policy, repair


@pytest.mark.parametrize("tag", ["manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_5_aarch64"])
def test_a_tag_that_we_ship_is_taken(tag: str) -> None:
    assert check_policy("a.whl", {"external_libs": {}, "overall_tag": tag}) == tag


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("manylinux_2_29_x86_64", "newer than manylinux_2_28"),
        ("manylinux_3_0_x86_64", "newer than manylinux_2_28"),
        ("musllinux_1_2_x86_64", "only manylinux tags are shipped"),
        ("linux_x86_64", "only manylinux tags are shipped"),
    ],
)
def test_a_tag_that_we_do_not_ship_is_refused(tag: str, reason: str) -> None:
    with pytest.raises(RepairError, match=reason):
        check_policy("a.whl", {"external_libs": {}, "overall_tag": tag})


def test_a_foreign_library_is_named() -> None:
    report = {"external_libs": {"libtorch.so": None}, "overall_tag": "manylinux_2_17_x86_64"}
    with pytest.raises(RepairError, match=r"needs libtorch\.so, but the wheel carries no foreign library"):
        check_policy("a.whl", report)


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "flash_attn-2.9.0-py3-none-win_amd64.whl"
    broken.write_bytes(b"no zip")
    with pytest.raises(RepairError, match=r"is not a whole zip file .*; name a wheel that the build left"):
        repair(broken, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_windows_wheel_without_its_library_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "flash_attn-2.9.0-py3-none-win_amd64.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("flash_attn/__init__.py", "")
    with pytest.raises(RepairError, match=r"holds no flash_attn/lib/flash_attn\.dll"):
        repair(empty, None, tmp_path / "out")
