"""The operators on CPU tensors, computed by the reference, so that what surrounds them runs without a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from gpu import reference
from torch import Tensor


def _options(arguments: tuple[Any, ...]) -> dict[str, Any]:
    dropout_p, softmax_scale, causal, left, right, softcap, alibi_slopes = arguments
    assert not dropout_p
    window = (left, right)
    return {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": window,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
    }


def _lengths(cu_seqlens: Tensor) -> list[int]:
    return cu_seqlens.diff().tolist()


def _rest(q: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty(0, dtype=q.dtype), torch.zeros(2, dtype=torch.int64)


def _forward(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    out, lse = reference.attention(q, k, v, **_options(arguments[:7]))
    return (out.to(q.dtype).contiguous(), lse.contiguous(), *_rest(q))


def _varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, *arguments: Any
) -> tuple[Tensor, ...]:
    arguments = (*arguments, *(-1, -1, 0.0, None)[len(arguments) - 3 :])[:7]
    options = _options(arguments)
    out, lse = reference.varlen_attention(q, k, v, _lengths(cu_q), _lengths(cu_k), **options)
    return (out.to(q.dtype).contiguous(), lse.contiguous(), *_rest(q))


def _gradients(
    attention: Any, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, written: tuple[Any, ...]
) -> None:
    def differentiate() -> tuple[Tensor, ...]:
        inputs = [x.detach().float().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attention(*inputs), inputs, dout.float())

    # Below the dispatcher's autograd keys this thread records no gradients; a new one does.
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(differentiate).result()
    for target, gradient in zip(written, found, strict=True):
        target.copy_(gradient)


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *arguments: Any
) -> Tensor:
    options = _options(arguments[3:10])
    _gradients(lambda *x: reference.attention(*x, **options)[0], dout, q, k, v, arguments[:3])
    batch, seqlen_q, nheads, _ = q.shape
    return torch.zeros(batch, nheads, -(-seqlen_q // 128) * 128)


def _varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *arguments: Any
) -> Tensor:
    cu_q, cu_k = arguments[3:5]
    options = _options(arguments[7:14])
    lengths = _lengths(cu_q), _lengths(cu_k)
    _gradients(
        lambda *x: reference.varlen_attention(*x, *lengths, **options)[0], dout, q, k, v, arguments[:3]
    )
    return torch.zeros(q.shape[1], -(-(q.shape[0] + 128 * (cu_q.numel() - 1)) // 128) * 128)


def _with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any, v: Any, *rest: Any
) -> tuple[Tensor, Tensor]:
    lengths, length, scale, causal, left, right, softcap = rest[2], rest[3], *rest[7:12]
    if k is not None:
        assert lengths is not None
        for row, begin in enumerate(lengths.tolist()):
            k_cache[row, begin : begin + k.shape[1]] = k[row]
            v_cache[row, begin : begin + k.shape[1]] = v[row]
        lengths = lengths + k.shape[1]
    options = _options((0.0, scale, causal, left, right, softcap, None))
    ends = [length or k_cache.shape[1]] * q.shape[0] if lengths is None else lengths.tolist()
    pairs = [
        reference.attention(
            q[row : row + 1], k_cache[row : row + 1, :end], v_cache[row : row + 1, :end], **options
        )
        for row, end in enumerate(ends)
    ]
    out, lse = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return out.to(q.dtype), lse


def register() -> torch.library.Library:
    """For the rest of the process; keep what it gives."""
    import flash_attn  # noqa: F401  defines the operators

    library = torch.library.Library("flash_attn", "IMPL")
    library.impl("_flash_attn_forward", _forward, "CPU")
    library.impl("_flash_attn_varlen_forward", _varlen_forward, "CPU")
    library.impl("_flash_attn_backward", _backward, "CPU")
    library.impl("_flash_attn_varlen_backward", _varlen_backward, "CPU")
    library.impl("_flash_attn_with_kvcache", _with_kvcache, "CPU")
    return library
