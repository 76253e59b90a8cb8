"""Time of GPU work and of host work, several candidates side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Work = Callable[[], object]

ROUNDS = 9
WARM_UPS = 5
SECONDS_PER_ROUND = 0.012
HOST_CALLS = 300  # fewer than the launches that a stream queues before the host waits for it


def _elapsed(work: Work, repeats: int) -> float:
    """Seconds of GPU time a call."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / repeats


def gpu_seconds(candidates: Sequence[Work], rounds: int = ROUNDS) -> list[float]:
    """Median seconds a call of each candidate, measured in turns so that clocks and heat hit all alike."""
    for work in candidates:
        for _ in range(WARM_UPS):
            work()
    torch.cuda.synchronize()
    repeats = [max(2, int(SECONDS_PER_ROUND / max(_elapsed(work, 3), 1e-6))) for work in candidates]
    samples: list[list[float]] = [[] for _ in candidates]
    for _ in range(rounds):
        for index, work in enumerate(candidates):
            samples[index].append(_elapsed(work, repeats[index]))
    return [statistics.median(sample) for sample in samples]


def host_seconds(work: Work, rounds: int = 30) -> float:
    """Median seconds that the host spends in a call, the GPU's work aside."""
    samples = []
    for _ in range(rounds):
        work()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            work()
        samples.append((time.perf_counter() - start) / HOST_CALLS)
        torch.cuda.synchronize()
    return statistics.median(samples)
