"""Tensors of more than 2^31 elements: offsets don't wrap."""

from __future__ import annotations

import pytest
import torch
from gpu import reference
from gpu.support import GRADIENT_FACTOR, assert_right, cumulative
from torch import Tensor

from flash_attn import _backward, _launcher, flash_attn_func, flash_attn_varlen_func

GIGABYTE = 1 << 30
ENOUGH = 60 * GIGABYTE


def has_room() -> bool:
    return torch.cuda.is_available() and torch.cuda.mem_get_info()[1] >= ENOUGH


pytestmark = pytest.mark.skipif(not has_room(), reason="the GPU has less than 60 GB of memory")


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def check_last(out: Tensor, q: Tensor, k: Tensor, v: Tensor, inputs: tuple[Tensor, ...], keys: int) -> None:
    """The last rows of the last sequence, in a window of 64 keys to the left; and their gradients."""
    rows = keys - 64
    window = (64, 0)
    wide = [x.detach().float().requires_grad_() for x in (q[-1:, -keys:], k[-1:, -keys:], v[-1:, -keys:])]
    narrow = [x.detach().requires_grad_() for x in (q[-1:, -keys:], k[-1:, -keys:], v[-1:, -keys:])]
    exact, _ = reference.attention(*wide, window=window, causal=True)
    plain, _ = reference.attention(*narrow, window=window, causal=True, dtype=q.dtype)
    assert_right(out[-1:, -rows:], exact[:, -rows:], plain[:, -rows:])
    if not inputs:
        return
    dout = torch.zeros_like(exact)
    dout[:, -rows:] = 1
    exact_gradients = torch.autograd.grad(exact, wide, dout)
    plain_gradients = torch.autograd.grad(plain, narrow, dout.to(q.dtype))
    for name, found, one, other in zip(
        ("dq", "dk", "dv"), inputs, exact_gradients, plain_gradients, strict=True
    ):
        # Keys further left also serve rows outside of this piece.
        assert_right(found[-1:, -64:], one[:, -64:], other[:, -64:], GRADIENT_FACTOR, name)


def run(*shape: int) -> None:
    grad = _launcher.has_family(_backward.FAMILY)
    q, k, v = (draw(*shape).requires_grad_(grad) for _ in range(3))
    assert q.numel() > 2**31
    out = flash_attn_func(q, k, v, causal=True, window_size=(64, 0))
    found = torch.autograd.grad(out, (q, k, v), torch.ones_like(out)) if grad else ()
    check_last(out.detach(), q.detach(), k.detach(), v.detach(), found, 200)


def test_one_long_sequence() -> None:
    run(1, 270_000, 64, 128)


def test_many_sequences() -> None:
    run(1100, 256, 64, 128)


def test_packed() -> None:
    grad = _launcher.has_family(_backward.FAMILY)
    lengths = [200_000, 70_000, 300]
    q, k, v = (draw(sum(lengths), 64, 128).requires_grad_(grad) for _ in range(3))
    assert q.numel() > 2**31
    cu = cumulative(lengths)
    out = flash_attn_varlen_func(
        q, k, v, cu, cu, max(lengths), max(lengths), causal=True, window_size=(64, 0)
    )
    found = torch.autograd.grad(out, (q, k, v), torch.ones_like(out)) if grad else ()
    check_last(
        out.detach()[None],
        q.detach()[None],
        k.detach()[None],
        v.detach()[None],
        tuple(x[None] for x in found),
        200,
    )


@pytest.fixture(autouse=True)
def _free_memory() -> None:
    torch.cuda.empty_cache()
