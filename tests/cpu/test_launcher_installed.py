"""The installed launcher with its own kernels: each is loaded from its fatbin and launched on each device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mock_driver import driver, installed, toolchain
from mock_driver import launcher as at
from mock_driver.driver import DEVICES, MockDriver
from mock_driver.isolated import isolated
from mock_driver.kernel_table import STATIC_SMEM
from mock_driver.launcher import Launcher, append_args, bwd_args, fwd_args

PACKAGE = installed.package()
pytestmark = [
    pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler"),
    pytest.mark.skipif(PACKAGE is None, reason="no built flash_attn is installed"),
]

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {  # what makes the launcher take a variant
    "flash_fwd": {
        "plain": {},
        "softcap": {"softcap": 20.0},
        "dropout": {"dropout_p": 0.5, "rng_state": at.RNG},
    },
    "flash_fwd_splitkv": {"plain": {}, "softcap": {"softcap": 20.0}},
    "flash_bwd": {"plain": {}, "modified": {"softcap": 20.0}},
}
Kernel = dict[str, Any]  # as the manifest lists it
DTYPES = {"fp16": at.FP16, "bf16": at.BF16}


def start(package: str, device: driver.Device) -> tuple[MockDriver, Launcher, list[Kernel]]:
    mock = MockDriver(toolchain.mock_driver(), device)
    launcher = Launcher(installed.library(Path(package)))
    manifest = launcher.use_installed_kernels(Path(package))
    return mock, launcher, [kernel for fatbin in manifest["fatbins"] for kernel in fatbin["kernels"]]


def questions(kernels: list[Kernel]) -> Iterator[tuple[str, str, str, int]]:
    """Every family, variant and dtype that the kernels know, with every head dimension."""
    for family, variants in VARIANTS.items():
        for variant in variants:
            for dtype in DTYPES:
                if any((k["family"], k["variant"], k["dtype"]) == (family, variant, dtype) for k in kernels):
                    for head_dim in range(8, 257, 8):
                        yield family, variant, dtype, head_dim


def ask(
    launcher: Launcher, family: str, variant: str, dtype: str, head_dim: int, seqlen_q: int = 100
) -> None:
    changes = {"head_dim": head_dim, "dtype": DTYPES[dtype], **VARIANTS[family][variant]}
    if family == "flash_bwd":
        launcher.run_with_scratch(bwd_args(**changes))
    else:
        splits = 2 if family == "flash_fwd_splitkv" else 1
        launcher.run_with_scratch(fwd_args(seqlen_q=seqlen_q, num_splits=splits, **changes))


def fitting(kernels: list[Kernel], question: tuple[str, str, str, int], smem: int) -> list[Kernel]:
    """The kernels that may answer, in the list's order: those of the smallest head dimension that fit."""
    family, variant, dtype, head_dim = question
    wanted = [
        kernel
        for kernel in kernels
        if (kernel["family"], kernel["variant"], kernel["dtype"]) == (family, variant, dtype)
        and kernel["head_dim"] >= head_dim
        and kernel["smem_bytes"] + STATIC_SMEM <= smem
    ]
    smallest = min(kernel["head_dim"] for kernel in wanted)
    return [kernel for kernel in wanted if kernel["head_dim"] == smallest]


@pytest.mark.parametrize(
    "index", range(len(DEVICES)), ids=[str(device.compute_capability) for device in DEVICES]
)
def test_every_device_has_an_answer_to_every_question(index: int) -> None:
    answer_every_question(package=str(PACKAGE), index=index)


@isolated
def answer_every_question(package: str, index: int) -> None:
    device = DEVICES[index]
    mock, launcher, kernels = start(package, device)
    asked = 0
    for question in questions(kernels):
        family, variant, dtype, head_dim = question
        before = mock.launch_count
        ask(launcher, family, variant, dtype, head_dim)
        launches = mock.launches[before:]
        main = launches[1] if family == "flash_bwd" else launches[0]
        may_answer = fitting(kernels, question, device.smem_optin)
        # Splitting the keys has a tile for few rows too, which these calls have not.
        expected = next((kernel for kernel in may_answer if kernel["block_m"] > 16), may_answer[0])
        assert main.kernel == expected["name"]
        assert main.smem_bytes == expected["smem_bytes"]
        assert main.block == (expected["warps"] * 32, 1, 1)
        asked += 1
    assert asked >= 2 * 32 * 3  # the forward at least


def test_every_kernel_is_loaded_and_launched() -> None:
    launch_every_kernel(package=str(PACKAGE))


@isolated
def launch_every_kernel(package: str) -> None:
    mock, launcher, kernels = start(package, driver.HOPPER)
    limits = sorted({kernel["smem_bytes"] + STATIC_SMEM for kernel in kernels}, reverse=True)
    for limit in limits:
        launcher.set_smem_limit(limit)
        for question in questions(kernels):
            if question[3] in {kernel["head_dim"] for kernel in kernels}:
                try:
                    for seqlen_q in (1, 100):
                        ask(launcher, *question, seqlen_q=seqlen_q)
                except at.LauncherError as error:
                    if error.status != at.NO_DEVICE:  # a limit below the smallest tile
                        raise
    launcher.set_smem_limit(0)
    if any(kernel["variant"] == "append" for kernel in kernels):
        for head_dim in {kernel["head_dim"] for kernel in kernels}:
            for dtype in DTYPES.values():
                launcher.run(append_args(head_dim=head_dim, dtype=dtype))
    launched = {launch.kernel for launch in mock.launches}
    assert launched == {kernel["name"] for kernel in kernels}
    manifest = json.loads((Path(package) / "kernels/manifest.json").read_text(encoding="utf-8"))
    assert sorted(mock.loaded_bytes) == sorted(fatbin["size"] for fatbin in manifest["fatbins"])
