"""One small selection that reaches every kernel, and what compute-sanitizer says of it."""

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


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_kernel_is_reached(dtype: str) -> None:
    installed = {
        kernel["name"]
        for fatbin in _launcher.manifest().contents["fatbins"]
        for kernel in fatbin["kernels"]
        if kernel["dtype"] == dtype
    }
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        every_kernel.main(dtype)
    launched = {event.key for event in trace.key_averages()}
    assert installed
    missing = sorted(installed - launched)
    assert not missing, f"{len(missing)} of {len(installed)} kernels weren't launched: {' '.join(missing)}"


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
