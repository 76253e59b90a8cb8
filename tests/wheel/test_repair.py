"""The repair step: which wheels auditwheel and delvewheel let pass, and what is said of others."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheel_parts import Parts, zig_library

from tools.repair import RepairError, check_policy, repair
from tools.verify.expected import CHECKOUT


@pytest.mark.parametrize("tag", ["manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_5_aarch64"])
def test_a_tag_that_we_ship_is_taken(tag: str) -> None:
    assert check_policy("a.whl", {"external_libs": {}, "overall_tag": tag}) == tag


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("manylinux_2_29_x86_64", "newer than manylinux_2_28"),
        ("manylinux_3_0_x86_64", "newer than manylinux_2_28"),
        ("musllinux_1_2_x86_64", "only manylinux tags of the platforms in"),
        ("manylinux_2_17_i686", "only manylinux tags of the platforms in"),
    ],
)
def test_a_tag_that_we_do_not_ship_is_refused(tag: str, reason: str) -> None:
    with pytest.raises(RepairError, match=reason):
        check_policy("a.whl", {"external_libs": {}, "overall_tag": tag})


def test_a_foreign_library_is_named() -> None:
    report = {"external_libs": {"libtorch.so": None}, "overall_tag": "manylinux_2_17_x86_64"}
    with pytest.raises(RepairError, match=r"needs libtorch\.so, but the wheel carries no foreign library"):
        check_policy("a.whl", report)


def test_a_windows_wheel_stays_as_it_is(windows_parts: Parts, tmp_path: Path) -> None:
    built = windows_parts.build(tmp_path)
    done = run_repair(built, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / built.name).read_bytes() == built.read_bytes()


@pytest.mark.parametrize("name", ["msvcp140.dll", "VCRUNTIME140.dll", "cudart64_13.dll", "nvcuda.dll"])
def test_a_dll_that_windows_lacks_is_named(windows_parts: Parts, tmp_path: Path, name: str) -> None:
    library = zig_library(tmp_path, "x86_64-windows-gnu", imports=name)
    done = run_repair(windows_parts.but(library=library).build(tmp_path), tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: The launcher needs {name}, but the wheel bundles no DLL and needs none that a bare Windows "
        "lacks; link without it.\n"
    )
    assert not list((tmp_path / "out").iterdir())


def run_repair(wheel: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools", "repair", str(wheel), "--output", str(output)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)


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
