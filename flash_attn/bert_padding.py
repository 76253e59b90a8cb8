"""Between padded batches and packed sequences. Differentiable, on any device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _checks


def _rows_like(x: Tensor, indices: Tensor) -> Tensor:
    """indices (n,) repeated over the other dimensions of x, as gather and scatter want them."""
    return indices.view(-1, *[1] * (x.dim() - 1)).expand(-1, *x.shape[1:])


class IndexFirstAxis(torch.autograd.Function):
    """Rows of x. Each row may be picked once, so that the gradient is a scatter with no sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> Tensor:
        if x.dim() < 2:
            raise RuntimeError(
                f"The input has shape {tuple(x.shape)}, but it must have at least two dimensions."
            )
        ctx.save_for_backward(indices)
        ctx.rows = x.shape[0]
        return torch.gather(x, 0, _rows_like(x, indices))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (indices,) = ctx.saved_tensors
        spread = torch.zeros((ctx.rows, *grad.shape[1:]), dtype=grad.dtype, device=grad.device)
        return spread.scatter(0, _rows_like(grad, indices), grad), None


class IndexPutFirstAxis(torch.autograd.Function):
    """Rows into zeros, each at an index of its own."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
        if indices.dim() != 1 or values.dim() < 2 or len(indices) != len(values):
            raise RuntimeError(
                f"indices and values have shapes {tuple(indices.shape)} and {tuple(values.shape)}, "
                "but they must be "
                "(n,) and (n, ...)."
            )
        ctx.save_for_backward(indices)
        put = torch.zeros((first_axis_dim, *values.shape[1:]), dtype=values.dtype, device=values.device)
        try:
            put[indices] = values
        except IndexError as error:  # on the CPU; a GPU finds out later
            raise RuntimeError(f"indices don't fit {first_axis_dim} rows: {error}.") from None
        return put

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        return grad[indices], None, None


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of x (rows, ...) at indices (n,), each at most once: (n, ...)."""
    _checks.tensors(x=x, indices=indices)
    return IndexFirstAxis.apply(x, indices)  # type: ignore[no-untyped-call, no-any-return]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """values (n, ...) at rows indices (n,) of zeros (first_axis_dim, ...)."""
    _checks.tensors(values=values, indices=indices)
    _checks.whole(first_axis_dim, "first_axis_dim")
    if first_axis_dim < 0:
        raise RuntimeError(f"first_axis_dim is {first_axis_dim}, but it must be at least 0.")
    return IndexPutFirstAxis.apply(values, indices, first_axis_dim)  # type: ignore[no-untyped-call, no-any-return]


class IndexFirstAxisResidual(torch.autograd.Function):
    """Rows of x, and x itself, through which the residual branch's gradient comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(indices)
        return x[indices], x.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_residual: Tensor) -> tuple[Tensor, None]:
        (indices,) = ctx.saved_tensors
        return grad_residual.index_add(0, indices, grad), None


def index_first_axis_residual(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x (rows, ...) at indices (n,), and x for a residual branch."""
    _checks.tensors(x=x, indices=indices)
    return IndexFirstAxisResidual.apply(x, indices)  # type: ignore[no-untyped-call, no-any-return]


def _cumulative(lengths: Tensor) -> Tensor:
    return F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))


def _check_mask(mask: Tensor, name: str, hidden_states: Tensor) -> None:
    _checks.tensors(hidden_states=hidden_states, **{name: mask})
    if mask.dim() != 2 or mask.shape != hidden_states.shape[:2] or mask.device != hidden_states.device:
        raise RuntimeError(
            f"{name} has shape {tuple(mask.shape)} on {mask.device}, hidden_states "
            f"{tuple(hidden_states.shape)} on {hidden_states.device}, but both must begin with (batch, "
            "seqlen) and be on one device."
        )


def _rows_kept(mask: Tensor) -> Tensor:
    return torch.nonzero(mask.flatten(), as_tuple=False).flatten()


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Packs the rows that a mask keeps.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask: (batch, seqlen), bool or int: 1 where a row counts.
        unused_mask: (batch, seqlen): 1 where a row is allocated though it doesn't count.

    Returns:
        hidden_states (total, ...), with the unused rows; indices (total,) of those rows among batch * seqlen;
        cu_seqlens (batch + 1,) int32; the longest sequence; seqused (batch,) int32, the rows that count,
        without the unused.
    """
    _check_mask(attention_mask, "attention_mask", hidden_states)
    if unused_mask is not None:
        _check_mask(unused_mask, "unused_mask", hidden_states)
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = _rows_kept(kept)
    longest = int(lengths.max().item()) if lengths.numel() else 0
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    packed = index_first_axis(rows, indices) if rows.dim() > 1 else rows[indices]
    return packed, indices, _cumulative(lengths), longest, used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Packs batches whose rows hold several sequences one after the other.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask_in_length: (batch, seqlen) int: the lengths of the sequences in each row, then zeros. A
            row of two sequences of lengths 2 and 3 is [2, 3, 0, 0, 0, 0].

    Returns:
        hidden_states (total, ...), indices (total,), cu_seqlens int32 of all sequences, the longest sequence.
    """
    _check_mask(attention_mask_in_length, "attention_mask_in_length", hidden_states)
    if attention_mask_in_length.is_floating_point():
        raise RuntimeError(
            f"attention_mask_in_length has dtype {attention_mask_in_length.dtype}, but lengths are integers."
        )
    row_lengths = attention_mask_in_length.sum(dim=-1)
    seqlen = attention_mask_in_length.shape[-1]
    columns = torch.arange(seqlen, device=row_lengths.device, dtype=row_lengths.dtype)
    indices = _rows_kept(columns[None, :] < row_lengths[:, None])
    lengths = attention_mask_in_length.flatten()[_rows_kept(attention_mask_in_length)]
    longest = int(lengths.max().item()) if lengths.numel() else 0
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    packed = index_first_axis(rows, indices) if rows.dim() > 1 else rows[indices]
    return packed, indices, _cumulative(lengths), longest


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The reverse of `unpad_input`: hidden_states (total, ...) into (batch, seqlen, ...), zeros elsewhere."""
    _checks.tensors(hidden_states=hidden_states, indices=indices)
    _checks.whole(batch, "batch")
    _checks.whole(seqlen, "seqlen")
    if hidden_states.dim() < 1 or batch < 0 or seqlen < 0 or len(hidden_states) > batch * seqlen:
        raise RuntimeError(
            f"hidden_states has shape {tuple(hidden_states.shape)}, which doesn't fit batch {batch} and "
            f"seqlen {seqlen}."
        )
    if hidden_states.dim() < 2:
        padded = index_put_first_axis(hidden_states[:, None], indices, batch * seqlen)[:, 0]
    else:
        padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.view(batch, seqlen, *hidden_states.shape[1:])
