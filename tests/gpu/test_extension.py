"""flash_attn_2_cuda, which other projects import by its name."""

from __future__ import annotations

import torch
from gpu.support import cumulative, draw, draw_qkv, needs, packed

import flash_attn_2_cuda
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

OPTIONS = (True, -1, -1, 0.0)  # causal, window_left, window_right, softcap


def test_forward_into_a_given_tensor() -> None:
    q, k, v = draw_qkv(2, 100, 130, 4, 2, 64, torch.float16)
    expected, expected_lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    target = torch.full_like(q, torch.nan)
    out, lse, p, rng_state = flash_attn_2_cuda.fwd(q, k, v, target, None, 0.0, 0.125, *OPTIONS, False, None)
    assert out is target
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert p.numel() == 0
    assert rng_state.shape == (2,)
    odd = torch.nn.functional.pad(target, (0, 3))[..., :64].fill_(torch.nan)
    flash_attn_2_cuda.fwd(q, k, v, odd, None, 0.0, 0.125, *OPTIONS, False, None)
    assert torch.equal(odd, expected)


def test_own_generator() -> None:
    q, k, v = draw_qkv(2, 100, 130, 4, 2, 64, torch.float16)
    outs = []
    for seed in (1, 1, 2):
        generator = torch.Generator("cuda").manual_seed(seed)
        outs.append(flash_attn_2_cuda.fwd(q, k, v, None, None, 0.5, 0.125, *OPTIONS, False, generator)[0])
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


@needs("flash_bwd")
def test_backward() -> None:
    q, k, v = (x.requires_grad_() for x in draw_qkv(2, 100, 130, 4, 2, 64, torch.float16))
    out, lse, _ = flash_attn_func(q, k, v, causal=True, deterministic=True, return_attn_probs=True)
    dout = draw(*q.shape, dtype=q.dtype)
    expected = torch.autograd.grad(out, (q, k, v), dout)
    given = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    tensors = [x.detach() for x in (q, k, v, out)]
    *found, softmax_d = flash_attn_2_cuda.bwd(
        dout, *tensors, lse, *given, None, 0.0, 0.125, *OPTIONS, True, None, None
    )
    for one, other, target in zip(found, expected, given, strict=True):
        assert one is target
        assert torch.equal(one, other)
    assert softmax_d.shape == (2, 4, 128)
    rows = (dout.float() * out.float()).sum(-1).transpose(1, 2)
    torch.testing.assert_close(softmax_d[:, :, :100], rows, rtol=1e-3, atol=1e-3)


def test_packed_sequences() -> None:
    lengths = cumulative([30, 0, 70])
    q = packed([30, 0, 70], 4, 64, dtype=torch.float16)
    expected = flash_attn_varlen_func(q, q, q, lengths, lengths, 70, 70, causal=True)
    out, lse, _, _ = flash_attn_2_cuda.varlen_fwd(
        q,
        q,
        q,
        None,
        lengths,
        lengths,
        None,
        None,
        None,
        None,
        70,
        70,
        0.0,
        0.125,
        True,
        *OPTIONS,
        False,
        None,
    )
    assert torch.equal(out, expected)
    assert lse.shape == (4, 100)


@needs("flash_bwd")
def test_packed_backward() -> None:
    lengths = cumulative([30, 0, 70])
    q, k, v = (packed([30, 0, 70], 4, 64, dtype=torch.float16, seed=s).requires_grad_() for s in range(3))
    out, lse, _ = flash_attn_varlen_func(
        q, k, v, lengths, lengths, 70, 70, causal=True, deterministic=True, return_attn_probs=True
    )
    dout = draw(*q.shape, dtype=q.dtype)
    expected = torch.autograd.grad(out, (q, k, v), dout)
    tensors = [x.detach() for x in (q, k, v, out)]
    *found, softmax_d = flash_attn_2_cuda.varlen_bwd(
        dout, *tensors, lse, None, None, None, lengths, lengths, None, 70, 70, 0.0, 0.125, False, *OPTIONS,
        True, None, None,
    )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert softmax_d.shape == (4, 512)


@needs("flash_fwd_splitkv")
def test_cache() -> None:
    q, cache = draw(2, 1, 4, 64, dtype=torch.float16), draw(2, 100, 2, 64, dtype=torch.float16)
    lengths = torch.tensor([37, 60], dtype=torch.int32, device="cuda")
    expected = flash_attn_with_kvcache(q, cache, cache, cache_seqlens=lengths, causal=True)
    target = torch.full_like(q, torch.nan)
    nothing = (None, None)
    out, lse = flash_attn_2_cuda.fwd_kvcache(
        q, cache, cache, *nothing, lengths, *nothing, *nothing, *nothing, target, 0.125, *OPTIONS, True, 0
    )
    assert out is target
    assert torch.equal(out, expected)
    assert lse.shape == (2, 4, 1)
