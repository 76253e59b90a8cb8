"""flash_attn_func without gradients: shapes, types, strides, tiles, and rows that are hard on the softmax."""

from __future__ import annotations

import gc
import math

import pytest
import torch
from gpu import reference
from gpu.support import (
    COMPILE_BACKEND,
    DTYPES,
    HEAD_DIMS,
    assert_lse,
    assert_right,
    check_forward,
    draw,
    draw_qkv,
    poisoned,
)

from flash_attn import flash_attn_func

ODD_HEAD_DIMS = [1, 7, 8, 16, 24, 40, 59, 72, 80, 111, 112, 160, 200, 224, 250]
LENGTHS = [
    (1, 1), (1, 239), (3, 799), (63, 65), (64, 64), (108, 256), (113, 203), (127, 129), (128, 128),
    (256, 512), (339, 339), (512, 256), (799, 3), (1023, 1024), (1025, 1000),
]  # fmt: skip
HEADS = [(4, 4), (6, 2), (5, 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("nheads", "nheads_k"), HEADS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_lengths(
    head_dim: int, nheads: int, nheads_k: int, causal: bool, dtype: torch.dtype, subtests_fail: list[str]
) -> None:
    for seqlen_q, seqlen_k in LENGTHS:
        qkv = draw_qkv(2, seqlen_q, seqlen_k, nheads, nheads_k, head_dim, dtype)
        try:
            check_forward(flash_attn_func, *qkv, causal=causal)
        except AssertionError as error:
            subtests_fail.append(f"{seqlen_q} x {seqlen_k}: {error}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", ODD_HEAD_DIMS)
def test_other_head_dims(head_dim: int, causal: bool, dtype: torch.dtype) -> None:
    check_forward(flash_attn_func, *draw_qkv(2, 113, 203, 4, 2, head_dim, dtype), causal=causal)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_small_tiles(head_dim: int, causal: bool, dtype: torch.dtype) -> None:
    for seqlen_q, seqlen_k in [(1, 239), (113, 203), (256, 512), (1025, 1000)]:
        check_forward(flash_attn_func, *draw_qkv(2, seqlen_q, seqlen_k, 6, 3, head_dim, dtype), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_many_tiles(head_dim: int, causal: bool) -> None:
    """More blocks than a GPU holds at once, and long rows."""
    check_forward(flash_attn_func, *draw_qkv(3, 2048, 4096, 8, 2, head_dim, torch.bfloat16), causal=causal)


def as_transposed(x: torch.Tensor) -> torch.Tensor:
    """(batch, nheads, seqlen, headdim) in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def as_packed(x: torch.Tensor) -> torch.Tensor:
    """One of three side by side."""
    return torch.stack([x, x * 0 + 7, x * 0 - 7], dim=2)[:, :, 0]


def as_every_other_row(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, dim=1)[:, ::2]


def as_misaligned(x: torch.Tensor) -> torch.Tensor:
    """Begins 2 bytes after a 16-byte boundary."""
    storage = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    shifted = storage[1:].view(x.shape)
    shifted.copy_(x)
    return shifted


def as_odd_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows are headdim + 3 elements apart."""
    return torch.nn.functional.pad(x, (0, 3))[..., : x.shape[-1]]


def as_seqlen_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize(
    "layout",
    [as_transposed, as_packed, as_every_other_row, as_misaligned, as_odd_rows, as_seqlen_first],
)
@pytest.mark.parametrize("head_dim", [64, 96, 100])
def test_strides(layout, head_dim: int) -> None:  # type: ignore[no-untyped-def]
    q, k, v = draw_qkv(2, 129, 201, 4, 2, head_dim, torch.float16)
    with torch.no_grad(), poisoned():
        expected = flash_attn_func(q, k, v, causal=True)
        for inputs in [
            (layout(q), k, v),
            (q, layout(k), v),
            (q, k, layout(v)),
            (layout(q), layout(k), layout(v)),
        ]:
            assert torch.equal(flash_attn_func(*inputs, causal=True), expected)


def test_expanded_heads_and_batch() -> None:
    q, k, v = draw_qkv(1, 100, 130, 1, 1, 64, torch.bfloat16)
    q, k, v = (x.expand(3, -1, 4, -1) for x in (q, k, v))
    check_forward(flash_attn_func, q, k, v)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-3, 1.0])
def test_softmax_scale(scale: float) -> None:
    check_forward(flash_attn_func, *draw_qkv(2, 100, 130, 4, 2, 64, torch.float16), softmax_scale=scale)


@pytest.mark.parametrize(("batch", "seqlen_q", "seqlen_k"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0)])
def test_empty(batch: int, seqlen_q: int, seqlen_k: int) -> None:
    q, k, v = draw_qkv(batch, seqlen_q, seqlen_k, 4, 2, 64, torch.float16)
    with torch.no_grad(), poisoned():
        out, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True)
    assert out.shape == q.shape
    assert lse.shape == (batch, 4, seqlen_q)
    assert not out.any()
    assert (lse == torch.inf).all()


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_rows_without_keys(head_dim: int) -> None:
    """With fewer keys than queries the first rows of a causal mask see nothing: 0 and +inf."""
    q, k, v = draw_qkv(2, 300, 40, 4, 2, head_dim, torch.float16)
    with torch.no_grad(), poisoned():
        out, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert not out[:, :260].any()
    assert (lse[:, :, :260] == torch.inf).all()
    assert torch.isfinite(lse[:, :, 260:]).all()
    check_forward(flash_attn_func, q, k, v, causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rise", [0.0099, 0.5, 3.0, 7.9, 8.1, 40.0])
def test_climbing_maximum(head_dim: int, rise: float, dtype: torch.dtype) -> None:
    """A row maximum that climbs in every block, by less or more (in base 2) than where rescaling is skipped.

    Values are +1 in the first half and -1 in the second, so that a wrong weight of early blocks shows whole.
    """
    block, blocks = 16, 128
    seqlen_k = block * blocks
    levels = (torch.arange(blocks, device="cuda") * rise * math.log(2)).repeat_interleave(block)
    if dtype == torch.float16:
        levels = levels.clamp(max=2000.0)
    q = torch.zeros(1, 70, 2, head_dim, device="cuda")
    q[..., 0] = 1.0
    k = torch.zeros(1, seqlen_k, 2, head_dim, device="cuda")
    # The levels in two elements of 16 bits each, so that they are as exact as fp32 can use.
    q[..., 1] = 1.0
    high = levels.to(dtype).float()
    k[0, :, :, 0] = high[:, None]
    k[0, :, :, 1] = (levels - high)[:, None]
    v = torch.ones(1, seqlen_k, 2, head_dim, device="cuda")
    v[:, seqlen_k // 2 :] = -1
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    with torch.no_grad(), poisoned():
        out, lse, _ = flash_attn_func(q, k, v, softmax_scale=1.0, return_attn_probs=True)
    exact, exact_lse = reference.attention(
        q.double(), k.double(), v.double(), softmax_scale=1.0, dtype=torch.float64
    )
    assert_lse(lse, exact_lse)
    error = (out.double() - exact).abs().max().item()
    assert error <= 2 * torch.finfo(dtype).eps, f"out is off by {error:.3g}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_large_scores(head_dim: int, sign: float, dtype: torch.dtype) -> None:
    """Scores near +/-20000: nothing overflows, and equal scores share their weight."""
    q = torch.full((1, 130, 2, head_dim), 8.0, dtype=dtype, device="cuda")
    k = torch.full((1, 300, 2, head_dim), sign * 20000 / 8 / head_dim, dtype=dtype, device="cuda")
    v = draw(1, 300, 2, head_dim, dtype=dtype)
    check_forward(flash_attn_func, q, k, v, softmax_scale=1.0, causal=True)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_one_key_dominates(head_dim: int) -> None:
    """The weight of all but one key underflows, wherever that key is."""
    q, k, v = draw_qkv(1, 64, 512, 1, 1, head_dim, torch.float16)
    for position in (0, 1, 63, 64, 300, 511):
        loud = k.clone()
        loud[:, position] = 0
        loud[:, position, :, 0] = 200.0
        loud_q = q.clone()
        loud_q[..., 0] = 10.0
        with torch.no_grad(), poisoned():
            out = flash_attn_func(loud_q, loud, v, softmax_scale=1.0)
        assert torch.equal(out, v[:, position : position + 1].expand_as(out))


def test_nan_stays_in_its_row() -> None:
    q, k, v = draw_qkv(1, 100, 100, 2, 2, 64, torch.float16)
    clean = flash_attn_func(q, k, v)
    q[0, 5, 1] = torch.nan
    out = flash_attn_func(q, k, v)
    assert out[0, 5, 1].isnan().all()
    out[0, 5, 1] = clean[0, 5, 1]
    assert torch.equal(out, clean)


def test_other_stream() -> None:
    q, k, v = draw_qkv(2, 512, 512, 4, 4, 64, torch.float16)
    expected = flash_attn_func(q, k, v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = flash_attn_func(q, k, v)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_same_bits_every_time() -> None:
    q, k, v = draw_qkv(2, 700, 900, 8, 2, 128, torch.bfloat16)
    first = flash_attn_func(q, k, v, causal=True)
    for _ in range(5):
        assert torch.equal(flash_attn_func(q, k, v, causal=True), first)


def test_operator_equals_function() -> None:
    q, k, v = draw_qkv(2, 100, 130, 4, 2, 64, torch.float16)
    out, lse, s_dmask, rng_state = torch.ops.flash_attn._flash_attn_forward(
        q, k, v, 0.0, 0.125, True, -1, -1, 0.0, None, False
    )
    expected, expected_lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert s_dmask.numel() == 0
    assert rng_state.shape == (2,)


def test_compiled_equals_eager() -> None:
    q, k, v = draw_qkv(2, 100, 130, 4, 2, 64, torch.float16)
    compiled = torch.compile(
        lambda *x: flash_attn_func(*x, causal=True) * 2, fullgraph=True, backend=COMPILE_BACKEND
    )
    with torch.no_grad():
        assert torch.equal(compiled(q, k, v), flash_attn_func(q, k, v, causal=True) * 2)


def test_bad_arguments_launch_nothing() -> None:
    q, k, v = draw_qkv(2, 16, 16, 4, 2, 64, torch.float16)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for bad, message in [
        ((q.float(), k, v), "fp16 and bf16"),
        ((q, k.bfloat16(), v), "dtypes"),
        ((q, k.cpu(), v), "one device"),
        ((q[0], k, v), "must be"),
        ((q, k[:1], v[:1]), "batch"),
        ((q[:, :, :3], k, v), "multiple"),
        ((q[..., :32], k, v), "head dimension"),
        ((q.transpose(1, 3).contiguous().transpose(1, 3), k, v), "contiguous"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            flash_attn_func(*bad)
    wide = torch.zeros(1, 4, 1, 257, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match="256"):
        flash_attn_func(wide, wide, wide)
    del wide, bad
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_answer_is_right_by_the_rule_itself() -> None:
    """The rule refuses a result that is wrong in one element by more than 16-bit arithmetic explains."""
    q, k, v = draw_qkv(1, 64, 64, 1, 1, 64, torch.float16)
    exact, _ = reference.attention(q, k, v)
    plain, _ = reference.attention(q, k, v, dtype=torch.float16)
    out = flash_attn_func(q, k, v)
    assert_right(out, exact, plain)
    out[0, 7, 0, 9] += 0.01
    with pytest.raises(AssertionError, match="off by"):
        assert_right(out, exact, plain)
