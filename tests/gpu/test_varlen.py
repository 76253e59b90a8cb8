"""Packed sequences: results, empty sequences, pages, corrupt lengths, lengths that only some keys have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu import reference
from gpu.support import (
    DTYPES,
    HEAD_DIMS,
    assert_lse,
    assert_right,
    check_gradients,
    cumulative,
    draw,
    needs,
    own_options,
    packed,
    poisoned,
)
from torch import Tensor

from flash_attn import (
    _backward,
    _launcher,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flash_attn.flash_attn_interface import _flash_attn_varlen_forward

BATCHES = [
    ([17, 0, 128, 300, 1], [40, 9, 0, 300, 200]),
    ([64, 64], [64, 64]),
    ([0, 0, 5], [0, 7, 0]),
    ([700], [900]),
    ([129, 255, 3, 0], [127, 257, 1, 2]),
]
OPTIONS = [{}, {"causal": True}, {"window": (60, 20)}, {"softcap": 6.0, "causal": True}]


def check(
    lengths_q: list[int], lengths_k: list[int], head_dim: int, dtype: torch.dtype, **options: Any
) -> None:
    """Result, LSE, and gradients where they are built."""
    q = packed(lengths_q, 6, head_dim, dtype=dtype)
    k = packed(lengths_k, 2, head_dim, dtype=dtype, seed=1)
    v = packed(lengths_k, 2, head_dim, dtype=dtype, seed=2)
    lengths = (cumulative(lengths_q), cumulative(lengths_k), max(lengths_q), max(lengths_k))
    exact, exact_lse = reference.varlen_attention(q, k, v, lengths_q, lengths_k, **options)
    plain, _ = reference.varlen_attention(q, k, v, lengths_q, lengths_k, **options, dtype=dtype)
    with torch.no_grad(), poisoned():
        out, lse, _ = flash_attn_varlen_func(
            q, k, v, *lengths, return_attn_probs=True, **own_options(options)
        )
    assert_right(out, exact, plain)
    assert_lse(lse, exact_lse)
    if not _launcher.has_family(_backward.FAMILY):
        return

    def wide(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
        out, _ = reference.varlen_attention(q, k, v, lengths_q, lengths_k, **options, dtype=dtype)
        return out + 0 * sum(x.float().sum() for x in (q, k, v)).to(
            dtype
        )  # a graph even where nothing is seen

    check_gradients(lambda *x: flash_attn_varlen_func(*x, *lengths, **own_options(options)), [q, k, v], wide)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_batches(head_dim: int, batch: tuple[list[int], list[int]], options: dict[str, Any]) -> None:
    check(*batch, head_dim, torch.bfloat16, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [1, 20, 40, 100, 160, 224])
def test_other_head_dims(head_dim: int, dtype: torch.dtype) -> None:
    check(*BATCHES[0], head_dim, dtype, causal=True)


@pytest.mark.parametrize("per_batch", [False, True])
def test_alibi(per_batch: bool) -> None:
    slopes = torch.rand((5, 6) if per_batch else (6,), device="cuda") * 0.3
    check(*BATCHES[0], 64, torch.float16, alibi_slopes=slopes)
    check(*BATCHES[0], 128, torch.float16, alibi_slopes=slopes, causal=True)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_small_tiles(head_dim: int) -> None:
    check(*BATCHES[0], head_dim, torch.float16, causal=True)


def test_no_sequences_and_no_rows() -> None:
    nothing = torch.zeros(0, 4, 64, dtype=torch.float16, device="cuda")
    out = flash_attn_varlen_func(nothing, nothing, nothing, cumulative([]), cumulative([]), 0, 0)
    assert out.shape == nothing.shape
    q = draw(5, 4, 64, dtype=torch.float16)
    with poisoned():
        out, lse, _ = flash_attn_varlen_func(
            q, nothing, nothing, cumulative([5]), cumulative([0]), 5, 0, return_attn_probs=True
        )
    assert not out.any()
    assert (lse == torch.inf).all()


def test_equals_dense() -> None:
    q, k, v = (draw(3, 100, 4, 64, dtype=torch.float16, seed=seed) for seed in range(3))
    lengths = cumulative([100] * 3)
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    out = flash_attn_varlen_func(*rows, lengths, lengths, 100, 100, causal=True)
    assert torch.equal(out.view_as(q), flash_attn_func(q, k, v, causal=True))


def test_longer_maximum_changes_nothing() -> None:
    q = packed([30, 50], 4, 64, dtype=torch.float16)
    lengths = cumulative([30, 50])
    out = flash_attn_varlen_func(q, q, q, lengths, lengths, 50, 50, causal=True)
    assert torch.equal(flash_attn_varlen_func(q, q, q, lengths, lengths, 4000, 4000, causal=True), out)


@needs("flash_bwd")
def test_packed_layouts() -> None:
    lengths_q, lengths_k = [30, 0, 50], [40, 20, 3]
    q = packed(lengths_q, 4, 64, dtype=torch.float16).requires_grad_()
    kv = packed(lengths_k, 2, 2, 64, dtype=torch.float16).requires_grad_()
    lengths = (cumulative(lengths_q), cumulative(lengths_k), 50, 40)
    options: dict[str, Any] = {"causal": True, "deterministic": True}
    out = flash_attn_varlen_kvpacked_func(q, kv, *lengths, **options)
    expected = flash_attn_varlen_func(q, *kv.unbind(1), *lengths, **options)
    assert torch.equal(out, expected)
    dout = draw(*out.shape, dtype=out.dtype)
    for one, other in zip(
        torch.autograd.grad(out, (q, kv), dout), torch.autograd.grad(expected, (q, kv), dout), strict=True
    ):
        assert torch.equal(one, other)
    qkv = packed(lengths_q, 3, 4, 64, dtype=torch.float16).requires_grad_()
    out = flash_attn_varlen_qkvpacked_func(qkv, lengths[0], 50, **options)
    expected = flash_attn_varlen_func(*qkv.unbind(1), lengths[0], lengths[0], 50, 50, **options)
    assert torch.equal(out, expected)
    (one,), (other,) = (torch.autograd.grad(x, qkv, torch.ones_like(x)) for x in (out, expected))
    assert torch.equal(one, other)


def kept(s_dmask: Tensor) -> Tensor:
    return s_dmask >= 0


@pytest.mark.parametrize("head_dim", [64, 128])
def test_dropout(head_dim: int) -> None:
    lengths_q, lengths_k = [30, 0, 150], [40, 20, 130]
    q = packed(lengths_q, 4, head_dim, dtype=torch.float16)
    k, v = (packed(lengths_k, 2, head_dim, dtype=torch.float16, seed=seed) for seed in (1, 2))
    lengths = (cumulative(lengths_q), cumulative(lengths_k), 150, 130)
    out, _, s_dmask = flash_attn_varlen_func(q, k, v, *lengths, 0.3, return_attn_probs=True)
    assert s_dmask.shape == (3, 4, 256, 256)
    options = {"keep": kept(s_dmask), "dropout_p": 0.3}
    exact, _ = reference.varlen_attention(q, k, v, lengths_q, lengths_k, **options)
    plain, _ = reference.varlen_attention(q, k, v, lengths_q, lengths_k, **options, dtype=q.dtype)
    assert_right(out, exact, plain)


def test_some_keys_of_each_sequence() -> None:
    """seqused_k cuts off the end of each sequence's keys, leftpad_k their beginning."""
    lengths_q, lengths_k, used, skipped = [30, 50], [60, 80], [45, 80], [5, 17]
    q = packed(lengths_q, 4, 64, dtype=torch.float16)
    k, v = (packed(lengths_k, 2, 64, dtype=torch.float16, seed=seed) for seed in (1, 2))
    out, lse, _, _ = _flash_attn_varlen_forward(
        q, k, v, cumulative(lengths_q), cumulative(lengths_k), 50, 80, 0.0, 0.125, True,
        leftpad_k=torch.tensor(skipped, dtype=torch.int32, device="cuda"),
        seqused_k=torch.tensor(used, dtype=torch.int32, device="cuda"),
    )  # fmt: skip
    begin = 0
    for index, rows in enumerate(q.split(lengths_q)):
        keys = slice(begin + skipped[index], begin + used[index])
        exact, exact_lse = reference.attention(rows[None], k[None, keys], v[None, keys], causal=True)
        plain, _ = reference.attention(rows[None], k[None, keys], v[None, keys], causal=True, dtype=q.dtype)
        assert_right(out.split(lengths_q)[index][None], exact, plain)
        assert_lse(lse.split(lengths_q, dim=1)[index][None], exact_lse)
        begin += lengths_k[index]


@needs("flash_fwd_splitkv")
@pytest.mark.parametrize("page_size", [16, 48, 256])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_pages(head_dim: int, page_size: int) -> None:
    lengths_q, lengths_k = [30, 0, 150, 1], [400, 20, 513, 700]
    q = packed(lengths_q, 4, head_dim, dtype=torch.bfloat16)
    blocks = -(-max(lengths_k) // page_size)
    k, v = (draw(4 * blocks + 3, page_size, 2, head_dim, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    table = torch.randperm(4 * blocks, device="cuda").to(torch.int32).view(4, blocks)
    lengths = (cumulative(lengths_q), cumulative(lengths_k), max(lengths_q), max(lengths_k))
    with poisoned():
        out = flash_attn_varlen_func(q, k, v, *lengths, causal=True, block_table=table)
    rows = [
        torch.cat([x[table[b].long()].flatten(0, 1)[:length] for b, length in enumerate(lengths_k)])
        for x in (k, v)
    ]
    exact, _ = reference.varlen_attention(q, *rows, lengths_q, lengths_k, causal=True)
    plain, _ = reference.varlen_attention(q, *rows, lengths_q, lengths_k, causal=True, dtype=q.dtype)
    assert_right(out, exact, plain)


CORRUPT = [
    [0, 10, 2**31 - 1, 40],
    [0, -5, 20, 40],
    [0, 30, 10, 40],
    [5, 10, 20, 4000],
    [-(2**31), 2**31 - 1, 0, 40],
    [2**30, 2**30 + 5, 2**30 + 9, 2**31 - 1],
]


@pytest.mark.parametrize("corrupt", CORRUPT, ids=str)
@pytest.mark.parametrize("which", ["q", "k", "both"])
def test_corrupt_lengths_stay_inside(corrupt: list[int], which: str) -> None:
    """Nothing beyond the tensors is written; memcheck shows that nothing beyond is read."""
    bad = torch.tensor(corrupt, dtype=torch.int64).clamp(-(2**31), 2**31 - 1).to(torch.int32).cuda()
    good = cumulative([10, 10, 20])
    gradients = _launcher.has_family(_backward.FAMILY)
    guarded = torch.full((3, 100, 2, 64), 7.0, dtype=torch.float16, device="cuda")
    q, k, v = (x[30:70].detach().requires_grad_(gradients) for x in guarded)
    before = guarded.clone()
    cu_q = bad if which != "k" else good
    cu_k = bad if which != "q" else good
    out = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, causal=True)
    if gradients:
        torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    torch.cuda.synchronize()
    assert torch.equal(guarded, before)


@needs("flash_fwd_splitkv")
@pytest.mark.parametrize("entry", [-1, 8, 2**31 - 1, -(2**31)])
def test_corrupt_pages_are_never_read(entry: int) -> None:
    k = draw(8, 16, 2, 64, dtype=torch.float16)
    q = packed([4, 4], 2, 64, dtype=torch.float16)
    table = torch.tensor([[0, 1, entry, 3], [entry, 5, 6, entry]], dtype=torch.int32, device="cuda")
    out = flash_attn_varlen_func(q, k, k, cumulative([4, 4]), cumulative([64, 64]), 4, 64, block_table=table)
    torch.cuda.synchronize()
    assert torch.isfinite(out).all()
