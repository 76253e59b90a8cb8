"""The files that hold the kernels: when they are loaded, and what happens when they are not right."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from mock_driver import driver, toolchain
from mock_driver.driver import MockDriver
from mock_driver.isolated import isolated
from mock_driver.kernel_table import fatbin_bytes, write_fatbins
from mock_driver.launcher import (
    BAD_KERNELS,
    CUDA_ERROR,
    INVALID_ARGUMENT,
    Launcher,
    LauncherError,
    append_args,
    bwd_args,
    fwd_args,
)

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")

FATBIN = "flash_fwd_hdim64_bf16.fatbin"


def start(*devices: driver.Device) -> tuple[MockDriver, Launcher]:
    return MockDriver(toolchain.mock_driver(), *(devices or (driver.HOPPER,))), Launcher(toolchain.launcher())


def refused(launcher: Launcher, sentence: str, args: object = None) -> None:
    with pytest.raises(LauncherError, match=sentence) as error:
        launcher.run(args or fwd_args())
    assert error.value.status == BAD_KERNELS


@isolated
def test_a_fatbin_is_loaded_once_and_when_it_is_needed(tmp_path: str) -> None:
    mock, launcher = start(driver.HOPPER, driver.RTX_4090)
    launcher.use_made_up_kernels(Path(tmp_path))
    launcher.plan(fwd_args())
    assert mock.load_count == 0
    for device in (0, 1, 0, 1):
        launcher.run(fwd_args(device=device))
        launcher.run(fwd_args(device=device, softcap=1.0))
    assert mock.load_count == 1
    assert mock.count("cuLibraryGetKernel") == 4  # two kernels, asked for by each device
    launcher.run(fwd_args(head_dim=96))
    assert mock.load_count == 2
    launcher.run_with_scratch(bwd_args())
    launcher.run(append_args())
    assert mock.load_count == 4


@isolated
def test_a_hot_call_asks_the_driver_for_nothing_but_the_launch(tmp_path: str) -> None:
    mock, launcher = start()
    launcher.use_made_up_kernels(Path(tmp_path))
    launcher.run(fwd_args(head_dim=192))
    calls = (
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuLaunchKernel",
        "cuLibraryLoadData",
        "cuLibraryGetKernel",
        "cuKernelSetAttribute",
        "cuKernelGetFunction",
        "cuDeviceGetAttribute",
        "cuDeviceGetCount",
        "cuThreadExchangeStreamCaptureMode",
        "cuDevicePrimaryCtxRetain",
        "cuInit",
    )
    before = {call: mock.count(call) for call in calls}
    launcher.run(fwd_args(head_dim=192))
    made = {call: mock.count(call) - before[call] for call in calls}
    assert {call: count for call, count in made.items() if count} == {
        "cuCtxGetCurrent": 1,
        "cuCtxSetCurrent": 2,
        "cuLaunchKernel": 1,
    }


@isolated
def test_shared_memory_is_asked_for_on_each_device(tmp_path: str) -> None:
    mock, launcher = start(driver.HOPPER, driver.AMPERE)
    launcher.use_made_up_kernels(Path(tmp_path))
    launcher.run(fwd_args(head_dim=32))  # 12 KB need no asking
    assert mock.count("cuKernelSetAttribute") == 0
    for device in (0, 1):
        launcher.run(fwd_args(head_dim=256, device=device))
    assert mock.count("cuKernelSetAttribute") == 2
    assert [(launch.device, launch.smem_bytes) for launch in mock.launches[1:]] == [(0, 131072), (1, 131072)]


@isolated
def test_missing(tmp_path: str) -> None:
    mock, launcher = start()
    folder = launcher.use_made_up_kernels(Path(tmp_path) / "k e r n é l s")
    (folder / FATBIN).rename(folder / "elsewhere")
    refused(launcher, f"The kernel file {folder}/{FATBIN} is missing: reinstall flash-attn")
    launcher.run(fwd_args(head_dim=96))  # the others are not affected
    (folder / "elsewhere").rename(folder / FATBIN)
    launcher.run(fwd_args())  # and it is found when it is back
    assert mock.launch_count == 2


@isolated
def test_missing_folder(tmp_path: str) -> None:
    _, launcher = start()
    launcher.set_kernels(Path(tmp_path) / "nowhere", {FATBIN: "0" * 64})
    refused(launcher, f"The kernel file {tmp_path}/nowhere/{FATBIN} is missing")


@isolated
def test_damaged_and_cut_short(tmp_path: str) -> None:
    mock, launcher = start()
    folder = launcher.use_made_up_kernels(Path(tmp_path))
    good = (folder / FATBIN).read_bytes()
    for bad in (
        good[:-1],
        good[: len(good) // 2],
        b"",
        good + b"\0",
        bytes([good[0] ^ 1]) + good[1:],
        good[:-1] + b"\xff",
    ):
        (folder / FATBIN).write_bytes(bad)
        found = hashlib.sha256(bad).hexdigest()
        expected = hashlib.sha256(good).hexdigest()
        refused(
            launcher,
            rf"The kernel file {folder}/{FATBIN} is damaged \(its {len(bad)} bytes have SHA-256 {found} "
            rf"instead of {expected}\): reinstall flash-attn",
        )
    assert mock.count("cuLibraryLoadData") == 0  # nothing of it reached the driver
    assert mock.launch_count == 0
    (folder / FATBIN).write_bytes(good)
    launcher.run(fwd_args())


@isolated
def test_unreadable(tmp_path: str) -> None:
    mock, launcher = start()
    folder = launcher.use_made_up_kernels(Path(tmp_path))
    (folder / FATBIN).unlink()
    (folder / FATBIN).mkdir()
    refused(
        launcher,
        rf"The kernel file {folder}/{FATBIN} can't be read \(system error \d+\): reinstall flash-attn",
    )
    (folder / FATBIN).rmdir()
    (folder / FATBIN).write_bytes(fatbin_bytes(FATBIN))
    (folder / FATBIN).chmod(0)
    if not os.access(folder / FATBIN, os.R_OK):  # root may read everything
        refused(launcher, rf"The kernel file {folder}/{FATBIN} may not be read \(permission denied\)")
    assert mock.launch_count == 0


@isolated
def test_unlisted_and_unknown_folder(tmp_path: str) -> None:
    _, launcher = start()
    refused(launcher, "The kernels' folder is not known: call flash_attn_set_kernels first")
    digests = write_fatbins(Path(tmp_path))
    del digests[FATBIN]
    launcher.set_kernels(tmp_path, digests)
    refused(
        launcher, f"The manifest in {tmp_path} does not list the kernel file {FATBIN}: reinstall flash-attn"
    )
    launcher.set_kernels(tmp_path, {})
    refused(launcher, "does not list the kernel file")


@isolated
def test_bytes_that_are_no_fatbin(tmp_path: str) -> None:
    mock, launcher = start()
    content = b"this is no fatbin"
    (Path(tmp_path) / FATBIN).write_bytes(content)
    launcher.set_kernels(tmp_path, {FATBIN: hashlib.sha256(content).hexdigest()})
    refused(launcher, rf"{FATBIN} is not what the CUDA driver expects \(cuLibraryLoadData gave error 200\)")
    assert mock.launch_count == 0


@isolated
def test_no_code_for_the_gpu(tmp_path: str) -> None:
    mock, launcher = start(driver.SPARK)
    folder = launcher.use_made_up_kernels(Path(tmp_path))
    for call, name in (
        ("cuLibraryLoadData", f"{folder}/{FATBIN}"),
        ("cuLibraryGetKernel", "flash_fwd_hdim64_bf16"),
        ("cuKernelGetFunction", "flash_fwd_hdim64_bf16"),
    ):
        for result in (209, 218, 221, 222, 223):
            mock.fail(call, result)
            refused(
                launcher,
                rf"{name} holds no code that GPU 0 \(compute capability 12\.1\) can run \({call} gave error "
                rf"{result}\): install a flash-attn wheel built for it, or a newer NVIDIA driver",
            )
        mock.fail(call, 0)
    mock.fail("cuLibraryGetKernel", 500)
    refused(launcher, "flash_fwd_hdim64_bf16 is not what the CUDA driver expects")
    assert mock.launch_count == 0


@isolated
def test_a_stage_that_fails_to_load_leaves_nothing_half_done(tmp_path: str) -> None:
    mock, launcher = start()
    launcher.use_made_up_kernels(Path(tmp_path))
    mock.fail("cuLibraryGetKernel", 2, successes=2)  # the third of the backward's kernels
    with pytest.raises(LauncherError, match="loading flash_bwd_hdim64_bf16_convert_dq") as error:
        launcher.run_with_scratch(bwd_args())
    assert error.value.status == CUDA_ERROR
    assert mock.launch_count == 0


@isolated
def test_lists_that_are_refused(tmp_path: str) -> None:
    mock, launcher = start()
    digest = "0" * 64
    for folder, digests, sentence in (
        ("", {}, "The kernels' folder is not given"),
        (tmp_path, {"": digest}, "Fatbin 0 is named"),
        (tmp_path, {"a": digest, "../b": digest}, 'Fatbin 1 is named "../b": it must be the name of a file'),
        (tmp_path, {"a\\b": digest}, "Fatbin 0 is named"),
        (tmp_path, {"a": digest[:-1]}, "The SHA-256 of a is .*: it must be 64 lowercase hexadecimal digits"),
        (tmp_path, {"a": digest + "0"}, "The SHA-256 of a is"),
        (tmp_path, {"a": "G" + digest[1:]}, "The SHA-256 of a is"),
    ):
        with pytest.raises(LauncherError, match=sentence) as error:
            launcher.set_kernels(folder, digests)
        assert error.value.status == INVALID_ARGUMENT
    for folder, entries, count in ((None, None, 0), (b"x", None, 1), (b"x", None, -1)):
        with pytest.raises(LauncherError) as error:
            launcher.call("flash_attn_set_kernels", folder, entries, count)
        assert error.value.status == INVALID_ARGUMENT
    launcher.use_made_up_kernels(Path(tmp_path))
    launcher.run(fwd_args())
    with pytest.raises(
        LauncherError, match="Kernels have already been loaded: set their folder before the first launch"
    ):
        launcher.use_made_up_kernels(Path(tmp_path))
    launcher.run(fwd_args(head_dim=96))
    assert mock.launch_count == 2


@isolated
def test_digests_of_every_length(tmp_path: str) -> None:
    """SHA-256 pads by the length modulo 64; with a right digest it is the driver that refuses the bytes."""
    _, launcher = start()
    for size in (54, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000, 1 << 20):
        content = bytes(i * 7 % 251 for i in range(size))
        (Path(tmp_path) / FATBIN).write_bytes(content)
        launcher.set_kernels(tmp_path, {FATBIN: hashlib.sha256(content).hexdigest()})
        refused(launcher, "is not what the CUDA driver expects")
