"""The launcher of an aarch64 wheel, run by an emulator over the mock driver, does as this machine's does."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mock_driver import installed, replay, toolchain
from mock_driver.driver import DEVICES, ENTRY_POINTS
from mock_driver.launcher import fwd_args
from rich.console import Console

from tools.build_wheel import build
from tools.cross import targets, zig_program
from tools.repair import repair

LOADER = Path("/usr/aarch64-linux-gnu")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
TARGET = targets()["manylinux_aarch64"]
PACKAGE = installed.package()
FATBIN = "flash_fwd_hdim64_bf16.fatbin"

pytestmark = [
    pytest.mark.skipif(
        EMULATOR is None or not LOADER.is_dir() or toolchain.compiler() is None,
        reason="aarch64 needs an emulator: apt-get install -y qemu-user-static libc6-arm64-cross",
    ),
    pytest.mark.skipif(PACKAGE is None, reason="no built flash_attn is installed"),
]


@dataclass(frozen=True)
class Machine:
    """A launcher and what runs it."""

    runner: list[str]
    program: Path
    launcher: Path
    mock: Path
    mock_without_get_proc_address: Path

    def replay(self, mock: Path, kernels: Path, calls: Path, **variables: str) -> list[str]:
        return replay.run(self.runner, self.program, self.launcher, mock, kernels, calls, **variables)


def machine(runner: list[str], compiler: list[str], launcher: Path, folder: Path) -> Machine:
    """Builds the program that makes the calls, and the mock driver, for the compiler's target."""
    mocks = [folder / name / "libcuda.so.1" for name in ("whole", "incomplete")]
    shared = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    without = "-DMOCK_CUDA_WITHOUT_GET_PROC_ADDRESS"
    for output, source, options in (
        (folder / "replay", "replay.c", []),
        (mocks[0], "mock_cuda.c", shared),
        (mocks[1], "mock_cuda.c", [*shared, without]),
    ):
        output.parent.mkdir(parents=True, exist_ok=True)
        include = [f"-I{path}" for path in (toolchain.SOURCES, toolchain.LAUNCHER)]
        command = [
            *compiler,
            "-std=c11",
            "-O3",
            "-DNDEBUG",
            "-s",
            "-Wall",
            "-Wextra",
            "-Werror",
            *include,
            *options,
        ]
        command += [str(toolchain.MOCK / source), "-o", str(output), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    return Machine(runner, folder / "replay", launcher, *mocks)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a real wheel for aarch64 holds, with the kernels of the installed one."""
    assert PACKAGE is not None
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASH_ATTN_KERNELS_DIR", str(PACKAGE / "kernels"))
        built = build(None, None, TARGET, folder / "built", Console(quiet=True))
    wheel = repair(built.wheel, None, folder)
    assert wheel.stem.endswith("_aarch64")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "flash_attn"


@pytest.fixture(scope="module")
def machines(package: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Machine]:
    """This one and aarch64."""
    assert PACKAGE is not None
    folder = tmp_path_factory.mktemp("machines")
    native, zig = [str(toolchain.compiler())], [str(zig_program()), "cc", "-target", TARGET.zig]
    emulator = [str(EMULATOR), "-L", str(LOADER)]
    return (
        machine([], native, installed.library(PACKAGE), folder / "native"),
        machine(emulator, zig, installed.library(package), folder / "aarch64"),
    )


@pytest.fixture(scope="module")
def manifest(package: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((package / "kernels/manifest.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def digests(manifest: dict[str, Any]) -> dict[str, str]:
    return {fatbin["name"]: fatbin["sha256"] for fatbin in manifest["fatbins"]}


def test_it_loads_every_fatbin_and_launches_every_kernel_as_this_machine_does(
    machines: tuple[Machine, Machine],
    package: Path,
    manifest: dict[str, Any],
    digests: dict[str, str],
    tmp_path: Path,
) -> None:
    calls = replay.write_calls(tmp_path / "calls", digests, replay.every_kernel(len(DEVICES)))
    devices = ";".join(
        f"{one.compute_capability},{one.multiprocessors},{one.smem_optin},{one.l2_bytes}" for one in DEVICES
    )
    native, emulated = (
        one.replay(one.mock, package / "kernels", calls, MOCK_CUDA_DEVICES=devices) for one in machines
    )
    assert emulated == native
    first_words = [line.split()[0] for line in emulated]
    kernels = {kernel["name"] for fatbin in manifest["fatbins"] for kernel in fatbin["kernels"]}
    assert set(first_words) == {*kernels, "error:", "loaded"}
    loaded = [int(line.split()[1]) for line in emulated if line.startswith("loaded ")]
    assert sorted(loaded) == sorted(fatbin["size"] for fatbin in manifest["fatbins"])


BAD_DRIVERS = {
    **{name: ({"MOCK_CUDA_HIDE": name}, f"lacks the entry point {name}: reinst") for name in ENTRY_POINTS},
    "too old": ({"MOCK_CUDA_DRIVER_VERSION": "12080"}, "it supports CUDA 12.8, and flash-attn needs driver"),
    "no device": ({"MOCK_CUDA_DEVICES": ""}, "No NVIDIA GPU was found"),
    "too old a GPU": ({"MOCK_CUDA_DEVICES": "75,68,65536,5242880"}, "has compute capability 7.5"),
    "out of memory": ({"MOCK_CUDA_FAIL": "cuLaunchKernel=2"}, "cuLaunchKernel failed with CUDA_ERROR_OUT_OF"),
}


@pytest.mark.parametrize("case", BAD_DRIVERS)
def test_a_bad_driver_ends_in_the_same_sentence(
    machines: tuple[Machine, Machine], package: Path, digests: dict[str, str], tmp_path: Path, case: str
) -> None:
    variables, sentence = BAD_DRIVERS[case]
    calls = replay.write_calls(tmp_path / "calls", digests, [fwd_args()])
    native, emulated = (one.replay(one.mock, package / "kernels", calls, **variables) for one in machines)
    assert emulated == native
    assert emulated[0].startswith("error: ")
    assert sentence in emulated[0]


def test_a_driver_without_get_proc_address_ends_in_the_same_sentence(
    machines: tuple[Machine, Machine], package: Path, digests: dict[str, str], tmp_path: Path
) -> None:
    calls = replay.write_calls(tmp_path / "calls", digests, [fwd_args()])
    native, emulated = (
        one.replay(one.mock_without_get_proc_address, package / "kernels", calls) for one in machines
    )
    assert emulated == native
    (line,) = emulated
    assert line.startswith(
        "error: The CUDA driver (libcuda.so.1) lacks the entry point cuGetProcAddress_v2: "
    )


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("missing", "is missing: reinstall flash-attn"),
        ("cut", "is damaged (its 1000 bytes have SHA-256 "),
        ("folder", "can't be read (system error 21): reinstall flash-attn"),
        ("unlisted", f"does not list the kernel file {FATBIN}: reinstall flash-attn"),
    ],
)
def test_a_bad_fatbin_ends_in_the_same_sentence(
    machines: tuple[Machine, Machine],
    package: Path,
    digests: dict[str, str],
    tmp_path: Path,
    case: str,
    sentence: str,
) -> None:
    bad = tmp_path / "kernels" / FATBIN
    bad.parent.mkdir()
    listed = dict(digests)
    if case == "cut":
        bad.write_bytes((package / "kernels" / FATBIN).read_bytes()[:1000])
    elif case == "folder":
        bad.mkdir()
    elif case == "unlisted":
        del listed[FATBIN]
    calls = replay.write_calls(tmp_path / "calls", listed, [fwd_args()])
    native, emulated = (one.replay(one.mock, bad.parent, calls) for one in machines)
    assert emulated == native
    (line,) = emulated
    assert line.startswith("error: ")
    assert str(bad) in line or case == "unlisted"
    assert sentence in line
