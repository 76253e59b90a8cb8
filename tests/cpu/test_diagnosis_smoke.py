"""The comparison of `python -m flash_attn`, here on the CPU with the reference as kernels."""

from __future__ import annotations

import time
from typing import Any

import torch
from mock_driver.isolated import isolated
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Dispatched(TorchDispatchMode):
    """Keeps calls from the direct way, which is for CUDA tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def compare(monkeypatched: dict[str, Any] | None = None) -> dict[str, bool]:
    """Whether each comparison came out right, with these functions of cpu_kernels in place of its own."""
    import cpu_kernels

    from flash_attn import _launcher

    for name, function in (monkeypatched or {}).items():
        setattr(cpu_kernels, name, function)
    library = cpu_kernels.register()
    _launcher.has_family = lambda family: True
    from flash_attn._diagnosis import smoke

    with Dispatched():
        found = {one.name: one.is_right for one in smoke.compare(torch.device("cpu"))}
    del library
    return found


@isolated
def test_right_kernels_are_right() -> None:
    found = compare()
    assert len(found) == 6
    assert all(found.values()), found


@isolated
def test_a_forward_that_is_a_little_off_is_wrong() -> None:
    import cpu_kernels

    right = cpu_kernels._forward

    def off(*arguments: Any) -> tuple[Tensor, ...]:
        out, *rest = right(*arguments)
        out[0, 3, 1, 5] += 0.05
        return out, *rest

    found = compare({"_forward": off})
    assert {name for name, is_right in found.items() if not is_right} == {
        name for name in found if name.startswith("forward")
    }


@isolated
def test_gradients_that_are_off_or_unwritten_are_wrong() -> None:
    import cpu_kernels

    right = cpu_kernels._backward

    def off(dout: Tensor, q: Tensor, *arguments: Any) -> Tensor:
        result = right(dout, q, *arguments)
        dv = arguments[6]
        if q.dtype == torch.float16:
            dv[1, 7, 0, 2] = float("nan")
        else:
            dv[1, 7, 0, 2] += 0.5
        return result

    found = compare({"_backward": off})
    assert {name for name, is_right in found.items() if not is_right} == {
        name for name in found if name.startswith("gradients")
    }


@isolated
def test_a_cache_that_is_off_is_wrong() -> None:
    import cpu_kernels

    right = cpu_kernels._with_kvcache

    def off(*arguments: Any) -> tuple[Tensor, Tensor]:
        out, lse = right(*arguments)
        return out * 1.1, lse

    found = compare({"_with_kvcache": off})
    assert {name for name, is_right in found.items() if not is_right} == {
        name for name in found if name.startswith("cache")
    }


class Clock:
    """In place of a CUDA event, which needs a GPU."""

    def __init__(self, enable_timing: bool) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Clock) -> float:
        return 1000 * (end.time - self.time)


@isolated
def test_speed_is_measured_beside_torch_and_without_its_flash_backend() -> None:
    import cpu_kernels

    from flash_attn import _launcher
    from flash_attn._diagnosis import smoke

    library = cpu_kernels.register()
    _launcher.has_family = lambda family: True
    torch.cuda.Event = Clock
    smoke.SPEED_BATCH, smoke.SPEED_SEQLEN, smoke.SPEED_HEADS = 1, 64, 2
    smoke.MILLISECONDS_PER_ROUND, smoke.ROUNDS = 0.1, 3
    with Dispatched():
        speed = smoke._speed(torch.device("cpu"))
        assert speed.backend == "flash backend"
        assert speed.note is None
        for milliseconds in (
            speed.forward_ms, speed.backward_ms, speed.torch_forward_ms, speed.torch_backward_ms
        ):  # fmt: skip
            assert milliseconds is not None
            assert milliseconds > 0
        operations = 2 * 2 * 64**2 * 128
        assert abs(speed.forward_tflops / (operations / speed.forward_ms / 1e9) - 1) < 1e-6
        backends = list(smoke._backends())

        def no_flash() -> Any:
            raise RuntimeError("No available kernel. Aborting execution.")

        smoke._backends = lambda: iter([("flash backend", no_flash), backends[1]])
        speed = smoke._speed(torch.device("cpu"))
        assert speed.backend == "default backend"
        assert speed.note == "no flash backend here: No available kernel. Aborting execution"
        smoke._backends = lambda: iter([("flash backend", no_flash)])
        speed = smoke._speed(torch.device("cpu"))
        assert speed.backend is None
        assert speed.torch_forward_ms is None
        assert speed.forward_ms > 0
    del library


def test_a_gpu_that_is_not_there_is_an_error_and_no_traceback() -> None:
    from flash_attn._diagnosis import smoke

    if torch.cuda.is_available():
        return
    run = smoke.run(0)
    assert run.error
    assert "\n" not in run.error
    assert not run.comparisons
