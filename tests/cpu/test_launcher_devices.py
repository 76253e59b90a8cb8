"""Which kernel and tile answer a call, by what the device can hold; and machines that can't answer at all."""

from __future__ import annotations

import ctypes.util
from pathlib import Path

import pytest
from mock_driver import driver, kernel_table, toolchain
from mock_driver.driver import DEVICES, ENTRY_POINTS, Device, MockDriver
from mock_driver.isolated import isolated
from mock_driver.launcher import (
    BF16,
    CUDA_ERROR,
    FP16,
    NO_DEVICE,
    NO_DRIVER,
    Launcher,
    LauncherError,
    append_args,
    bwd_args,
    fwd_args,
)

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")


def start(tmp_path: str, *devices: Device) -> tuple[MockDriver, Launcher]:
    mock = MockDriver(toolchain.mock_driver(), *devices)
    launcher = Launcher(toolchain.launcher())
    launcher.use_made_up_kernels(Path(tmp_path))
    return mock, launcher


def first_fitting(family: str, head_dim: int, smem_bytes: int) -> kernel_table.Tile:
    table_head_dim = next(d for d in kernel_table.HEAD_DIMS if d >= head_dim)
    return next(
        tile
        for tile in kernel_table.tiles(family, table_head_dim)
        if tile.smem_bytes + kernel_table.STATIC_SMEM <= smem_bytes
    )


@pytest.mark.parametrize(
    "index", range(len(DEVICES)), ids=[str(device.compute_capability) for device in DEVICES]
)
@isolated
def test_every_device_gets_the_first_tile_it_can_hold(index: int, tmp_path: str) -> None:
    device = DEVICES[index]
    mock, launcher = start(tmp_path, device)
    for head_dim in range(8, 257, 8):
        for dtype, dtype_name in ((FP16, "fp16"), (BF16, "bf16")):
            launcher.run(fwd_args(head_dim=head_dim, dtype=dtype))
            tile = first_fitting("flash_fwd", head_dim, device.smem_optin)
            launch = mock.launches[-1]
            assert launch.kernel == f"flash_fwd_hdim{tile.head_dim}_{dtype_name}{tile.suffix}"
            assert launch.smem_bytes == tile.smem_bytes
            assert launch.block == (tile.warps * 32, 1, 1)
            assert launch.decode().num_m_blocks == -(-300 // tile.block_m)
            launcher.run_with_scratch(bwd_args(head_dim=head_dim, dtype=dtype))
            tile = first_fitting("flash_bwd", head_dim, device.smem_optin)
            prefix = f"flash_bwd_hdim{tile.head_dim}_{dtype_name}"
            assert [launch.kernel for launch in mock.launches[-3:]] == [
                f"{prefix}_dot_do_o{tile.suffix}",
                f"{prefix}{tile.suffix}",
                f"{prefix}_convert_dq{tile.suffix}",
            ]


def test_the_table_has_tiles_that_devices_choose_between() -> None:
    chosen = {first_fitting("flash_fwd", 256, device.smem_optin) for device in DEVICES}
    assert len(chosen) == 2


@isolated
def test_smem_limit_gives_a_large_device_the_small_tiles(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER)
    launcher.run(fwd_args(head_dim=256))
    launcher.set_smem_limit(driver.RTX_4090.smem_optin)
    launcher.run(fwd_args(head_dim=256))
    launcher.set_smem_limit(0)
    launcher.run(fwd_args(head_dim=256))
    names = [launch.kernel for launch in mock.launches]
    assert names == ["flash_fwd_hdim256_bf16", "flash_fwd_hdim256_bf16_small", "flash_fwd_hdim256_bf16"]
    launcher.set_smem_limit(1 << 30)  # more than there is changes nothing
    assert launcher.plan(fwd_args(head_dim=256)).kernel == b"flash_fwd_hdim256_bf16"


@isolated
def test_smem_limit_below_every_tile(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER)
    launcher.set_smem_limit(4096)
    with pytest.raises(
        LauncherError, match="GPU 0 offers a block 4096 bytes of shared memory, too few"
    ) as error:
        launcher.run(fwd_args())
    assert error.value.status == NO_DEVICE
    with pytest.raises(LauncherError, match="limit is -1 bytes: it must be positive, or 0"):
        launcher.set_smem_limit(-1)
    assert mock.launch_count == 0


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
@isolated
def test_no_driver(tmp_path: str) -> None:
    launcher = Launcher(toolchain.launcher())
    launcher.use_made_up_kernels(Path(tmp_path))  # needs no driver
    assert launcher.library.flash_attn_abi_version() == 1
    for call in (launcher.device_count, lambda: launcher.device_info(0), lambda: launcher.run(fwd_args())):
        with pytest.raises(LauncherError, match="install the NVIDIA driver, version 580 or newer") as error:
            call()
        assert error.value.status == NO_DRIVER


@isolated
def test_a_driver_that_is_too_old(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER)
    mock.set_driver_version(12080)
    for _ in range(2):
        with pytest.raises(
            LauncherError, match=r"it supports CUDA 12\.8, and flash-attn needs driver 580 or newer"
        ) as error:
            launcher.run(fwd_args())
        assert error.value.status == NO_DRIVER
    assert mock.count("cuInit") == 0
    mock.set_driver_version(13000)  # nothing of the failure stays
    launcher.run(fwd_args())
    assert mock.launch_count == 1


@isolated
def test_a_driver_that_lacks_an_entry_point(tmp_path: str) -> None:
    for entry_point in ENTRY_POINTS:
        mock, launcher = start(tmp_path, driver.HOPPER)
        mock.hide(entry_point)
        with pytest.raises(
            LauncherError, match=rf"lacks the entry point {entry_point}: reinstall the NVIDIA driver"
        ) as error:
            launcher.run(fwd_args())
        assert error.value.status == NO_DRIVER


def test_a_driver_without_get_proc_address(tmp_path: Path) -> None:
    toolchain.mock_driver_without_get_proc_address()
    run_without_get_proc_address(tmp_path=tmp_path)


@isolated
def run_without_get_proc_address(tmp_path: str) -> None:
    MockDriver(toolchain.mock_driver_without_get_proc_address(), driver.HOPPER)
    launcher = Launcher(toolchain.launcher())
    with pytest.raises(LauncherError, match=r"lacks the entry point cuGetProcAddress_v2") as error:
        launcher.device_count()
    assert error.value.status == NO_DRIVER


@isolated
def test_no_gpu(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER)
    mock.library.mock_cuda_clear_devices()
    with pytest.raises(LauncherError, match="No NVIDIA GPU was found") as error:
        launcher.device_count()
    assert error.value.status == NO_DEVICE


@isolated
def test_a_gpu_that_is_too_old(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.TURING, driver.AMPERE)
    for args in (fwd_args(), bwd_args(), append_args()):
        with pytest.raises(
            LauncherError, match=r"GPU 0 \(NVIDIA GeForce RTX 2080 Ti\) has compute capability 7\.5"
        ) as error:
            launcher.run(args)
        assert error.value.status == NO_DEVICE
    assert launcher.device_info(0).compute_capability == 75  # diagnostics may still ask
    assert mock.launch_count == 0
    launcher.run(fwd_args(device=1))
    assert mock.launches[0].device == 1


@isolated
def test_a_gpu_that_is_not_there(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER)
    for device in (-1, 1, 63, 64, 1 << 30):
        for call in (
            lambda device=device: launcher.run(fwd_args(device=device)),
            lambda device=device: launcher.device_info(device),
        ):
            with pytest.raises(LauncherError, match=f"There is no GPU {device}") as error:
                call()
            assert error.value.status == NO_DEVICE
    assert mock.launch_count == 0


@isolated
def test_device_info(tmp_path: str) -> None:
    _, launcher = start(tmp_path, driver.RTX_5090, driver.SPARK)
    assert launcher.device_count() == 2
    for ordinal, device in enumerate((driver.RTX_5090, driver.SPARK)):
        info = launcher.device_info(ordinal)
        assert info.name.decode() == device.name
        assert info.driver_version == 13000
        assert info.compute_capability == device.compute_capability
        assert info.multiprocessors == device.multiprocessors
        assert info.smem_per_block_optin == device.smem_optin
        assert info.l2_bytes == device.l2_bytes


FAILURES = tuple(
    call for call in ENTRY_POINTS if not call.startswith("cuGetError") and call != "cuCtxSetCurrent"
)


@pytest.mark.parametrize("call", FAILURES)
@isolated
def test_every_call_that_fails_is_named_and_tried_again(call: str, tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER)
    mock.fail(call, 2)
    args = fwd_args(head_dim=192)  # its tile asks for shared memory
    with pytest.raises(LauncherError) as error:
        launcher.run(args)
    assert error.value.status == CUDA_ERROR
    assert str(error.value).startswith(
        f"{call} failed with CUDA_ERROR_OUT_OF_MEMORY (2, as the mock driver was told) while "
    )
    assert str(error.value).endswith(": free some GPU memory and call again")
    assert mock.launch_count == 0
    mock.fail(call, 0)
    launcher.run(args)
    assert mock.launch_count == 1
    assert mock.current_context is None


@isolated
def test_a_context_switch_that_fails(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER)
    mock.fail("cuCtxSetCurrent", 201)
    with pytest.raises(
        LauncherError, match=r"cuCtxSetCurrent failed with CUDA_ERROR_INVALID_CONTEXT"
    ) as error:
        launcher.run(fwd_args())
    assert error.value.status == CUDA_ERROR
    assert mock.launch_count == 0


@isolated
def test_what_to_do_depends_on_the_error(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER)
    for result, remedy in (
        (3, "CUDA_ERROR_NOT_INITIALIZED .*does not survive a fork"),
        (400, "CUDA_ERROR_INVALID_HANDLE .*the stream belongs to the tensors' GPU"),
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS .*a kernel that ran before has failed"),
        (1, "CUDA_ERROR_INVALID_VALUE .*nvidia-smi"),
        (12345, r"an unknown error \(12345"),
    ):
        mock.fail("cuLaunchKernel", result)
        with pytest.raises(LauncherError, match=f"cuLaunchKernel failed with {remedy}"):
            launcher.run(fwd_args())
    mock.fail("cuGetErrorName", 1)
    mock.fail("cuGetErrorString", 1)
    with pytest.raises(LauncherError, match=r"an unknown error \(12345, no description\)"):
        launcher.run(fwd_args())
