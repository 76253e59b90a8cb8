"""Runs kernels on a GPU, compares their results with fp32, and times them beside PyTorch's own attention."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .. import _backward, _kvcache, _launcher
from ..flash_attn_interface import flash_attn_func, flash_attn_with_kvcache
from .facts import Comparison, Run, Speed
from .installed import one_line

# A result is right when its error is at most this many times that of plain PyTorch in the same type.
FORWARD_FACTOR, GRADIENT_FACTOR = 2.0, 3.0
CASES = ((torch.float16, 64), (torch.bfloat16, 128))
BATCH, SEQLEN_Q, SEQLEN_K, HEADS, HEADS_K = 2, 130, 201, 4, 2

SPEED_BATCH, SPEED_SEQLEN, SPEED_HEADS, SPEED_DIM = 4, 2048, 16, 128
SPEED_SHAPE = f"bf16, causal, batch {SPEED_BATCH}, {SPEED_SEQLEN} tokens, {SPEED_HEADS} heads of {SPEED_DIM}"
ROUNDS, WARM_UPS = 9, 3
MILLISECONDS_PER_ROUND = 10.0

Work = Callable[[], object]


def run(gpu: int, with_speed: bool = True) -> Run:
    """Never raises: what goes wrong is what is reported."""
    comparisons: list[Comparison] = []
    try:
        with torch.cuda.device(gpu):
            comparisons.extend(compare(torch.device("cuda", gpu)))
    except Exception as error:
        return Run(gpu, tuple(comparisons), one_line(error))
    if not with_speed or not all(one.is_right for one in comparisons):
        return Run(gpu, tuple(comparisons))
    try:
        with torch.cuda.device(gpu):
            return Run(gpu, tuple(comparisons), speed=_speed(torch.device("cuda", gpu)))
    except Exception as error:
        return Run(gpu, tuple(comparisons), speed_error=one_line(error))


# ---- right or wrong ----


def compare(device: torch.device) -> Iterator[Comparison]:
    """Forward, gradients and decoding from a cache, as far as the installed kernels go."""
    for dtype, head_dim in CASES:
        generator = torch.Generator().manual_seed(head_dim)
        q, k, v, dout = (
            torch.randn(BATCH, rows, heads, head_dim, generator=generator).to(dtype).to(device)
            for rows, heads in (
                (SEQLEN_Q, HEADS),
                (SEQLEN_K, HEADS_K),
                (SEQLEN_K, HEADS_K),
                (SEQLEN_Q, HEADS),
            )
        )
        name = f"{'fp16' if dtype == torch.float16 else 'bf16'}, head dimension {head_dim}"
        yield from _forward_and_gradients(name, q, k, v, dout)
        if _launcher.has_family(_kvcache.FAMILY):
            query = q[:, :1].contiguous()
            found = flash_attn_with_kvcache(query, k, v, cache_seqlens=SEQLEN_K, causal=True)
            yield _comparison(f"cache {name}", found, *_references(query, k, v))


def _forward_and_gradients(name: str, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> Iterator[Comparison]:
    if not _launcher.has_family(_backward.FAMILY):
        yield _comparison(f"forward {name}", flash_attn_func(q, k, v, causal=True), *_references(q, k, v))
        return
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = flash_attn_func(inputs[0], inputs[1], inputs[2], causal=True)
    found = torch.autograd.grad(out, inputs, dout)
    exact, plain = _gradients_of_references(inputs, dout)
    yield _comparison(f"forward {name}", out, exact[0], plain[0])
    # The worst of the three gradients, by how much of what is allowed it uses.
    all_three = [
        _comparison(f"gradients {name}", *three, GRADIENT_FACTOR)
        for three in zip(found, exact[1:], plain[1:], strict=True)
    ]
    yield max(all_three, key=lambda one: (not one.is_right, one.error / one.allowed))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention in plain PyTorch, in the type of its inputs."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(
        1 + k.shape[-2] - q.shape[-2]
    )
    out: Tensor = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return out.transpose(1, 2)


def _references(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """In fp32 on the CPU, and in the type of the inputs where they are."""
    with torch.no_grad():
        return attention(*(x.detach().float().cpu() for x in (q, k, v))), attention(q, k, v)


def _gradients_of_references(inputs: Sequence[Tensor], dout: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """out, dq, dk, dv of both."""
    results = []
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x.detach().float().cpu(),
        lambda x: x.detach().clone(),
    )
    for change in changes:
        own = [change(x).requires_grad_() for x in inputs]
        out = attention(*own)
        results.append([out.detach(), *torch.autograd.grad(out, own, change(dout))])
    return results[0], results[1]


def _comparison(
    name: str, found: Tensor, exact: Tensor, plain: Tensor, factor: float = FORWARD_FACTOR
) -> Comparison:
    small = torch.finfo(found.dtype).eps / 2 * max(1.0, exact.abs().max().item())
    error, plain_error = (
        (x.detach().float().cpu() - exact).abs().max().item() if x.isfinite().all() else float("inf")
        for x in (found, plain)
    )
    return Comparison(name, error, factor * (plain_error if plain_error < float("inf") else 0) + small)


# ---- speed ----


def _speed(device: torch.device) -> Speed:
    q, k, v, dout = (
        torch.randn(
            SPEED_BATCH, SPEED_SEQLEN, SPEED_HEADS, SPEED_DIM, dtype=torch.bfloat16, device=device
        ).requires_grad_()
        for _ in range(4)
    )
    own = _Timed(lambda: flash_attn_func(q, k, v, causal=True), (q, k, v), dout)
    q_first, k_first, v_first = (x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v))
    note, backend, other = None, None, None
    for name, context in _backends():
        candidate = _Timed(
            lambda: torch.nn.functional.scaled_dot_product_attention(
                q_first, k_first, v_first, is_causal=True
            ),
            (q_first, k_first, v_first),
            dout.transpose(1, 2),
            context,
        )
        try:
            candidate.forward()
        except RuntimeError as error:
            note = f"no {name} here: {one_line(error)}"
            continue
        backend, other = name, candidate
        break
    timed = [own] if other is None else [own, other]
    forward = _median_milliseconds([one.forward for one in timed])
    backward: list[float | None] = [None] * len(timed)
    if _launcher.has_family(_backward.FAMILY):
        backward = [*_median_milliseconds([one.prepare_backward() for one in timed])]
    # Causal: half of 4 · batch · heads · seqlen² · headdim.
    operations = 2 * SPEED_BATCH * SPEED_HEADS * SPEED_SEQLEN**2 * SPEED_DIM
    return Speed(
        shape=SPEED_SHAPE,
        forward_ms=forward[0],
        backward_ms=backward[0],
        forward_tflops=operations / forward[0] / 1e9,
        backend=backend,
        torch_forward_ms=forward[1] if other else None,
        torch_backward_ms=backward[1] if other else None,
        note=note,
    )


def _backends() -> Iterator[tuple[str, Callable[[], AbstractContextManager[Any]]]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    yield "flash backend", lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    yield "default backend", nullcontext


class _Timed:
    """An attention call, its forward and its backward apart."""

    def __init__(
        self,
        call: Callable[[], Tensor],
        inputs: tuple[Tensor, ...],
        dout: Tensor,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._call, self._inputs, self._dout, self._context = call, inputs, dout, context

    def forward(self) -> object:
        with self._context(), torch.no_grad():
            return self._call()

    def prepare_backward(self) -> Work:
        with self._context():
            out = self._call()
        return lambda: torch.autograd.grad(out, self._inputs, self._dout, retain_graph=True)


def _milliseconds(work: Work, repeats: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats


def _median_milliseconds(candidates: Sequence[Work]) -> list[float]:
    """Of GPU time a call, measured in turns, so that clocks and heat hit all alike."""
    for work in candidates:
        for _ in range(WARM_UPS):
            work()
    repeats = [max(1, int(MILLISECONDS_PER_ROUND / max(_milliseconds(work, 1), 1e-3))) for work in candidates]
    samples: list[list[float]] = [[] for _ in candidates]
    for _ in range(ROUNDS):
        for sample, work, count in zip(samples, candidates, repeats, strict=True):
            sample.append(_milliseconds(work, count))
    return [statistics.median(sample) for sample in samples]
