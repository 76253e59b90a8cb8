"""Rotary position embedding (RoFormer, Su et al. 2021), with the length scaling of xPos (Sun et al. 2022)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _checks
from ..ops.triton.rotary import apply_rotary, check_rotary, check_types


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """x turned by a quarter: (a, b) becomes (-b, a), of neighbouring pairs or of the two halves."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """The same as `apply_rotary_emb` in plain PyTorch.

    x is (batch, seqlen, nheads, headdim), cos and sin are (seqlen, rotary_dim / 2) or (batch, seqlen,
    rotary_dim / 2).
    """
    check_types(x=x, cos=cos, sin=sin)
    if x.dim() < 3 or cos.dim() < 2 or cos.shape != sin.shape:
        raise RuntimeError(
            f"x, cos and sin have shapes {tuple(x.shape)}, {tuple(cos.shape)} and {tuple(sin.shape)}, but "
            "they must be (batch, seqlen, nheads, headdim) and twice (seqlen, rotary_dim / 2)."
        )
    rotary_dim = cos.shape[-1] * 2
    if rotary_dim > x.shape[-1]:
        raise RuntimeError(f"cos rotates {rotary_dim} channels, but a head of x has only {x.shape[-1]}.")
    if interleaved:
        cos, sin = (table.repeat_interleave(2, dim=-1).unsqueeze(-2) for table in (cos, sin))
    else:
        cos, sin = (torch.cat((table, table), dim=-1).unsqueeze(-2) for table in (cos, sin))
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    return torch.cat([turned * cos + rotate_half(turned, interleaved) * sin, rest], dim=-1)


class ApplyRotaryEmb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool,
        inplace: bool,
        seqlen_offsets: int | Tensor,
        cu_seqlens: Tensor | None,
        max_seqlen: int | None,
    ) -> Tensor:
        out = apply_rotary(
            x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved=interleaved, inplace=inplace
        )
        by_tensor = isinstance(seqlen_offsets, Tensor)
        ctx.save_for_backward(cos, sin, cu_seqlens, seqlen_offsets if by_tensor else None)
        ctx.seqlen_offset = None if by_tensor else seqlen_offsets
        ctx.interleaved, ctx.max_seqlen = interleaved, max_seqlen
        if inplace:
            ctx.mark_dirty(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, cu_seqlens, offsets = ctx.saved_tensors
        turned = apply_rotary(
            grad, cos, sin, ctx.seqlen_offset if offsets is None else offsets, cu_seqlens, ctx.max_seqlen,
            interleaved=ctx.interleaved, conjugate=True,
        )  # fmt: skip
        return turned, None, None, None, None, None, None, None


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Rotates the first rotary_dim channels of every head by its position. Differentiable in x.

    Args:
        x: (batch, seqlen, nheads, headdim), or (total, nheads, headdim) with cu_seqlens.
        cos: (seqlen_ro, rotary_dim / 2), rotary_dim at most headdim.
        sin: as cos.
        interleaved: rotate neighbouring pairs (GPT-J); else the two halves of rotary_dim (GPT-NeoX).
        inplace: write into x.
        seqlen_offsets: position of the first row: an int, or an integer tensor (batch,).
        cu_seqlens: int32 (batch + 1,): where packed sequences begin.
        max_seqlen: the longest packed sequence, required with cu_seqlens.

    Returns:
        A tensor of the shape of x; x itself with inplace.
    """
    return ApplyRotaryEmb.apply(  # type: ignore[no-untyped-call, no-any-return]
        x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen
    )


apply_rotary_emb_func = apply_rotary_emb


def _turn_in_place(
    x: Tensor, cos: Tensor, sin: Tensor, offsets: int | Tensor, interleaved: bool, back: bool
) -> None:
    apply_rotary(x, cos, sin, offsets, interleaved=interleaved, inplace=True, conjugate=back)


class ApplyRotaryEmbQKV(torch.autograd.Function):
    """q and k of a packed qkv, in place. The gradient is turned back in place too."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        cos_k: Tensor | None,
        sin_k: Tensor | None,
        interleaved: bool,
        seqlen_offsets: int | Tensor,
        num_heads_q: int | None,
    ) -> Tensor:
        by_tensor = isinstance(seqlen_offsets, Tensor)
        ctx.save_for_backward(cos, sin, cos_k, sin_k, seqlen_offsets if by_tensor else None)
        ctx.options = (None if by_tensor else seqlen_offsets, interleaved, num_heads_q)
        ApplyRotaryEmbQKV.turn(qkv, cos, sin, cos_k, sin_k, seqlen_offsets, interleaved, num_heads_q, False)
        ctx.mark_dirty(qkv)
        return qkv

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, cos_k, sin_k, offsets = ctx.saved_tensors
        offset, interleaved, num_heads_q = ctx.options
        # Whoever else holds this gradient must not see it change.
        grad = grad.clone()
        offsets = offset if offsets is None else offsets
        ApplyRotaryEmbQKV.turn(grad, cos, sin, cos_k, sin_k, offsets, interleaved, num_heads_q, True)
        return grad, None, None, None, None, None, None, None

    @staticmethod
    def turn(
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        cos_k: Tensor | None,
        sin_k: Tensor | None,
        offsets: int | Tensor,
        interleaved: bool,
        num_heads_q: int | None,
        back: bool,
    ) -> None:
        q, k = _query_and_key(qkv, num_heads_q)
        own_cos, own_sin = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
        check_rotary(k, own_cos, own_sin, offsets)  # before q is written
        _turn_in_place(q, cos, sin, offsets, interleaved, back)
        _turn_in_place(k, own_cos, own_sin, offsets, interleaved, back)


def _query_and_key(qkv: Tensor, num_heads_q: int | None) -> tuple[Tensor, Tensor]:
    check_types(qkv=qkv)
    if qkv.dim() == 5:
        if qkv.shape[2] != 3:
            raise RuntimeError(
                f"qkv has shape {tuple(qkv.shape)}, but it must be (batch, seqlen, 3, nheads, headdim)."
            )
        return qkv[:, :, 0], qkv[:, :, 1]
    if qkv.dim() != 4 or num_heads_q is None:
        raise RuntimeError(
            f"qkv has shape {tuple(qkv.shape)} and num_heads_q is {num_heads_q}, but qkv must be "
            "(batch, seqlen, 3, "
            "nheads, headdim), or (batch, seqlen, num_heads_q + 2 * num_heads_k, headdim) with "
            "num_heads_q given."
        )
    _checks.whole(num_heads_q, "num_heads_q")
    num_heads_k = (qkv.shape[2] - num_heads_q) // 2
    if num_heads_q < 1 or num_heads_k < 1 or num_heads_q + 2 * num_heads_k != qkv.shape[2]:
        raise RuntimeError(
            f"num_heads_q is {num_heads_q}, which doesn't fit the {qkv.shape[2]} heads of qkv."
        )
    return qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : num_heads_q + num_heads_k]


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Rotates q and k of qkv in place and returns qkv.

    Args:
        qkv: (batch, seqlen, 3, nheads, headdim), or (batch, seqlen, num_heads_q + 2 * num_heads_k, headdim).
        cos: (seqlen_ro, rotary_dim / 2).
        sin: as cos.
        cos_k: for k, where it differs (xPos).
        sin_k: as cos_k.
        interleaved: rotate neighbouring pairs; else the two halves.
        seqlen_offsets: position of the first row: an int, or an integer tensor (batch,).
        num_heads_q: heads of q, for the second layout.
    """
    return ApplyRotaryEmbQKV.apply(  # type: ignore[no-untyped-call, no-any-return]
        qkv, cos, sin, cos_k, sin_k, interleaved, seqlen_offsets, num_heads_q
    )


class ApplyRotaryEmbKV(torch.autograd.Function):
    """k of a packed kv, in place."""

    @staticmethod
    def forward(
        ctx: Any, kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, seqlen_offsets: int | Tensor
    ) -> Tensor:
        check_types(kv=kv)
        if kv.dim() != 5 or kv.shape[2] != 2:
            raise RuntimeError(
                f"kv has shape {tuple(kv.shape)}, but it must be (batch, seqlen, 2, nheads, headdim)."
            )
        by_tensor = isinstance(seqlen_offsets, Tensor)
        ctx.save_for_backward(cos, sin, seqlen_offsets if by_tensor else None)
        ctx.options = (None if by_tensor else seqlen_offsets, interleaved)
        _turn_in_place(kv[:, :, 0], cos, sin, seqlen_offsets, interleaved, False)
        ctx.mark_dirty(kv)
        return kv

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, offsets = ctx.saved_tensors
        offset, interleaved = ctx.options
        grad = grad.clone()
        _turn_in_place(grad[:, :, 0], cos, sin, offset if offsets is None else offsets, interleaved, True)
        return grad, None, None, None, None


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0
) -> Tensor:
    """Rotates k of kv (batch, seqlen, 2, nheads, headdim) in place and returns kv."""
    return ApplyRotaryEmbKV.apply(  # type: ignore[no-untyped-call, no-any-return]
        kv, cos, sin, interleaved, seqlen_offsets
    )


class RotaryEmbedding(torch.nn.Module):
    """Rotary embedding with tables that grow as sequences do.

    Args:
        dim: rotary_dim: how many channels of a head are rotated.
        base: of the geometric series of frequencies.
        interleaved: rotate neighbouring pairs; else the two halves.
        scale_base: length over which xPos decays; None for no xPos.
        pos_idx_in_fp32: count positions in fp32 whatever the type of the inputs, so that long ones stay
        apart.
        device: where the tables are made.
    """

    cos_cached: Tensor | None
    sin_cached: Tensor | None
    cos_k_cached: Tensor | None
    sin_k_cached: Tensor | None
    inv_freq: Tensor
    scale: Tensor | None

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        pos_idx_in_fp32: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.base = float(base)
        self.interleaved = interleaved
        self.scale_base = scale_base
        self.pos_idx_in_fp32 = pos_idx_in_fp32
        self.register_buffer("inv_freq", self._frequencies(device), persistent=False)
        scale = None
        if scale_base is not None:
            channels = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
            scale = (channels + 0.4 * dim) / (1.4 * dim)  # xPos, section 3: gamma of 0.4
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self.cos_cached = self.sin_cached = self.cos_k_cached = self.sin_k_cached = None

    def _frequencies(self, device: torch.device | str | None) -> Tensor:
        channels = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return 1.0 / self.base ** (channels / self.dim)

    def _update_cos_sin_cache(
        self, seqlen: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        """Makes the tables cover seqlen positions, on this device and in this type."""
        cached = self.cos_cached
        if (
            cached is not None
            and seqlen <= self._seq_len_cached
            and cached.device == device
            and cached.dtype == dtype
            and not (self.training and cached.is_inference())
        ):
            return
        self._seq_len_cached = seqlen
        if self.pos_idx_in_fp32:
            positions = torch.arange(seqlen, device=device, dtype=torch.float32)
            # A model cast to 16 bits has a cast inv_freq, which is too coarse: make it anew.
            frequencies = self.inv_freq if self.inv_freq.dtype == torch.float32 else self._frequencies(device)
        else:
            positions = torch.arange(seqlen, device=device, dtype=self.inv_freq.dtype)
            frequencies = self.inv_freq
        angles = torch.outer(positions, frequencies.to(device))
        if self.scale is None:
            self.cos_cached, self.sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)
            return
        assert self.scale_base is not None
        centred = (torch.arange(seqlen, device=device, dtype=torch.float32) - seqlen // 2) / self.scale_base
        scale = self.scale.to(device) ** centred[:, None]
        self.cos_cached, self.sin_cached = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
        self.cos_k_cached, self.sin_k_cached = (
            (angles.cos() / scale).to(dtype),
            (angles.sin() / scale).to(dtype),
        )

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotates in place.

        Args:
            qkv: (batch, seqlen, 3, nheads, headdim), or (batch, seqlen, heads of q, k and v, headdim) with
                num_heads_q; with kv only q (batch, seqlen, nheads, headdim).
            kv: (batch, seqlen, 2, nheads_k, headdim).
            seqlen_offset: position of the first row: an int, or an integer tensor (batch,).
            max_seqlen: positions that the tables must cover; needed when seqlen_offset is a tensor.
            num_heads_q: heads of q, for the second layout.

        Returns:
            qkv, or q and kv.
        """
        check_types(qkv=qkv)
        seqlen = qkv.shape[1]
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, device=qkv.device, dtype=qkv.dtype)
        elif isinstance(seqlen_offset, int):
            self._update_cos_sin_cache(seqlen + seqlen_offset, device=qkv.device, dtype=qkv.dtype)
        cos, sin = self.cos_cached, self.sin_cached
        if cos is None or sin is None:
            raise RuntimeError("seqlen_offset is a tensor and there are no tables yet: give max_seqlen.")
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv,
                cos,
                sin,
                self.cos_k_cached,
                self.sin_k_cached,
                self.interleaved,
                seqlen_offset,
                num_heads_q,
            )
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        cos_k = cos if self.cos_k_cached is None else self.cos_k_cached
        sin_k = sin if self.sin_k_cached is None else self.sin_k_cached
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
