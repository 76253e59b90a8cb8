"""``python -m flash_attn``: what is installed, what the machine has, and whether the two fit."""

from __future__ import annotations

import platform
import sys

import flash_attn

from . import _launcher

OLDEST_CAPABILITY = 80
OLDEST_DRIVER = 13000  # of CUDA 13.0, as cuDriverGetVersion counts


def _dotted(number: int, parts: int) -> str:
    """90 as 9.0, 13010 as 13.1."""
    return f"{number // 10}.{number % 10}" if parts == 1 else f"{number // 1000}.{number % 1000 // 10}"


def installed() -> tuple[list[str], list[str]]:
    """Lines about the package, and what is wrong with it."""
    lines = [
        f"flash_attn {flash_attn.__version__}, Python {platform.python_version()} on {platform.platform()}"
    ]
    try:
        import torch

        lines.append(f"torch {torch.__version__}, built for CUDA {torch.version.cuda or 'none'}")
    except ImportError:
        return lines, ["torch is missing: install torch 2.10 or newer."]
    try:
        manifest = _launcher.manifest()
    except RuntimeError as error:
        return lines, [str(error)]
    kinds = [manifest.architectures.get(kind, []) for kind in ("sass", "ptx")]
    sass, ptx = (", ".join(kind) or "none" for kind in kinds)
    families = ", ".join(sorted(manifest.families))
    lines.append(f"kernels: {families}; SASS for {sass}, PTX for {ptx}; made with CUDA {manifest.toolkit}")
    if torch.version.cuda is None:
        return lines, ["This torch has no CUDA: install one that was built for CUDA 13."]
    return lines, []


def machine() -> tuple[list[str], list[str]]:
    """Lines about the driver and the GPUs, and what is wrong with them."""
    try:
        devices = _launcher.launcher().devices()
    except RuntimeError as error:
        return [], [str(error)]
    if not devices:
        return [], ["The driver shows no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES."]
    driver = devices[0].driver_version
    lines = [f"driver for CUDA {_dotted(driver, 2)}"]
    problems = []
    if driver < OLDEST_DRIVER:
        problems.append(f"The driver is for CUDA {_dotted(driver, 2)}: install one for CUDA 13.0 or newer.")
    for ordinal, device in enumerate(devices):
        capability = _dotted(device.compute_capability, 1)
        name = device.name.decode("utf-8", "replace")
        lines.append(
            f"GPU {ordinal}: {name}, compute capability {capability}, "
            f"{device.multiprocessors} multiprocessors, "
            f"{device.smem_per_block_optin // 1024} KB of shared memory a block"
        )
        if device.compute_capability < OLDEST_CAPABILITY:
            problems.append(
                f"GPU {ordinal} has compute capability {capability}: flash_attn needs 8.0 or newer."
            )
    return lines, problems


def main() -> int:
    lines, problems = installed()
    if not problems:
        more_lines, problems = machine()
        lines += more_lines
    print("\n".join(lines))
    for problem in problems:
        print(f"problem: {problem}")
    if not problems:
        print("flash_attn works on this machine.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
