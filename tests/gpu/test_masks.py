"""Causal masks, windows, softcap, ALiBi, dropout, each and together, with gradients where they are built."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from gpu import reference
from gpu.support import (
    DTYPES,
    GRADIENT_FACTOR,
    HEAD_DIMS,
    assert_right,
    check_both,
    check_forward,
    draw,
    draw_qkv,
    needs,
    own_options,
    poisoned,
)
from torch import Tensor

from flash_attn import _backward, _launcher, flash_attn_func


def check(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    """Forward, and gradients if this build has them."""
    if _launcher.has_family(_backward.FAMILY):
        check_both(flash_attn_func, q, k, v, **options)
    check_forward(flash_attn_func, q, k, v, **options)


WINDOWS = [(0, 0), (1, 0), (0, 1), (7, 3), (-1, 5), (5, -1), (100, 40), (64, 64), (1000, 1000)]
LENGTHS = [(1, 147), (113, 203), (203, 113), (256, 256), (300, 700)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_windows(head_dim: int, window: tuple[int, int], causal: bool, subtests_fail: list[str]) -> None:
    for seqlen_q, seqlen_k in LENGTHS:
        qkv = draw_qkv(1, seqlen_q, seqlen_k, 4, 2, head_dim, torch.float16)
        try:
            check(*qkv, window=window, causal=causal)
        except AssertionError as error:
            subtests_fail.append(f"{seqlen_q} x {seqlen_k}: {error}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_softcap(head_dim: int, softcap: float, dtype: torch.dtype) -> None:
    q, k, v = draw_qkv(2, 113, 203, 4, 2, head_dim, dtype)
    check(q * 4, k, v, softcap=softcap, causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("per_batch", [False, True])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_alibi(head_dim: int, per_batch: bool, causal: bool, dtype: torch.dtype) -> None:
    slopes = torch.rand((2, 6) if per_batch else (6,), device="cuda") * 0.3
    for seqlen_q, seqlen_k in [(113, 203), (203, 113), (256, 256)]:
        check(*draw_qkv(2, seqlen_q, seqlen_k, 6, 3, head_dim, dtype), alibi_slopes=slopes, causal=causal)


MASKS = [{}, {"causal": True}, {"window": (40, 15)}]
SCORES = [{}, {"softcap": 8.0}, {"softmax_scale": 0.3}]


@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize(("mask", "score"), list(itertools.product(MASKS, SCORES)), ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 256])
def test_combinations(head_dim: int, mask: dict[str, Any], score: dict[str, Any], alibi: bool) -> None:
    options = {**mask, **score}
    if alibi:
        options["alibi_slopes"] = torch.rand(4, device="cuda") * 0.2
    check(*draw_qkv(2, 130, 190, 4, 2, head_dim, torch.bfloat16), **options)


def kept(s_dmask: Tensor, seqlen_q: int, seqlen_k: int) -> Tensor:
    return s_dmask[:, :, :seqlen_q, :seqlen_k] >= 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dropout_p", [0.17, 0.6])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_dropout(head_dim: int, dropout_p: float, mask: dict[str, Any], dtype: torch.dtype) -> None:
    """The mask that S_dmask shows, used by the reference, gives the same result and gradients."""
    seqlen_q, seqlen_k = 130, 203
    q, k, v = draw_qkv(2, seqlen_q, seqlen_k, 4, 2, head_dim, dtype)
    gradients = _launcher.has_family(_backward.FAMILY)
    for x in (q, k, v):
        x.requires_grad_(gradients)
    with poisoned():
        out, _, s_dmask = flash_attn_func(q, k, v, dropout_p, return_attn_probs=True, **own_options(mask))
    assert s_dmask.shape == (2, 4, 256, 256)
    keep = kept(s_dmask, seqlen_q, seqlen_k)
    seen = reference.visible(
        seqlen_q, seqlen_k, mask.get("causal", False), mask.get("window", (-1, -1)), q.device
    )
    dropped = 1 - keep[:, :, seen].float().mean().item()
    assert abs(dropped - dropout_p) < 0.01
    options = {**mask, "keep": keep, "dropout_p": dropout_p}
    exact_inputs = [x.detach().float().requires_grad_() for x in (q, k, v)]
    plain_inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    exact, _ = reference.attention(*exact_inputs, **options)
    plain, _ = reference.attention(*plain_inputs, **options, dtype=dtype)
    assert_right(out, exact, plain)
    if not gradients:
        return
    dout = draw(*q.shape, dtype=dtype, seed=3)
    with poisoned():
        found = torch.autograd.grad(out, (q, k, v), dout)
    exact_gradients = torch.autograd.grad(exact, exact_inputs, dout.float())
    plain_gradients = torch.autograd.grad(plain, plain_inputs, dout)
    for name, *three in zip(("dq", "dk", "dv"), found, exact_gradients, plain_gradients, strict=True):
        assert_right(*three, GRADIENT_FACTOR, name)


def test_dropout_follows_the_seed() -> None:
    q, k, v = draw_qkv(2, 200, 300, 4, 4, 64, torch.float16)

    def run() -> Tensor:
        return flash_attn_func(q, k, v, 0.3)

    torch.manual_seed(7)
    first, second = run(), run()
    torch.manual_seed(7)
    again, second_again = run(), run()
    torch.manual_seed(8)
    other = run()
    assert torch.equal(first, again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_dropout_masks_are_apart() -> None:
    """Heads, sequences and rows don't share a mask, and the mask has no bias along keys or queries."""
    q = torch.zeros(4, 256, 8, 64, dtype=torch.float16, device="cuda")
    _, _, s_dmask = flash_attn_func(q, q, q, 0.5, return_attn_probs=True)
    keep = kept(s_dmask, 256, 256).float()
    flat = keep.flatten(0, 1).flatten(1)
    correlation = torch.corrcoef(flat) - torch.eye(32, device="cuda")
    assert correlation.abs().max() < 0.03
    assert (keep.mean(dim=(0, 1, 2)) - 0.5).abs().max() < 0.03
    assert (keep.mean(dim=(0, 1, 3)) - 0.5).abs().max() < 0.03


@pytest.mark.parametrize("dropout_p", [0.004, 0.02, 0.1, 0.3, 0.49, 0.51, 0.75, 0.97, 0.999])
def test_dropout_is_exact_and_independent(dropout_p: float) -> None:
    """The promised share stays, in each place that an element has in a word of random bits, independently."""
    q = torch.zeros(4, 1024, 8, 64, dtype=torch.float16, device="cuda")
    _, _, s_dmask = flash_attn_func(q, q, q, dropout_p, return_attn_probs=True)
    share = (math.floor((1 - dropout_p) * 255) + 1) / 256
    places = kept(s_dmask, 1024, 1024).reshape(32, 64, 2, 8, 512, 2).permute(2, 5, 0, 1, 3, 4).reshape(4, -1)
    places = places.double() - share  # rows 8 apart and neighbouring keys
    sigma = math.sqrt(share * (1 - share) / places.shape[1])
    assert places.mean(dim=1).abs().max() <= 5 * sigma
    agreement = (places @ places.T) / places.shape[1]
    agreement.fill_diagonal_(0)
    assert agreement.abs().max() <= 5 * share * (1 - share) / math.sqrt(places.shape[1])


@needs("flash_bwd")
def test_dropout_gradients_use_the_mask_of_their_own_forward() -> None:
    q, k, v = (x.requires_grad_() for x in draw_qkv(1, 128, 128, 2, 2, 64, torch.float16))
    dout = draw(*q.shape, dtype=q.dtype)
    torch.manual_seed(3)
    out = flash_attn_func(q, k, v, 0.4, deterministic=True)
    flash_attn_func(q, k, v, 0.4)  # another draw in between
    found = torch.autograd.grad(out, (q, k, v), dout)
    torch.manual_seed(3)
    expected = torch.autograd.grad(flash_attn_func(q, k, v, 0.4, deterministic=True), (q, k, v), dout)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_no_dropout_gives_no_mask() -> None:
    q, k, v = draw_qkv(1, 20, 20, 2, 2, 64, torch.float16)
    _, _, s_dmask = flash_attn_func(q, k, v, return_attn_probs=True)
    assert s_dmask is None or not s_dmask.numel()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_small_tiles(head_dim: int) -> None:
    q, k, v = draw_qkv(2, 130, 203, 4, 2, head_dim, torch.float16)
    slopes = torch.rand(4, device="cuda") * 0.2
    check(q, k, v, window=(50, 10), alibi_slopes=slopes)
    check(q, k, v, softcap=5.0, causal=True)
