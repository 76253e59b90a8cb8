"""Gradients of flash_attn_func: shapes, types, strides, tiles, determinism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu.support import (
    DTYPES,
    HEAD_DIMS,
    check_both,
    draw,
    draw_qkv,
    needs,
    own_options,
    poisoned,
)
from torch import Tensor

from flash_attn import flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func

pytestmark = needs("flash_bwd")

LENGTHS = [
    (1, 1), (1, 239), (3, 799), (63, 65), (64, 64), (113, 203), (127, 129), (128, 128), (256, 512),
    (339, 339), (799, 3), (1023, 1024),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("nheads", "nheads_k"), [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_lengths(
    head_dim: int, nheads: int, nheads_k: int, causal: bool, dtype: torch.dtype, subtests_fail: list[str]
) -> None:
    for seqlen_q, seqlen_k in LENGTHS:
        qkv = draw_qkv(2, seqlen_q, seqlen_k, nheads, nheads_k, head_dim, dtype)
        try:
            check_both(flash_attn_func, *qkv, causal=causal)
        except AssertionError as error:
            subtests_fail.append(f"{seqlen_q} x {seqlen_k}: {error}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [1, 8, 16, 40, 59, 72, 80, 111, 160, 200, 250])
def test_other_head_dims(head_dim: int, dtype: torch.dtype) -> None:
    check_both(flash_attn_func, *draw_qkv(2, 113, 203, 4, 2, head_dim, dtype), causal=True)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_small_tiles(head_dim: int, causal: bool, dtype: torch.dtype) -> None:
    for seqlen_q, seqlen_k in [(1, 239), (113, 203), (339, 339)]:
        check_both(flash_attn_func, *draw_qkv(2, seqlen_q, seqlen_k, 6, 3, head_dim, dtype), causal=causal)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_many_tiles(head_dim: int) -> None:
    check_both(flash_attn_func, *draw_qkv(2, 2048, 2048, 4, 2, head_dim, torch.bfloat16), causal=True)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1.0])
def test_softmax_scale(scale: float) -> None:
    check_both(flash_attn_func, *draw_qkv(2, 100, 130, 4, 2, 64, torch.float16), softmax_scale=scale)


def from_transposed(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def from_packed(x: Tensor) -> Tensor:
    return torch.stack([x, x, x], dim=2)[:, :, 1]


def from_odd_rows(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, 3))[..., : x.shape[-1]]


@pytest.mark.parametrize("layout", [from_transposed, from_packed, from_odd_rows])
@pytest.mark.parametrize("head_dim", [64, 100])
def test_strides(layout: Any, head_dim: int) -> None:
    """Of inputs and of the gradient that comes in."""
    q, k, v = (x.requires_grad_() for x in draw_qkv(2, 129, 201, 4, 2, head_dim, torch.float16))
    dout = draw(*q.shape, dtype=q.dtype, seed=5)
    with poisoned():
        expected = torch.autograd.grad(
            flash_attn_func(q, k, v, causal=True, deterministic=True), (q, k, v), dout
        )
        out = flash_attn_func(layout(q), layout(k), layout(v), causal=True, deterministic=True)
        found = torch.autograd.grad(out, (q, k, v), layout(dout))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_gradient_that_is_one_number_expanded() -> None:
    q, k, v = (x.requires_grad_() for x in draw_qkv(2, 60, 60, 2, 2, 64, torch.float16))
    found = torch.autograd.grad(flash_attn_func(q, k, v, deterministic=True).sum(), (q, k, v))
    out = flash_attn_func(q, k, v, deterministic=True)
    expected = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (50, 20), "softcap": 10.0}], ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_deterministic(head_dim: int, options: dict[str, Any]) -> None:
    q, k, v = (x.requires_grad_() for x in draw_qkv(2, 900, 1100, 8, 2, head_dim, torch.bfloat16))
    dout = draw(*q.shape, dtype=q.dtype, seed=5)
    out = flash_attn_func(q, k, v, deterministic=True, **own_options(options))
    first = torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    for _ in range(4):
        for one, other in zip(
            torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), first, strict=True
        ):
            assert torch.equal(one, other)


def test_deterministic_is_right() -> None:
    q, k, v = draw_qkv(2, 339, 500, 6, 2, 128, torch.bfloat16)

    def deterministic(*inputs: Tensor, **options: Any) -> Tensor:
        return flash_attn_func(*inputs, **options, deterministic=True)

    check_both(deterministic, q, k, v, causal=True)


@pytest.mark.parametrize(("batch", "seqlen_q", "seqlen_k"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0)])
def test_empty(batch: int, seqlen_q: int, seqlen_k: int) -> None:
    q, k, v = (x.requires_grad_() for x in draw_qkv(batch, seqlen_q, seqlen_k, 4, 2, 64, torch.float16))
    with poisoned():
        found = torch.autograd.grad(flash_attn_func(q, k, v).sum(), (q, k, v))
    for gradient, x in zip(found, (q, k, v), strict=True):
        assert gradient.shape == x.shape
        assert not gradient.any()


@pytest.mark.parametrize("head_dim", [64, 72, 100, 128])
def test_packed_layouts(head_dim: int) -> None:
    q, k, v = draw_qkv(2, 150, 150, 4, 4, head_dim, torch.float16)

    def qkvpacked(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return flash_attn_qkvpacked_func(torch.stack([q, k, v], dim=2), **options)

    def kvpacked(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return flash_attn_kvpacked_func(q, torch.stack([k, v], dim=2), **options)

    check_both(qkvpacked, q, k, v, causal=True)
    check_both(kvpacked, q, k, v, causal=True)
    q, k, v = draw_qkv(2, 100, 150, 6, 2, head_dim, torch.float16)
    check_both(kvpacked, q, k, v, window=(30, 0))


def test_rows_without_keys_have_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in draw_qkv(2, 300, 40, 4, 2, 64, torch.float16))
    with poisoned():
        out = flash_attn_func(q, k, v, causal=True)
        dq, _, _ = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert not dq[:, :260].any()
    check_both(flash_attn_func, q, k, v, causal=True)


def test_one_input_needs_no_gradient() -> None:
    q, k, v = draw_qkv(2, 60, 60, 2, 2, 64, torch.float16)
    k.requires_grad_()
    out = flash_attn_func(q, k, v)
    out.sum().backward()
    assert k.grad is not None
    assert q.grad is None
