"""What compute-sanitizer says of small inputs that run every kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu import every_kernel
from torch.profiler import ProfilerActivity, profile

from flash_attn import _launcher

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


@pytest.mark.skipif(SANITIZER is None, reason="no compute-sanitizer on PATH or in /usr/local/cuda/bin")
@pytest.mark.parametrize(
    ("tool", "dtype"), [("memcheck", "bf16"), ("memcheck", "fp16"), ("racecheck", "bf16")]
)
def test_sanitizer_finds_nothing(tool: str, dtype: str) -> None:
    assert SANITIZER is not None
    places = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
    ran = subprocess.run(
        [SANITIZER, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "gpu.every_kernel", dtype],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
    )
    report = ran.stdout + ran.stderr
    assert ran.returncode == 0, report[-4000:]
    assert "ERROR SUMMARY: 0 errors" in report or "RACECHECK SUMMARY: 0 hazards" in report, report[-4000:]


@pytest.mark.parametrize("dtype", every_kernel.TYPES)
def test_every_kernel_is_run(dtype: str) -> None:
    every_kernel.main(dtype)  # loads the fatbins, outside of the profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as run:
        every_kernel.main(dtype)
    kernels = {
        kernel["name"]
        for fatbin in _launcher.manifest().contents["fatbins"]
        for kernel in fatbin["kernels"]
        if kernel["dtype"] == dtype
    }
    assert kernels
    assert kernels - {event.name for event in run.events()} == set()
