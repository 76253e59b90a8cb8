"""Tensors as kernels want them: 16-byte aligned, strides and head dimension multiples of 8."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GRANULE = 8  # elements of 16 bits in the 16 bytes that kernels load at once
ROUNDING = 128  # lengths of buffers that tiles fill whole

try:
    from torch._C import _cuda_getCurrentRawStream

    current_stream = _cuda_getCurrentRawStream
except ImportError:  # a torch without CUDA, or one that renamed it

    def current_stream(device: int) -> int:
        """The address of the current stream of a device."""
        return int(torch.cuda.current_stream(device).cuda_stream)


def round_up(length: int) -> int:
    return -(-length // ROUNDING) * ROUNDING


# A tensor that kernels can use where it lies, its address, its strides of batch (0 for packed rows), row and
# head. A plain tuple: a named one costs a microsecond in the twelve of a forward and its backward together.
Placed = tuple[Tensor, int, tuple[int, ...]]


def _placed(x: Tensor) -> Placed | None:
    strides = x.stride()  # of (batch,) row, head and head_dim
    address = x.data_ptr()
    if (strides[0] | strides[-3] | strides[-2] | x.shape[-1]) & 7 or address & 15 or strides[-1] != 1:
        return None
    return x, address, strides[:3] if len(strides) == 4 else (0, strides[0], strides[1])


def _surely_placed(x: Tensor) -> Placed:
    placed = _placed(x)
    assert placed is not None
    return placed


def readable(x: Tensor) -> Placed:
    """x, or a copy with its head dimension padded by zeros, that kernels can read."""
    placed = _placed(x)
    if placed is not None:
        return placed
    if x.shape[-1] % GRANULE:
        return _surely_placed(F.pad(x, (0, -x.shape[-1] % GRANULE)).contiguous())
    return _surely_placed(x.clone(memory_format=torch.contiguous_format))


def writable(x: Tensor) -> Placed:
    """x, or an empty tensor to be written in its place and copied back by `write_back`."""
    placed = _placed(x)
    if placed is not None:
        return placed
    padded = (*x.shape[:-1], x.shape[-1] + -x.shape[-1] % GRANULE)
    return _surely_placed(torch.empty(padded, dtype=x.dtype, device=x.device))


def write_back(written: Tensor, x: Tensor) -> None:
    """Copies what was written in place of x."""
    if written is not x:
        x.copy_(written[..., : x.shape[-1]])


def empty_like(x: Tensor) -> Tensor:
    """A contiguous tensor like x, the quickest way."""
    return torch.empty_like(x) if x.is_contiguous() else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def empty_floats(shape: tuple[int, ...], beside: Tensor) -> Tensor:
    # Sizes one by one, which torch reads faster than a tuple.
    return torch.empty(*shape, dtype=torch.float32, device=beside.device)


def empty_bytes(count: int, beside: Tensor) -> Tensor | None:
    """Scratch memory, None for no bytes."""
    return torch.empty(count, dtype=torch.uint8, device=beside.device) if count else None


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
