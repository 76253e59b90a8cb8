"""Attention written for clarity: every score is computed, nothing is clever.

In fp32 it is what results are measured against; in the 16-bit type of the inputs it is the plain PyTorch
computation whose error is the yardstick.
"""

from __future__ import annotations

import torch
from torch import Tensor


def visible(
    seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], device: torch.device
) -> Tensor:
    """Which keys (columns) each query (row) sees, aligned to the bottom right."""
    left, right = window
    if causal:
        right = 0
    position = torch.arange(seqlen_q, device=device)[:, None] + seqlen_k - seqlen_q
    key = torch.arange(seqlen_k, device=device)[None, :]
    seen = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    if left >= 0:
        seen &= key >= position - left
    if right >= 0:
        seen &= key <= position + right
    return seen


def alibi_bias(slopes: Tensor, seqlen_q: int, seqlen_k: int) -> Tensor:
    """(batch or 1, nheads, seqlen_q, seqlen_k) of slopes (batch, nheads) or (nheads,)."""
    position = torch.arange(seqlen_q, device=slopes.device)[:, None] + seqlen_k - seqlen_q
    distance = (position - torch.arange(seqlen_k, device=slopes.device)[None, :]).abs()
    if slopes.dim() == 1:
        slopes = slopes[None]
    return -slopes[:, :, None, None] * distance


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    keep: Tensor | None = None,
    dropout_p: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """out (batch, seqlen_q, nheads, headdim) and LSE (batch, nheads, seqlen_q), computed in dtype.

    keep (batch, nheads, seqlen_q, seqlen_k) says which weights dropout keeps.
    """
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    if softmax_scale is None:
        softmax_scale = q.shape[-1] ** -0.5
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q * softmax_scale, k)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if alibi_slopes is not None:
        scores = scores + alibi_bias(alibi_slopes, seqlen_q, seqlen_k).to(dtype)
    seen = visible(seqlen_q, seqlen_k, causal, window, q.device)
    sees_none = ~seen.any(dim=1)
    # Rows that see no key get harmless scores here and zero weights below, so that no gradient becomes NaN.
    scores = scores.masked_fill(~seen & ~sees_none[:, None], -torch.inf)
    scores = scores.masked_fill(sees_none[:, None], 0.0)
    lse = torch.logsumexp(scores.float(), dim=-1).masked_fill(sees_none, torch.inf)
    weights = torch.softmax(scores, dim=-1).masked_fill(sees_none[:, None], 0.0)
    if keep is not None:
        weights = weights * keep.to(dtype) / (1 - dropout_p)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse


def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths_q: list[int], lengths_k: list[int], **options: object
) -> tuple[Tensor, Tensor]:
    """out (total_q, nheads, headdim) and LSE (nheads, total_q) of sequences packed one after the other."""
    outs, lses = [], []
    slopes = options.pop("alibi_slopes", None)
    keep = options.pop("keep", None)
    pieces = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
    for index, (q_one, k_one, v_one) in enumerate(pieces):
        one = dict(options)
        if isinstance(slopes, Tensor):
            one["alibi_slopes"] = slopes if slopes.dim() == 1 else slopes[index]
        if isinstance(keep, Tensor):
            one["keep"] = keep[index : index + 1, :, : q_one.shape[0], : k_one.shape[0]]
        if k_one.shape[0] == 0:
            outs.append(torch.zeros_like(q_one, dtype=one.get("dtype", torch.float32)))
            lses.append(torch.full((q.shape[1], q_one.shape[0]), torch.inf, device=q.device))
            continue
        out, lse = attention(q_one[None], k_one[None], v_one[None], **one)
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, dim=1)
