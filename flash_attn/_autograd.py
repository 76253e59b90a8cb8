"""Gradients for eager mode and torch.compile: one autograd function a layout, all over the same two steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _backward, _dispatch, _forward, _tensors


class Options(NamedTuple):
    dropout_p: float
    softmax_scale: float
    causal: bool
    window_left: int
    window_right: int
    softcap: float
    deterministic: bool
    return_attn_probs: bool
    direct: bool  # no dispatcher needs to see the forward


class Lengths(NamedTuple):
    """Of packed sequences."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int


def _once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """`once_differentiable`, without what it costs when the gradients get no gradients of their own."""
    guarded = once_differentiable(backward)

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        return guarded(ctx, *gradients) if torch.is_grad_enabled() else backward(ctx, *gradients)

    return run


def _attend(
    ctx: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Lengths | None,
    alibi_slopes: Tensor | None,
    options: Options,
    block_table: Tensor | None = None,
) -> Any:
    """out, or with return_attn_probs (out, softmax_lse), and S_dmask too with dropout."""
    dropout_p, scale, causal, left, right, softcap, _, return_attn_probs, direct = options
    if lengths is None:
        if direct:
            out, softmax_lse, s_dmask, rng_state = _forward.dense(
                q, k, v, None, alibi_slopes, dropout_p, scale, causal, left, right, softcap, return_attn_probs
            )
        else:
            out, softmax_lse, s_dmask, rng_state = torch.ops.flash_attn._flash_attn_forward(
                q, k, v, dropout_p, scale, causal, left, right, softcap, alibi_slopes, return_attn_probs
            )
        ctx.save_for_backward(q, k, v, out, softmax_lse, rng_state, alibi_slopes)
    else:
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k = lengths
        if direct:
            out, softmax_lse, s_dmask, rng_state = _forward.varlen(
                q, k, v, None, cu_seqlens_q, cu_seqlens_k, None, None, block_table, alibi_slopes,
                max_seqlen_q, max_seqlen_k, dropout_p, scale, False, causal, left, right, softcap,
                return_attn_probs,
            )  # fmt: skip
        else:
            out, softmax_lse, s_dmask, rng_state = torch.ops.flash_attn._flash_attn_varlen_forward(
                q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, scale, causal,
                left, right, softcap, alibi_slopes, return_attn_probs, block_table,
            )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, softmax_lse, rng_state, alibi_slopes, cu_seqlens_q, cu_seqlens_k)
        ctx.max_seqlen_q, ctx.max_seqlen_k = max_seqlen_q, max_seqlen_k
    ctx.options = options
    if not return_attn_probs:
        return out
    if not dropout_p:
        ctx.mark_non_differentiable(softmax_lse)
        return out, softmax_lse
    ctx.mark_non_differentiable(softmax_lse, s_dmask)
    return out, softmax_lse, s_dmask


def _differentiate(
    ctx: Any,
    dout: Tensor,
    saved: tuple[Any, ...],
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients, in dq, dk and dv where given. saved is ctx.saved_tensors, to be asked for only once."""
    dropout_p, scale, causal, left, right, softcap, deterministic, _, _ = ctx.options
    q, k, v, out, softmax_lse, rng_state, alibi_slopes = saved[:7]
    if not _dispatch.is_compiling() and _dispatch.is_direct(dout, q, k):
        if len(saved) == 7:
            return _backward.dense(
                dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, scale, causal, left,
                right, softcap, deterministic, rng_state, False,
            )[:3]  # fmt: skip
        cu_seqlens_q, cu_seqlens_k = saved[7:]
        return _backward.varlen(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes,
            ctx.max_seqlen_q, ctx.max_seqlen_k, dropout_p, scale, False, causal, left, right, softcap,
            deterministic, rng_state, False,
        )[:3]  # fmt: skip
    dq = _tensors.empty_like(q) if dq is None else dq
    dk = _tensors.empty_like(k) if dk is None else dk
    dv = _tensors.empty_like(v) if dv is None else dv
    tensors = (dout, q, k, v, out, softmax_lse, dq, dk, dv)
    options = (dropout_p, scale, causal, left, right, softcap, alibi_slopes, deterministic, rng_state)
    if len(saved) == 7:
        torch.ops.flash_attn._flash_attn_backward(*tensors, *options)
    else:
        torch.ops.flash_attn._flash_attn_varlen_backward(
            *tensors, *saved[7:], ctx.max_seqlen_q, ctx.max_seqlen_k, *options
        )
    return dq, dk, dv


class FlashAttnFunc(torch.autograd.Function):
    """q, k and v apart; dense when lengths is None."""

    @staticmethod
    def forward(
        ctx: Any,
        options: Options,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Lengths | None,
        alibi_slopes: Tensor | None,
        block_table: Tensor | None,
    ) -> Any:
        return _attend(ctx, q, k, v, lengths, alibi_slopes, options, block_table)

    @staticmethod
    @_once
    def backward(ctx: Any, dout: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
        return None, *_differentiate(ctx, dout, ctx.saved_tensors), None, None, None


class FlashAttnKVPackedFunc(torch.autograd.Function):
    """k and v in one tensor, whose gradient is written in place, with no copy to join two."""

    @staticmethod
    def forward(
        ctx: Any,
        options: Options,
        q: Tensor,
        kv: Tensor,
        lengths: Lengths | None,
        alibi_slopes: Tensor | None,
    ) -> Any:
        return _attend(ctx, q, kv.select(-3, 0), kv.select(-3, 1), lengths, alibi_slopes, options)

    @staticmethod
    @_once
    def backward(ctx: Any, dout: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        k = saved[1]
        dkv = torch.empty((*k.shape[:-2], 2, *k.shape[-2:]), dtype=k.dtype, device=k.device)
        dq, _, _ = _differentiate(ctx, dout, saved, None, dkv.select(-3, 0), dkv.select(-3, 1))
        return None, dq, dkv, None, None


class FlashAttnQKVPackedFunc(torch.autograd.Function):
    """q, k and v in one tensor, whose gradient is written in place, with no copy to join three."""

    @staticmethod
    def forward(
        ctx: Any,
        options: Options,
        qkv: Tensor,
        lengths: Lengths | None,
        alibi_slopes: Tensor | None,
    ) -> Any:
        q, k, v = qkv.select(-3, 0), qkv.select(-3, 1), qkv.select(-3, 2)
        return _attend(ctx, q, k, v, lengths, alibi_slopes, options)

    @staticmethod
    @_once
    def backward(ctx: Any, dout: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        q = saved[0]
        dqkv = torch.empty((*q.shape[:-2], 3, *q.shape[-2:]), dtype=q.dtype, device=q.device)
        _differentiate(ctx, dout, saved, dqkv.select(-3, 0), dqkv.select(-3, 1), dqkv.select(-3, 2))
        return None, dqkv, None, None
