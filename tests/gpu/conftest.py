"""GPU tests need a CUDA device and built kernels; without one they are skipped, and say so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
ELSEWHERE = [place for place in sys.path if Path(place).resolve() != CHECKOUT]
if not (CHECKOUT / "flash_attn" / "kernels").is_dir() and PathFinder.find_spec("flash_attn", ELSEWHERE):
    # The built package is what is tested; the sources beside these tests have no kernels.
    sys.path[:] = ELSEWHERE

SMALL_SMEM = 99 * 1024  # what a block may use on compute capability 8.6, 8.9, 12.0 and 12.1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None if torch.cuda.is_available() else "no CUDA device"
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def small_tiles() -> Iterator[None]:
    """Runs the tiles of a GPU with little shared memory."""
    from flash_attn import _launcher

    _launcher.launcher().set_smem_limit(SMALL_SMEM)
    yield
    _launcher.launcher().set_smem_limit(0)


@pytest.fixture
def subtests_fail() -> Iterator[list[str]]:
    """Collects what went wrong in a loop, so that one test shows every case that fails."""
    failures: list[str] = []
    yield failures
    assert not failures, "\n".join(failures)
