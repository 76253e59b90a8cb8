"""Rotary embedding of one tensor, in one Triton kernel on a GPU, in PyTorch elsewhere."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from ... import _checks

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HAS_TRITON = importlib.util.find_spec("triton") is not None


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Rotates the first rotary_dim channels of every head by its position.

    Args:
        x: (batch, seqlen, nheads, headdim), or (total, nheads, headdim) with cu_seqlens.
        cos: (seqlen_ro, rotary_dim / 2).
        sin: as cos.
        seqlen_offsets: position of the first row: an int, or an integer tensor (batch,).
        cu_seqlens: int32 (batch + 1,): where packed sequences begin.
        max_seqlen: the longest packed sequence, required with cu_seqlens.
        interleaved: rotate neighbouring pairs; else the two halves of rotary_dim.
        inplace: write into x.
        conjugate: rotate backwards, which is the gradient.

    Returns:
        x itself with inplace, else a new tensor of its shape.

    Raises:
        RuntimeError: shapes, types or lengths don't fit.
    """
    batch = check_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen)
    if x.is_cuda and HAS_TRITON and x.numel():
        from ._rotary_kernel import launch

        out = x if inplace else torch.empty_like(x)
        if not inplace and 2 * cos.shape[1] < x.shape[-1]:
            out[..., 2 * cos.shape[1] :].copy_(x[..., 2 * cos.shape[1] :])
        launch(
            out, x, cos.contiguous(), sin.contiguous(), seqlen_offsets, cu_seqlens, max_seqlen, batch,
            interleaved, conjugate,
        )  # fmt: skip
        return out
    rotated = _rotate(x, cos, sin, _positions(x, seqlen_offsets, cu_seqlens), interleaved, conjugate)
    if inplace:
        return x.copy_(rotated)
    return rotated


def check_types(**named: Tensor) -> None:
    """Raises TypeError or RuntimeError unless all are dense tensors of a type that can be rotated."""
    _checks.tensors(**named)
    for name, value in named.items():
        if value.dtype not in DTYPES:
            raise RuntimeError(
                f"{name} has dtype {value.dtype}, but rotary embedding works in fp16, bf16, fp32 and fp64 "
                "only: cast it."
            )


def check_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> int:
    """The batch size. Raises TypeError or RuntimeError for what `apply_rotary` doesn't take."""
    check_types(x=x, cos=cos, sin=sin)
    if cu_seqlens is not None:
        _checks.tensors(cu_seqlens=cu_seqlens)
        if (
            cu_seqlens.dim() != 1
            or not cu_seqlens.shape[0]
            or cu_seqlens.dtype not in (torch.int32, torch.int64)
            or cu_seqlens.device != x.device
        ):
            raise RuntimeError(
                f"cu_seqlens is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)} on "
                f"{cu_seqlens.device}, but it must be int32 of shape (batch + 1,) on {x.device}."
            )
    rank = 4 if cu_seqlens is None else 3
    if x.dim() != rank:
        raise RuntimeError(
            f"x has shape {tuple(x.shape)}, but it must be "
            f"{'(batch, seqlen, nheads, headdim)' if rank == 4 else '(total, nheads, headdim)'}."
        )
    if cos.shape != sin.shape or cos.dim() != 2:
        raise RuntimeError(
            f"cos and sin have shapes {tuple(cos.shape)} and {tuple(sin.shape)}, but both must be "
            "(seqlen_ro, rotary_dim / 2)."
        )
    if 2 * cos.shape[1] > x.shape[-1]:
        raise RuntimeError(
            f"cos rotates {2 * cos.shape[1]} channels, but a head of x has only {x.shape[-1]}."
        )
    if cos.dtype != sin.dtype or cos.device != x.device or sin.device != x.device:
        raise RuntimeError(
            f"cos is {cos.dtype} on {cos.device} and sin {sin.dtype} on {sin.device}, but both must be of "
            f"one dtype and on {x.device}, as x is."
        )
    if cu_seqlens is not None and max_seqlen is None:
        raise RuntimeError("max_seqlen is missing: with cu_seqlens it must be the longest sequence.")
    if cu_seqlens is not None:
        _checks.whole(max_seqlen, "max_seqlen")
    if isinstance(seqlen_offsets, Tensor):
        _checks.tensors(seqlen_offsets=seqlen_offsets)
    else:
        _checks.whole(seqlen_offsets, "seqlen_offsets")
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    seqlen = x.shape[1] if cu_seqlens is None else max_seqlen
    if isinstance(seqlen_offsets, Tensor):
        if seqlen_offsets.shape != (batch,) or seqlen_offsets.dtype not in (torch.int32, torch.int64):
            raise RuntimeError(
                f"seqlen_offsets is {seqlen_offsets.dtype} of shape {tuple(seqlen_offsets.shape)}, "
                "but it must be "
                f"int32 or int64 of shape ({batch},)."
            )
    elif seqlen_offsets < 0 or seqlen_offsets + (seqlen or 0) > cos.shape[0]:
        raise RuntimeError(
            f"Positions {seqlen_offsets} to {seqlen_offsets + (seqlen or 0) - 1} are asked for, but cos has "
            f"{cos.shape[0]}: make it longer."
        )
    return batch


def _positions(x: Tensor, seqlen_offsets: int | Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The position of each row: (batch or 1, seqlen), packed (total,)."""
    if cu_seqlens is None:
        steps = torch.arange(x.shape[1], device=x.device)
        if isinstance(seqlen_offsets, Tensor):
            return seqlen_offsets.long()[:, None] + steps
        return steps[None] + seqlen_offsets
    rows = torch.arange(x.shape[0], device=x.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), rows, right=True)
    sequence = sequence.clamp(max=max(cu_seqlens.shape[0] - 2, 0))
    offset = seqlen_offsets.long()[sequence] if isinstance(seqlen_offsets, Tensor) else seqlen_offsets
    return rows - cu_seqlens.long()[sequence] + offset


def _rotate(
    x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool, conjugate: bool
) -> Tensor:
    half = cos.shape[1]
    positions = positions.clamp(0, max(cos.shape[0] - 1, 0))
    c, s = cos[positions].float().unsqueeze(-2), sin[positions].float().unsqueeze(-2)
    if conjugate:
        s = -s
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([first * c - second * s, first * s + second * c], dim=-1).flatten(-2)
    else:
        first, second = turned[..., :half], turned[..., half:]
        turned = torch.cat([first * c - second * s, first * s + second * c], dim=-1)
    return torch.cat([turned.to(x.dtype), rest], dim=-1)
