"""`python -m flash_attn` on a real GPU: kernels run, results are right, speed is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import flash_attn


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the flash_attn that these tests import lies; the command must run that one."""
    return Path(flash_attn.__file__).resolve().parents[1]


def run(folder: Path, *arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "flash_attn", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_exit_code_and_json(folder: Path) -> None:
    result = run(folder, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert found["ok"] is True
    assert found["problems"] == []
    assert Path(found["folder"]) == folder / "flash_attn"
    assert found["driver"]["is_found"]
    assert tuple(map(int, found["driver"]["cuda"].split("."))) >= (13, 0)
    assert found["torch"]["sees_gpus"]
    assert len(found["gpus"]) == torch.cuda.device_count()
    for gpu in found["gpus"]:
        major, minor = torch.cuda.get_device_capability(gpu["ordinal"])
        properties = torch.cuda.get_device_properties(gpu["ordinal"])
        assert gpu["name"] == properties.name
        assert gpu["compute_capability"] == f"{major}.{minor}"
        assert gpu["multiprocessors"] == properties.multi_processor_count
        if (major, minor) == (9, 0) and "90" in found["kernels"]["sass"]:
            assert gpu["code"] == "sm_90"
        comparisons = gpu["run"]["comparisons"]
        assert {one["name"].split()[0] for one in comparisons} == {"forward", "gradients", "cache"}
        assert all(one["is_right"] and one["error"] <= one["allowed"] for one in comparisons)
        assert gpu["run"]["error"] is None
        assert gpu["run"]["speed_error"] is None
        speed = gpu["run"]["speed"]
        assert speed["forward_ms"] > 0
        assert speed["backward_ms"] > speed["forward_ms"]
        assert speed["torch_forward_ms"] > 0
        assert speed["torch_backward_ms"] > 0
        assert speed["backend"] == "flash backend"


def test_text(folder: Path) -> None:
    result = run(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("verdict:")
    assert "works on this machine" in lines[-1]
    assert "times as fast" in result.stdout
    assert "WRONG" not in result.stdout


def test_without_the_gpu(folder: Path) -> None:
    result = run(folder, "--json", "--no-gpu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert all(gpu["run"] is None for gpu in json.loads(result.stdout)["gpus"])


def test_hidden_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = run(folder, "--json")
    assert result.returncode == 1
    assert [problem["code"] for problem in json.loads(result.stdout)["problems"]] == ["no_gpu"]
