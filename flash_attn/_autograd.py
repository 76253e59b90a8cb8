"""Gradients for eager mode and torch.compile: one autograd function a layout, all over the same two steps."""

from __future__ import annotations

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


class Lengths(NamedTuple):
    """Of packed sequences."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int


def _attend(
    ctx: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Lengths | None,
    alibi_slopes: Tensor | None,
    options: Options,
    return_attn_probs: bool,
    block_table: Tensor | None = None,
) -> Any:
    dropout_p, scale, causal, left, right, softcap, _ = options
    direct = not _dispatch.is_compiling() and _dispatch.is_direct(q, k, v)
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
        return out, softmax_lse, None
    ctx.mark_non_differentiable(softmax_lse, s_dmask)
    return out, softmax_lse, s_dmask


def _differentiate(
    ctx: Any, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, dq: Tensor, dk: Tensor, dv: Tensor
) -> None:
    """Writes the gradients into dq, dk and dv."""
    dropout_p, scale, causal, left, right, softcap, deterministic = ctx.options
    saved = ctx.saved_tensors
    out, softmax_lse, rng_state, alibi_slopes = saved[3:7]
    direct = not _dispatch.is_compiling() and _dispatch.is_direct(dout, q, k)
    if len(saved) == 7:
        if direct:
            _backward.dense(
                dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, scale, causal, left,
                right, softcap, deterministic, rng_state,
            )  # fmt: skip
        else:
            torch.ops.flash_attn._flash_attn_backward(
                dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, scale, causal, left, right, softcap,
                alibi_slopes, deterministic, rng_state,
            )  # fmt: skip
        return
    cu_seqlens_q, cu_seqlens_k = saved[7:]
    if direct:
        _backward.varlen(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes,
            ctx.max_seqlen_q, ctx.max_seqlen_k, dropout_p, scale, False, causal, left, right, softcap,
            deterministic, rng_state,
        )  # fmt: skip
    else:
        torch.ops.flash_attn._flash_attn_varlen_backward(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, ctx.max_seqlen_q,
            ctx.max_seqlen_k, dropout_p, scale, causal, left, right, softcap, alibi_slopes, deterministic,
            rng_state,
        )  # fmt: skip


class FlashAttnFunc(torch.autograd.Function):
    """q, k and v apart; dense when lengths is None."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Lengths | None,
        alibi_slopes: Tensor | None,
        options: Options,
        return_attn_probs: bool,
        block_table: Tensor | None,
    ) -> Any:
        return _attend(ctx, q, k, v, lengths, alibi_slopes, options, return_attn_probs, block_table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors[:3]
        dq, dk, dv = _tensors.empty_like(q), _tensors.empty_like(k), _tensors.empty_like(v)
        _differentiate(ctx, dout, q, k, v, dq, dk, dv)
        return dq, dk, dv, None, None, None, None, None


class FlashAttnKVPackedFunc(torch.autograd.Function):
    """k and v in one tensor, whose gradient is written in place, with no copy to join two."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        kv: Tensor,
        lengths: Lengths | None,
        alibi_slopes: Tensor | None,
        options: Options,
        return_attn_probs: bool,
    ) -> Any:
        return _attend(
            ctx, q, kv.select(-3, 0), kv.select(-3, 1), lengths, alibi_slopes, options, return_attn_probs
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors[:3]
        dq = _tensors.empty_like(q)
        dkv = torch.empty((*k.shape[:-2], 2, *k.shape[-2:]), dtype=k.dtype, device=k.device)
        _differentiate(ctx, dout, q, k, v, dq, dkv.select(-3, 0), dkv.select(-3, 1))
        return dq, dkv, None, None, None, None


class FlashAttnQKVPackedFunc(torch.autograd.Function):
    """q, k and v in one tensor, whose gradient is written in place, with no copy to join three."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        lengths: Lengths | None,
        alibi_slopes: Tensor | None,
        options: Options,
        return_attn_probs: bool,
    ) -> Any:
        q, k, v = qkv.select(-3, 0), qkv.select(-3, 1), qkv.select(-3, 2)
        return _attend(ctx, q, k, v, lengths, alibi_slopes, options, return_attn_probs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors[:3]
        dqkv = torch.empty((*q.shape[:-2], 3, *q.shape[-2:]), dtype=q.dtype, device=q.device)
        _differentiate(ctx, dout, q, k, v, dqkv.select(-3, 0), dqkv.select(-3, 1), dqkv.select(-3, 2))
        return dqkv, None, None, None, None
