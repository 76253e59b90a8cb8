"""The aarch64 launcher, run by an emulator over the mock driver, launches what this machine's does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from mock_driver import replay, toolchain
from mock_driver.kernel_table import write_fatbins, write_table

from tools.cross import targets, zig_program

LOADER = Path("/usr/aarch64-linux-gnu")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")

pytestmark = pytest.mark.skipif(
    EMULATOR is None or not LOADER.is_dir() or toolchain.compiler() is None,
    reason="aarch64 needs an emulator: apt-get install -y qemu-user-static libc6-arm64-cross",
)


def built(compiler: list[str], folder: Path) -> tuple[Path, Path, Path]:
    """Replay program, launcher and mock driver."""
    folder.mkdir()
    write_table(folder / "flash_attn_kernel_table.inc")
    launch = [path for path in sorted(toolchain.LAUNCHER.glob("*.c")) if not path.stem.endswith("_windows")]
    program, launcher, mock = folder / "replay", folder / "libflash_attn.so", folder / "libcuda.so.1"
    shared = ["-fPIC", "-shared"]
    for output, sources, options in (
        (program, [toolchain.MOCK / "replay.c"], []),
        (launcher, launch, shared),
        (mock, [toolchain.MOCK / "mock_cuda.c"], [*shared, "-Wl,-soname,libcuda.so.1"]),
    ):
        include = [f"-I{path}" for path in (toolchain.SOURCES, toolchain.LAUNCHER, folder)]
        command = [*compiler, *FLAGS, *include, *map(str, sources), *options, "-o", str(output), "-ldl"]
        done = subprocess.run([*command, "-lpthread"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    return program, launcher, mock


@pytest.mark.parametrize(
    "device", ["", "80,108,166912,41943040", "120,170,101376,100663296", "75,68,65536,5242880"]
)
def test_it_launches_what_this_machine_launches(
    both: tuple[tuple[Path, Path, Path], tuple[Path, Path, Path]],
    tmp_path: Path,
    device: str,
) -> None:
    digests = write_fatbins(tmp_path / "kernels")
    calls = replay.write_calls(tmp_path / "calls", digests, replay.sample_calls())
    devices = {"MOCK_CUDA_DEVICES": device} if device else {}
    native, emulated = (
        replay.run(runner, *files, tmp_path / "kernels", calls, **devices)
        for runner, files in zip(([], [EMULATOR, "-L", str(LOADER)]), both, strict=True)
    )
    assert len(native) >= len(replay.sample_calls())
    assert native == emulated
    refused = [line.startswith("error: ") for line in native]
    assert all(refused) if device.startswith("75") else sum(refused) == 4


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Path, Path, Path], tuple[Path, Path, Path]]:
    folder = tmp_path_factory.mktemp("launchers")
    zig = [str(zig_program()), "cc", "-target", targets()["manylinux_aarch64"].zig]
    native = toolchain.compiler()
    assert native is not None
    return built([native], folder / "native"), built(zig, folder / "aarch64")
