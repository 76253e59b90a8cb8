"""Rotary embedding on the GPU, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from gpu.support import cumulative, draw, packed

from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb, apply_rotary_emb_torch
from flash_attn.ops.triton import rotary


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("half", [8, 24, 32])
def test_values_and_gradients(half: int, inplace: bool, interleaved: bool, dtype: torch.dtype) -> None:
    x = draw(2, 77, 3, 64, dtype=dtype).requires_grad_()
    angles = torch.rand(100, half, device="cuda") * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    wide = x.detach().float().requires_grad_()
    expected = apply_rotary_emb_torch(wide, cos[9:86].float(), sin[9:86].float(), interleaved)
    out = apply_rotary_emb(x * 1, cos, sin, interleaved, inplace, seqlen_offsets=9)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.float(), expected, rtol=2 * eps, atol=4 * eps)
    dout = draw(*out.shape, dtype=dtype, seed=3)
    (found,) = torch.autograd.grad(out, x, dout)
    (wanted,) = torch.autograd.grad(expected, wide, dout.float())
    torch.testing.assert_close(found.float(), wanted, rtol=2 * eps, atol=4 * eps)


@pytest.mark.parametrize("interleaved", [False, True])
def test_packed_rows_and_offsets(interleaved: bool) -> None:
    lengths = [20, 0, 33]
    x = packed(lengths, 2, 64, dtype=torch.float16)
    angles = torch.rand(50, 32, device="cuda") * 6
    cos, sin = angles.cos().half(), angles.sin().half()
    offsets = torch.tensor([3, 0, 10], dtype=torch.int32, device="cuda")
    out = apply_rotary_emb(
        x, cos, sin, interleaved, seqlen_offsets=offsets, cu_seqlens=cumulative(lengths), max_seqlen=33
    )
    for begin, length, offset in [(0, 20, 3), (20, 33, 10)]:
        piece = slice(offset, offset + length)
        rows = x[None, begin : begin + length].float()
        expected = apply_rotary_emb_torch(rows, cos[piece].float(), sin[piece].float(), interleaved)[0]
        torch.testing.assert_close(out[begin : begin + length].float(), expected, rtol=2e-3, atol=4e-3)


def test_module_in_place() -> None:
    module = RotaryEmbedding(32, device="cuda")
    qkv = draw(2, 40, 3, 4, 64, dtype=torch.bfloat16)
    expected = qkv.clone()
    angles = torch.outer(torch.arange(40, device="cuda").float(), module.inv_freq)
    cos, sin = angles.cos().bfloat16().float(), angles.sin().bfloat16().float()
    for index in (0, 1):
        expected[:, :, index] = apply_rotary_emb_torch(expected[:, :, index].float(), cos, sin).bfloat16()
    assert module(qkv) is qkv
    torch.testing.assert_close(qkv, expected, rtol=1.6e-2, atol=1.6e-2)


def test_triton_equals_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    x = draw(2, 40, 4, 64, dtype=torch.float16)
    angles = torch.rand(60, 32, device="cuda")
    by_triton = rotary.apply_rotary(x, angles.cos().half(), angles.sin().half(), 7)
    monkeypatch.setattr(rotary, "HAS_TRITON", False)
    by_torch = rotary.apply_rotary(x, angles.cos().half(), angles.sin().half(), 7)
    torch.testing.assert_close(by_triton, by_torch, rtol=1e-3, atol=1e-3)
