"""The functions that FlashAttention-2's extension module has, for projects that import it directly.

Shapes are those of `flash_attn.flash_attn_interface`; tensors that a call writes (out, dq, dk, dv, the
caches) are written in place. gen is a torch.Generator on the device, or None for torch's own.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from flash_attn import _backward, _checks, _forward, _kvcache, _ops

__all__ = ["bwd", "fwd", "fwd_kvcache", "varlen_bwd", "varlen_fwd"]


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    alibi_slopes: Tensor | None,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    return_softmax: bool,
    gen: torch.Generator | None,
) -> list[Tensor]:
    """Returns [out, softmax_lse, p, rng_state]; p is empty unless return_softmax and dropped."""
    _checks.tensors(q=q, k=k, v=v)
    result = _forward.dense(
        q, k, v, out, alibi_slopes, p_dropout, softmax_scale, is_causal, window_left, window_right, softcap,
        return_softmax, gen,
    )  # fmt: skip
    return list(_ops.four_tensors(result, q))


def varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_k: Tensor | None,
    leftpad_k: Tensor | None,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    return_softmax: bool,
    gen: torch.Generator | None,
) -> list[Tensor]:
    """Returns [out, softmax_lse, p, rng_state]."""
    _checks.tensors(q=q, k=k, v=v)
    result = _forward.varlen(
        q, k, v, out, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes,
        max_seqlen_q, max_seqlen_k, p_dropout, softmax_scale, zero_tensors, is_causal, window_left,
        window_right, softcap, return_softmax, gen,
    )  # fmt: skip
    return list(_ops.four_tensors(result, q))


def _list_of_four(gradients: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> list[Tensor]:
    return list(cast("tuple[Tensor, ...]", gradients))  # softmax_d is there unless it is declined


def bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    alibi_slopes: Tensor | None,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    deterministic: bool,
    gen: torch.Generator | None,
    rng_state: Tensor | None,
) -> list[Tensor]:
    """Returns [dq, dk, dv, softmax_d]. gen is not used: the backward takes the forward's rng_state."""
    _checks.tensors(q=q, k=k, v=v)
    return _list_of_four(
        _backward.dense(
            dout,
            q,
            k,
            v,
            out,
            softmax_lse,
            dq,
            dk,
            dv,
            alibi_slopes,
            p_dropout,
            softmax_scale,
            is_causal,
            window_left,
            window_right,
            softcap,
            deterministic,
            rng_state,
        )
    )


def varlen_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    alibi_slopes: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    deterministic: bool,
    gen: torch.Generator | None,
    rng_state: Tensor | None,
) -> list[Tensor]:
    """Returns [dq, dk, dv, softmax_d]."""
    _checks.tensors(q=q, k=k, v=v)
    return _list_of_four(
        _backward.varlen(
            dout,
            q,
            k,
            v,
            out,
            softmax_lse,
            dq,
            dk,
            dv,
            cu_seqlens_q,
            cu_seqlens_k,
            alibi_slopes,
            max_seqlen_q,
            max_seqlen_k,
            p_dropout,
            softmax_scale,
            zero_tensors,
            is_causal,
            window_left,
            window_right,
            softcap,
            deterministic,
            rng_state,
        )
    )


def fwd_kvcache(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    seqlens_k: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    cache_batch_idx: Tensor | None,
    leftpad_k: Tensor | None,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    out: Tensor | None,
    softmax_scale: float,
    is_causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    is_rotary_interleaved: bool,
    num_splits: int,
) -> list[Tensor]:
    """Returns [out, softmax_lse]."""
    return list(
        _kvcache.attend(
            q,
            kcache,
            vcache,
            k,
            v,
            rotary_cos,
            rotary_sin,
            seqlens_k,
            cache_batch_idx,
            leftpad_k,
            block_table,
            softmax_scale,
            is_causal,
            window_left,
            window_right,
            softcap,
            is_rotary_interleaved,
            alibi_slopes,
            num_splits,
            out,
        )
    )
