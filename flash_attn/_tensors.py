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


def is_ready(x: Tensor) -> bool:
    """Whether kernels can use x where it lies."""
    strides = x.stride()  # of (batch,) row, head and head_dim
    if (strides[0] | strides[-3] | strides[-2] | x.shape[-1]) % GRANULE:
        return False
    return strides[-1] == 1 and not x.data_ptr() % 16


def readable(x: Tensor) -> Tensor:
    """x, or a copy with its head dimension padded by zeros, that kernels can read."""
    if is_ready(x):
        return x
    if x.shape[-1] % GRANULE:
        return F.pad(x, (0, -x.shape[-1] % GRANULE))
    return x.clone(memory_format=torch.contiguous_format)


def writable(x: Tensor) -> Tensor:
    """x, or an empty tensor to be written in its place and copied back by `write_back`."""
    if is_ready(x):
        return x
    return torch.empty((*x.shape[:-1], x.shape[-1] + -x.shape[-1] % GRANULE), dtype=x.dtype, device=x.device)


def write_back(written: Tensor, x: Tensor) -> None:
    """Copies what was written in place of x."""
    if written is not x:
        x.copy_(written[..., : x.shape[-1]])


def strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of batch (0 for packed rows), row and head."""
    *batch, row, head, _ = x.stride()
    return batch[0] if batch else 0, row, head


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
