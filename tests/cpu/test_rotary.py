"""Rotary embedding on the CPU, where there is no Triton."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attn.layers.rotary import (
    RotaryEmbedding,
    apply_rotary_emb,
    apply_rotary_emb_kv_,
    apply_rotary_emb_qkv_,
    apply_rotary_emb_torch,
)
from flash_attn.ops.triton.rotary import apply_rotary


def tables(length: int, half: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(length)
    angles = torch.rand(length, half, dtype=dtype) * 6
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_by_complex_numbers(interleaved: bool) -> None:
    """A pair of channels is a complex number, and rotating it multiplies it by e^(i angle)."""
    angles = torch.rand(7, 3, dtype=torch.float64)
    x = torch.randn(2, 7, 4, 8, dtype=torch.float64)
    out = apply_rotary_emb_torch(x, angles.cos(), angles.sin(), interleaved)
    pairs = [(0, 1), (2, 3), (4, 5)] if interleaved else [(0, 3), (1, 4), (2, 5)]
    for index, (real, imaginary) in enumerate(pairs):
        turned = torch.complex(x[..., real], x[..., imaginary]) * torch.exp(1j * angles[:, index])[:, None]
        torch.testing.assert_close(out[..., real], turned.real)
        torch.testing.assert_close(out[..., imaginary], turned.imag)
    assert torch.equal(out[..., 6:], x[..., 6:])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_function(interleaved: bool, inplace: bool) -> None:
    cos, sin = tables(20, 3, torch.float32)
    x = torch.randn(2, 7, 4, 8)
    expected = apply_rotary_emb_torch(x, cos[5:12], sin[5:12], interleaved)
    given = x.clone()
    out = apply_rotary_emb(given, cos, sin, interleaved, inplace, seqlen_offsets=5)
    torch.testing.assert_close(out, expected)
    assert (out.data_ptr() == given.data_ptr()) is inplace
    offsets = torch.tensor([5, 2], dtype=torch.int32)
    out = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets)
    torch.testing.assert_close(out[0], expected[0])
    torch.testing.assert_close(out[1:], apply_rotary_emb_torch(x[1:], cos[2:9], sin[2:9], interleaved))


def test_packed_rows() -> None:
    cos, sin = tables(20, 4, torch.float32)
    x = torch.randn(9, 2, 8)
    cu_seqlens = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    out = apply_rotary_emb(x, cos, sin, cu_seqlens=cu_seqlens, max_seqlen=5)
    torch.testing.assert_close(out[:4], apply_rotary_emb_torch(x[None, :4], cos[:4], sin[:4])[0])
    torch.testing.assert_close(out[4:], apply_rotary_emb_torch(x[None, 4:], cos[:5], sin[:5])[0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients(interleaved: bool) -> None:
    cos, sin = tables(7, 3, torch.float32)
    x = torch.randn(2, 7, 2, 8, requires_grad=True)
    dout = torch.randn(2, 7, 2, 8)
    (found,) = torch.autograd.grad(apply_rotary_emb(x, cos, sin, interleaved), x, dout)
    (wanted,) = torch.autograd.grad(apply_rotary_emb_torch(x, cos, sin, interleaved), x, dout)
    torch.testing.assert_close(found, wanted)
    qkv = torch.randn(2, 7, 3, 2, 8, requires_grad=True)
    dout = torch.randn(2, 7, 3, 2, 8)
    (found,) = torch.autograd.grad(
        apply_rotary_emb_qkv_(qkv * 1, cos, sin, interleaved=interleaved), qkv, dout
    )
    plain = torch.stack(
        [*(apply_rotary_emb_torch(qkv[:, :, i], cos, sin, interleaved) for i in (0, 1)), qkv[:, :, 2]], 2
    )
    (wanted,) = torch.autograd.grad(plain, qkv, dout)
    torch.testing.assert_close(found, wanted)


def test_grouped_heads_in_one_tensor() -> None:
    cos, sin = tables(7, 4, torch.float32)
    qkv = torch.randn(2, 7, 4 + 2 * 2, 8)
    before = qkv.clone()
    apply_rotary_emb_qkv_(qkv, cos, sin, num_heads_q=4)
    torch.testing.assert_close(qkv[:, :, :6], apply_rotary_emb_torch(before[:, :, :6], cos, sin))
    assert torch.equal(qkv[:, :, 6:], before[:, :, 6:])
    kv = torch.randn(2, 7, 2, 2, 8)
    before = kv.clone()
    apply_rotary_emb_kv_(kv, cos, sin)
    torch.testing.assert_close(kv[:, :, 0], apply_rotary_emb_torch(before[:, :, 0], cos, sin))
    assert torch.equal(kv[:, :, 1], before[:, :, 1])


@pytest.mark.parametrize("scale_base", [None, 512.0])
def test_module(scale_base: float | None) -> None:
    """Scores of rotated q and k depend on their distance only."""
    module = RotaryEmbedding(16, scale_base=scale_base)
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)
    qkv = torch.stack(
        [q.expand(1, 30, 1, 16), k.expand(1, 30, 1, 16), k.expand(1, 30, 1, 16)], 2
    ).contiguous()
    out = module(qkv)
    assert out is qkv or out.data_ptr() == qkv.data_ptr()
    scores = torch.einsum("bqhd,bkhd->qk", out[:, :, 0], out[:, :, 1])
    for distance in (-5, 0, 9):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-3, atol=1e-3)
    again = torch.stack([q, k, k], 2).contiguous()
    torch.testing.assert_close(module(again, seqlen_offset=29)[0, 0], out[0, 29], rtol=1e-3, atol=2e-3)


def test_module_of_q_and_kv() -> None:
    module = RotaryEmbedding(16)
    q, kv = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 2, 16)
    expected = module(torch.cat([q, kv[:, :, 0], kv[:, :, 1]], 2), num_heads_q=4)
    out, out_kv = module(q.clone(), kv.clone(), max_seqlen=9)
    torch.testing.assert_close(out, expected[:, :, :4])
    torch.testing.assert_close(out_kv[:, :, 0], expected[:, :, 4:6])
    with pytest.raises(RuntimeError, match="max_seqlen"):
        RotaryEmbedding(16)(q, kv, seqlen_offset=torch.tensor([1, 2]))


def test_bad_arguments() -> None:
    cos, sin = tables(7, 4, torch.float32)
    x = torch.randn(2, 7, 2, 8)
    for arguments, more, message in [
        ((x[0], cos, sin), {}, "x has shape"),
        ((x, cos, sin[:5]), {}, "cos and sin have shapes"),
        ((x[..., :6], cos, sin), {}, "only 6"),
        ((x, cos, sin.double()), {}, "cos is torch.float32 on cpu and sin torch.float64 on cpu, but both"),
        ((x, cos, sin, 1), {}, "make it longer"),
        ((x, cos, sin, -1), {}, "make it longer"),
        ((x, cos, sin, torch.tensor([0])), {}, "seqlen_offsets"),
        ((x[0], cos, sin), {"cu_seqlens": torch.tensor([0, 7], dtype=torch.int32)}, "max_seqlen"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            apply_rotary(*arguments, **more)
    with pytest.raises(RuntimeError, match="qkv has shape"):
        apply_rotary_emb_qkv_(torch.randn(2, 7, 2, 2, 8), cos, sin)
    with pytest.raises(RuntimeError, match="num_heads_q"):
        apply_rotary_emb_qkv_(torch.randn(2, 7, 6, 8), cos, sin)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": None}, TypeError, "x must be a torch.Tensor, but it is None"),
        ({"cos": [1.0]}, TypeError, "cos must be a torch.Tensor, but it is a list"),
        ({"seqlen_offsets": "1"}, TypeError, "seqlen_offsets must be an int, but it is a str"),
        ({"seqlen_offsets": float("nan")}, TypeError, "seqlen_offsets must be an int, but it is a float"),
        ({"cu_seqlens": [0, 8]}, TypeError, "cu_seqlens must be a torch.Tensor"),
        ({"cu_seqlens": torch.zeros(3), "max_seqlen": 8}, RuntimeError, "cu_seqlens is torch.float32"),
        (
            {"cu_seqlens": torch.tensor(3), "max_seqlen": 8},
            RuntimeError,
            "cu_seqlens is torch.int64",
        ),
    ],
)
def test_arguments_of_another_kind(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"x": torch.zeros(2, 8, 4, 64), "cos": torch.ones(8, 16), "sin": torch.zeros(8, 16), **changes}
    with pytest.raises(error, match=message):
        apply_rotary_emb(**given)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("name", ["x", "cos", "sin"])
@pytest.mark.parametrize("function", [apply_rotary_emb, apply_rotary_emb_torch])
def test_types_that_can_not_be_rotated(function: Any, name: str, dtype: torch.dtype) -> None:
    """Integers were rotated and cut off, without a word."""
    given = {"x": torch.zeros(2, 8, 4, 64), "cos": torch.ones(8, 16), "sin": torch.zeros(8, 16)}
    with pytest.raises(RuntimeError, match=rf"^{name} has dtype {dtype}, but rotary embedding works in fp16"):
        function(**given | {name: given[name].to(dtype)})


def test_packed_types_that_can_not_be_rotated() -> None:
    qkv = torch.zeros(2, 8, 3, 4, 64, dtype=torch.int64)
    cos, sin = torch.ones(8, 16), torch.zeros(8, 16)
    with pytest.raises(RuntimeError, match=r"^qkv has dtype torch\.int64"):
        apply_rotary_emb_qkv_(qkv, cos, sin)
    with pytest.raises(RuntimeError, match=r"^kv has dtype torch\.int64"):
        apply_rotary_emb_kv_(qkv[:, :, :2], cos, sin)


@pytest.mark.parametrize("heads", [-2, 0, 4, 2.0, "2"])
def test_heads_that_do_not_fit(heads: Any) -> None:
    with pytest.raises((RuntimeError, TypeError), match="num_heads_q"):
        apply_rotary_emb_qkv_(
            torch.zeros(2, 8, 4, 64), torch.ones(8, 16), torch.zeros(8, 16), num_heads_q=heads
        )


def test_nothing_is_written_when_the_table_of_the_keys_is_short() -> None:
    qkv = torch.ones(2, 8, 3, 4, 64)
    with pytest.raises(RuntimeError, match="make it longer"):
        apply_rotary_emb_qkv_(
            qkv, torch.zeros(8, 16), torch.ones(8, 16), cos_k=torch.zeros(7, 16), sin_k=torch.ones(7, 16)
        )
    assert (qkv == 1).all()
