"""Facts for the verdicts of `python -m flash_attn`: a good machine, and what makes each problem the first."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from flash_attn import __version__
from flash_attn._diagnosis.facts import (
    Comparison,
    Distribution,
    Driver,
    Extension,
    Facts,
    Gpu,
    Kernels,
    Launcher,
    Package,
    Run,
    Torch,
)

PORTABLE = "C:\\ComfyUI_windows_portable\\python_embeded"
SITE_PACKAGES = f"{PORTABLE}\\Lib\\site-packages"
FOLDER = f"{SITE_PACKAGES}\\flash_attn"

LOCK = Path(__file__).parents[2] / "ci" / "build-requirements.txt"
VERSION = Version(__version__).base_version  # of the release to come, on a nightly too
TOOLKIT = re.findall(r"^nvidia-cuda-nvcc==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)[0]

HOPPER = Gpu(0, "NVIDIA H200", 90, 132, 227 * 1024)
RIGHT = Comparison("forward fp16, head dimension 64", 0.001, 0.004)
RUN = Run(0, (RIGHT,))

GOOD = Facts(
    package=Package(
        version=VERSION,
        folder=FOLDER,
        python="3.12.10",
        executable=f"{PORTABLE}\\python.exe",
        platform="Windows-11-10.0.26100-SP0",
        origin=f"C:\\ComfyUI_windows_portable\\flash_attn-{VERSION}-py3-none-win_amd64.whl",
        distributions=(Distribution(VERSION, SITE_PACKAGES, ("py3-none-win_amd64",)),),
        folders=(FOLDER,),
    ),
    torch=Torch("2.13.0+cu130", "13.0", f"{SITE_PACKAGES}\\torch", None, True),
    kernels=Kernels(
        folder=f"{FOLDER}\\kernels",
        toolkit=TOOLKIT,
        sass=("80", "90", "100", "110", "120"),
        ptx=("120",),
        families=("flash_bwd", "flash_fwd", "flash_fwd_splitkv"),
        files=36,
    ),
    launcher=Launcher(f"{FOLDER}\\lib\\flash_attn.dll"),
    driver=Driver(True, 13000, "581.29"),
    gpus=(HOPPER,),
    runs=(RUN,),
)


def _package(**changes: object) -> Facts:
    return replace(GOOD, package=replace(GOOD.package, **changes))


# Of a Python for all users: that of ComfyUI portable takes nothing from the user's folder.
_ALL_USERS = "C:\\Program Files\\Python312"
_USER = "C:\\Users\\Ada\\AppData\\Roaming\\Python\\Python312\\site-packages"

# By the code of the problem that comes first.
CASES: dict[str, Facts] = {
    "no_torch": replace(GOOD, torch=Torch(), runs=()),
    "broken_torch": replace(
        GOOD, torch=Torch("2.13.0+cu130", import_error="OSError: [WinError 126] c10.dll"), runs=()
    ),
    "old_torch": replace(GOOD, torch=replace(GOOD.torch, version="2.9.1+cu128", cuda="12.8")),
    "cpu_torch": replace(GOOD, torch=Torch("2.13.0+cpu", None, f"{SITE_PACKAGES}\\torch"), runs=()),
    "two_copies": _package(
        executable=f"{_ALL_USERS}\\python.exe",
        folders=(f"{_USER}\\flash_attn", f"{_ALL_USERS}\\Lib\\site-packages\\flash_attn"),
        folder=f"{_USER}\\flash_attn",
        distributions=(
            Distribution("2.8.3", _USER, ("cp312-cp312-win_amd64",)),
            Distribution(VERSION, f"{_ALL_USERS}\\Lib\\site-packages", ("py3-none-win_amd64",)),
        ),
    ),
    "mixed_versions": _package(
        distributions=(Distribution("2.8.3", SITE_PACKAGES, ("cp312-cp312-win_amd64",)),)
    ),
    "old_extension": _package(
        extensions=(Extension(f"{SITE_PACKAGES}\\flash_attn_2_cuda.cp312-win_amd64.pyd", True),)
    ),
    "no_kernels": replace(
        GOOD,
        kernels=Kernels(
            manifest_error=f"{FOLDER}\\kernels\\manifest.json is missing, so this flash_attn has no kernels: "
            "install a built wheel of flash-attn."
        ),
        launcher=Launcher(GOOD.launcher.path, "no manifest"),
        runs=(),
    ),
    "damaged_kernels": replace(
        GOOD,
        kernels=replace(
            GOOD.kernels, damaged=(f"The kernel file {FOLDER}\\kernels\\a.fatbin is missing", "another")
        ),
    ),
    "broken_launcher": replace(
        GOOD,
        launcher=Launcher(
            GOOD.launcher.path, f"{FOLDER}\\lib\\flash_attn.dll is missing: install a wheel of flash-attn"
        ),
        runs=(),
    ),
    "no_driver": replace(
        GOOD,
        driver=Driver(error="Could not find module 'C:\\Windows\\System32\\nvcuda.dll'"),
        gpus=(),
        runs=(),
    ),
    "old_driver": replace(GOOD, driver=Driver(True, 12090, "576.88"), runs=()),
    "broken_driver": replace(
        GOOD, driver=Driver(True, 13000, "581.29", "cuInit failed with error 803"), gpus=(), runs=()
    ),
    "no_gpu": replace(GOOD, gpus=(), runs=()),
    "old_gpu": replace(GOOD, gpus=(Gpu(0, "NVIDIA GeForce RTX 2080 Ti", 75, 68, 64 * 1024),), runs=()),
    "no_code": replace(GOOD, kernels=replace(GOOD.kernels, sass=("120",), ptx=())),
    "blind_torch": replace(
        GOOD, torch=replace(GOOD.torch, sees_gpus=False, cuda_error="No CUDA GPUs are available"), runs=()
    ),
    "not_run": replace(GOOD, runs=()),
    "kernel_failed": replace(GOOD, runs=(Run(0, error="cuLaunchKernel failed with CUDA_ERROR_UNKNOWN"),)),
    "wrong_result": replace(GOOD, runs=(Run(0, (RIGHT, Comparison("cache", 0.5, 0.01))),)),
}
