"""flash_attn_with_kvcache: lengths, new keys, rotary embedding, rows, left padding, pages, splits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from gpu import reference
from gpu.support import DTYPES, HEAD_DIMS, assert_lse, assert_right, draw, needs, poisoned
from torch import Tensor

from flash_attn import flash_attn_with_kvcache
from flash_attn.layers.rotary import apply_rotary_emb_torch

pytestmark = needs("flash_fwd_splitkv")

BATCH, ROWS, NHEADS, NHEADS_K, CAPACITY = 3, 5, 8, 2, 640


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def make_pages(cache: Tensor, page_size: int, table: Tensor) -> Tensor:
    """The rows of a cache (batch, capacity, ...) spread over pages as a table says; other pages hold NaN."""
    pages = torch.full(
        (int(table.max()) + 3, page_size, *cache.shape[2:]), torch.nan, dtype=cache.dtype, device=cache.device
    )
    pages[table.long().flatten()] = cache.view(-1, page_size, *cache.shape[2:])
    return pages


def rotated(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """x (batch, seqlen, nheads, headdim) at positions (batch, seqlen), in fp32, rounded to its type."""
    turned = apply_rotary_emb_torch(x.float(), cos[positions].float(), sin[positions].float(), interleaved)
    return turned.to(x.dtype)


def check(
    *,
    seqlen_q: int = 1,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    lengths: list[int] | None = None,
    seqlen_new: int = 0,
    rotary_dim: int = 0,
    interleaved: bool = True,
    rows: list[int] | None = None,
    leftpad: list[int] | None = None,
    page_size: int = 0,
    num_splits: int = 0,
    **options: Any,
) -> None:
    lengths = [517, 40, 333] if lengths is None else lengths
    q = draw(BATCH, seqlen_q, NHEADS, head_dim, dtype=dtype)
    cache_rows = ROWS if rows is not None else BATCH
    k_cache, v_cache = (draw(cache_rows, CAPACITY, NHEADS_K, head_dim, dtype=dtype, seed=s) for s in (1, 2))
    k_new = v_new = cos = sin = None
    if seqlen_new:
        k_new, v_new = (draw(BATCH, seqlen_new, NHEADS_K, head_dim, dtype=dtype, seed=s) for s in (3, 4))
    if rotary_dim:
        angles = torch.rand(CAPACITY, rotary_dim // 2, device="cuda") * 6.28
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    # What must be in the cache, and what attention must give.
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    picked = list(range(BATCH)) if rows is None else rows
    pads = [0] * BATCH if leftpad is None else leftpad
    q_exact = q
    begins = torch.tensor(lengths, device="cuda") - torch.tensor(pads, device="cuda")
    if cos is not None and sin is not None:
        advances = options.get("causal", False) or options.get("window", (-1, -1)) != (-1, -1)
        steps = (
            torch.arange(seqlen_q, device="cuda") if advances else torch.zeros(seqlen_q, device="cuda").long()
        )
        q_exact = rotated(q, cos, sin, begins[:, None] + steps, interleaved)
    if k_new is not None and v_new is not None:
        keys = k_new
        if cos is not None and sin is not None:
            steps = torch.arange(seqlen_new, device="cuda")
            keys = rotated(k_new, cos, sin, begins[:, None] + steps, interleaved)
        for b, row in enumerate(picked):
            expected_k[row, lengths[b] : lengths[b] + seqlen_new] = keys[b]
            expected_v[row, lengths[b] : lengths[b] + seqlen_new] = v_new[b]

    table = None
    given_k, given_v = k_cache.clone(), v_cache.clone()
    if page_size:
        table = torch.randperm(BATCH * CAPACITY // page_size, device="cuda").to(torch.int32).view(BATCH, -1)
        given_k, given_v = make_pages(k_cache, page_size, table), make_pages(v_cache, page_size, table)
    own = {"window_size" if name == "window" else name: value for name, value in options.items()}
    with poisoned():
        out, lse = flash_attn_with_kvcache(
            q, given_k, given_v, k_new, v_new, cos, sin, int32(lengths),
            None if rows is None else int32(rows), None if leftpad is None else int32(leftpad), table,
            rotary_interleaved=interleaved, num_splits=num_splits, return_softmax_lse=True, **own,
        )  # fmt: skip

    if page_size and table is not None:
        given_k, given_v = (x[table.long()].flatten(1, 2) for x in (given_k, given_v))
    if cos is None:
        assert torch.equal(given_k, expected_k)
    else:
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(given_k, expected_k, rtol=2 * eps, atol=2 * eps)
    assert torch.equal(given_v, expected_v)
    slopes = options.pop("alibi_slopes", None)
    for b, row in enumerate(picked):
        keys = slice(pads[b], lengths[b] + seqlen_new)
        one = q_exact[b : b + 1], expected_k[row : row + 1, keys], expected_v[row : row + 1, keys]
        more = dict(options)
        if slopes is not None:
            more["alibi_slopes"] = slopes if slopes.dim() == 1 else slopes[b]
        if one[1].shape[1] == 0:
            assert not out[b].any()
            continue
        exact, exact_lse = reference.attention(*one, **more)
        plain, _ = reference.attention(*one, **more, dtype=dtype)
        # Rotation rounds q once more than the reference does.
        assert_right(out[b : b + 1], exact, plain, 4.0 if rotary_dim else 2.0)
        if not rotary_dim:
            assert_lse(lse[b : b + 1], exact_lse)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seqlen_q", [1, 2, 7, 64, 130])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_lengths(head_dim: int, seqlen_q: int, dtype: torch.dtype) -> None:
    check(seqlen_q=seqlen_q, head_dim=head_dim, dtype=dtype)
    check(seqlen_q=seqlen_q, head_dim=head_dim, dtype=dtype, causal=True, lengths=[640, 1, 0])


@pytest.mark.parametrize("head_dim", [1, 20, 40, 72, 100, 160, 224])
def test_other_head_dims(head_dim: int) -> None:
    check(head_dim=head_dim, causal=True)
    check(head_dim=head_dim, causal=True, seqlen_q=3, seqlen_new=3)


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 16, 128])
@pytest.mark.parametrize("seqlen_q", [1, 5, 100])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_splits(head_dim: int, seqlen_q: int, num_splits: int) -> None:
    check(head_dim=head_dim, seqlen_q=seqlen_q, num_splits=num_splits, causal=True)
    check(head_dim=head_dim, seqlen_q=seqlen_q, num_splits=num_splits, lengths=[3, 0, 640])


@pytest.mark.parametrize("page_size", [16, 64, 128, 320])
@pytest.mark.parametrize("seqlen_new", [0, 1, 5])
def test_pages(seqlen_new: int, page_size: int) -> None:
    for seqlen_q in (1, 5, 40):
        check(page_size=page_size, seqlen_new=seqlen_new, seqlen_q=seqlen_q, causal=True)


@pytest.mark.parametrize("seqlen_new", [1, 3, 64])
@pytest.mark.parametrize("seqlen_q", [1, 3, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_new_keys(seqlen_new: int, seqlen_q: int, causal: bool) -> None:
    check(seqlen_new=seqlen_new, seqlen_q=seqlen_q, causal=causal)
    check(seqlen_new=seqlen_new, seqlen_q=seqlen_q, causal=causal, lengths=[0, 576, 128])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("causal", "window"), [(False, (-1, -1)), (True, (-1, -1)), (False, (100, 5))])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 32), (128, 128), (256, 64), (40, 32), (100, 96)])
def test_rotary(
    head_dim: int,
    rotary_dim: int,
    causal: bool,
    window: tuple[int, int],
    interleaved: bool,
    dtype: torch.dtype,
) -> None:
    options: dict[str, Any] = {"causal": causal, "window": window, "dtype": dtype, "interleaved": interleaved}
    for seqlen_q in (1, 4):
        check(head_dim=head_dim, rotary_dim=rotary_dim, seqlen_q=seqlen_q, seqlen_new=seqlen_q, **options)


def test_rotary_of_pages_and_rows() -> None:
    check(rotary_dim=64, seqlen_new=2, seqlen_q=2, page_size=64, causal=True)
    check(rotary_dim=64, seqlen_new=2, seqlen_q=2, rows=[4, 0, 2], causal=True, interleaved=False)


@pytest.mark.parametrize("seqlen_new", [0, 2])
def test_rows_of_the_cache(seqlen_new: int) -> None:
    check(rows=[3, 0, 4], seqlen_new=seqlen_new, causal=True)


@pytest.mark.parametrize("rows", [None, [3, 0, 4]])
@pytest.mark.parametrize("seqlen_q", [1, 20])
def test_left_padding(seqlen_q: int, rows: list[int] | None) -> None:
    check(leftpad=[5, 0, 300], seqlen_q=seqlen_q, rows=rows)
    check(leftpad=[5, 0, 300], seqlen_q=seqlen_q, rows=rows, causal=True, window=(70, 0))


@pytest.mark.parametrize(
    ("window", "softcap"), list(itertools.product([(-1, -1), (90, 0), (33, 10)], [0.0, 9.0]))
)
@pytest.mark.parametrize("alibi", [False, True])
def test_masks(window: tuple[int, int], softcap: float, alibi: bool) -> None:
    options: dict[str, Any] = {"window": window, "softcap": softcap}
    for seqlen_q in (1, 9):
        slopes = {"alibi_slopes": torch.rand(BATCH, NHEADS, device="cuda") * 0.2} if alibi else {}
        check(seqlen_q=seqlen_q, **options, **slopes)
        slopes = {"alibi_slopes": torch.rand(NHEADS, device="cuda") * 0.2} if alibi else {}
        check(seqlen_q=seqlen_q, num_splits=4, causal=True, **options, **slopes)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_small_tiles(head_dim: int) -> None:
    for seqlen_q in (1, 40, 130):
        check(head_dim=head_dim, seqlen_q=seqlen_q, causal=True)


@pytest.mark.parametrize("scale", [-0.2, 0.0, 0.5])
def test_softmax_scale(scale: float) -> None:
    check(softmax_scale=scale, seqlen_q=3)


def test_length_as_a_number() -> None:
    q = draw(2, 3, 4, 64, dtype=torch.float16)
    cache = draw(2, 100, 2, 64, dtype=torch.float16)
    by_tensor = flash_attn_with_kvcache(q, cache, cache, cache_seqlens=int32([37, 37]), causal=True)
    assert torch.equal(flash_attn_with_kvcache(q, cache, cache, cache_seqlens=37, causal=True), by_tensor)
    everything = flash_attn_with_kvcache(q, cache, cache, causal=True)
    assert torch.equal(everything, flash_attn_with_kvcache(q, cache, cache, cache_seqlens=100, causal=True))
    new = draw(2, 3, 2, 64, dtype=torch.float16)
    one, two = cache.clone(), cache.clone()
    out = flash_attn_with_kvcache(q, one, one.clone(), new, new, cache_seqlens=37, causal=True)
    other = flash_attn_with_kvcache(q, two, two.clone(), new, new, cache_seqlens=int32([37, 37]), causal=True)
    assert torch.equal(one, two)
    assert torch.equal(out, other)
    none_at_all = flash_attn_with_kvcache(q, cache, cache, cache_seqlens=0)
    assert not none_at_all.any()


def test_cache_with_odd_strides() -> None:
    """Heads before rows in memory, and a cache that kernels can't use where it lies."""
    q = draw(2, 1, 4, 64, dtype=torch.float16)
    cache, new = draw(2, 100, 2, 64, dtype=torch.float16), draw(2, 1, 2, 64, dtype=torch.float16)
    lengths = int32([37, 60])
    expected = [cache.clone(), cache.clone()]
    out = flash_attn_with_kvcache(q, *expected, new, new, cache_seqlens=lengths)
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (cache, cache)]
    odd = [torch.nn.functional.pad(x, (0, 3))[..., :64] for x in (cache, cache)]
    for caches in (heads_first, odd):
        assert torch.equal(flash_attn_with_kvcache(q, *caches, new, new, cache_seqlens=lengths), out)
        assert torch.equal(caches[0], expected[0])
        assert torch.equal(caches[1], expected[1])


@pytest.mark.parametrize("entry", [-1, 12, 2**31 - 1, -(2**31)])
def test_corrupt_pages_are_never_touched(entry: int) -> None:
    guarded = torch.full((2, 20, 16, 2, 64), 3.0, dtype=torch.float16, device="cuda")
    k_pages, v_pages = guarded[0, 4:16], guarded[1, 4:16]
    q, new = draw(2, 1, 4, 64, dtype=torch.float16), draw(2, 1, 2, 64, dtype=torch.float16)
    table = torch.tensor([[0, entry, 2], [entry, 4, 5]], dtype=torch.int32, device="cuda")
    out = flash_attn_with_kvcache(
        q, k_pages, v_pages, new, new, cache_seqlens=int32([20, 3]), block_table=table
    )
    torch.cuda.synchronize()
    assert torch.isfinite(out).all()
    assert (guarded == 3.0).all()


@pytest.mark.parametrize("lengths", [[-7, 2**31 - 1], [101, 100], [-(2**31), 99]], ids=str)
def test_corrupt_lengths_stay_inside(lengths: list[int]) -> None:
    guarded = torch.full((2, 4, 100, 2, 64), 3.0, dtype=torch.float16, device="cuda")
    k_cache, v_cache = guarded[0, 1:3], guarded[1, 1:3]
    q, new = draw(2, 1, 4, 64, dtype=torch.float16), draw(2, 4, 2, 64, dtype=torch.float16)
    flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=int32(lengths))
    torch.cuda.synchronize()
    assert (guarded[:, 0] == 3.0).all()
    assert (guarded[:, 3] == 3.0).all()


def test_corrupt_rows_stay_inside() -> None:
    guarded = torch.full((2, 4, 100, 2, 64), 3.0, dtype=torch.float16, device="cuda")
    q, new = draw(2, 1, 4, 64, dtype=torch.float16), draw(2, 1, 2, 64, dtype=torch.float16)
    flash_attn_with_kvcache(
        q, guarded[0, 1:3], guarded[1, 1:3], new, new, cache_seqlens=5, cache_batch_idx=int32([-1, 2])
    )
    torch.cuda.synchronize()
    assert (guarded == 3.0).all()


def test_inputs_that_want_gradients_get_none() -> None:
    q = draw(2, 1, 4, 64, dtype=torch.float16).requires_grad_()
    cache = draw(2, 100, 2, 64, dtype=torch.float16)
    assert not flash_attn_with_kvcache(q, cache, cache).requires_grad
