"""The Triton kernel behind `apply_rotary`. Imported only where Triton is."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_ROWS = 8


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _rotary_kernel(
    out,
    x,
    cos,
    sin,
    cu_seqlens,
    offsets,
    offset,
    seqlen,
    seqlen_ro,
    half,
    stride_out_batch,
    stride_out_row,
    stride_out_head,
    stride_out_dim,
    stride_x_batch,
    stride_x_row,
    stride_x_head,
    stride_x_dim,
    IS_PACKED: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CONJUGATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # type: ignore[no-untyped-def]
    batch = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    if IS_PACKED:
        begin = tl.load(cu_seqlens + batch).to(tl.int64)
        seqlen = tl.load(cu_seqlens + batch + 1).to(tl.int64) - begin
        x += begin * stride_x_row
        out += begin * stride_out_row
    else:
        x += batch * stride_x_batch
        out += batch * stride_out_batch
    x += head * stride_x_head
    out += head * stride_out_head
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    position = rows + offset
    if HAS_OFFSETS:
        position = rows + tl.load(offsets + batch)
    inside = (rows[:, None] < seqlen) & (columns[None, :] < half)
    known = inside & (position[:, None] >= 0) & (position[:, None] < seqlen_ro)
    table = position[:, None].to(tl.int64) * half + columns[None, :]
    c = tl.load(cos + table, mask=known, other=1.0).to(tl.float32)
    s = tl.load(sin + table, mask=known, other=0.0).to(tl.float32)
    if CONJUGATE:
        s = -s
    if INTERLEAVED:
        first_column = 2 * columns
        second_column = 2 * columns + 1
    else:
        first_column = columns
        second_column = columns + half
    wide_rows = rows.to(tl.int64)[:, None]
    first_x = x + wide_rows * stride_x_row + first_column[None, :] * stride_x_dim
    second_x = x + wide_rows * stride_x_row + second_column[None, :] * stride_x_dim
    first_out = out + wide_rows * stride_out_row + first_column[None, :] * stride_out_dim
    second_out = out + wide_rows * stride_out_row + second_column[None, :] * stride_out_dim
    first = tl.load(first_x, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(second_x, mask=inside, other=0.0).to(tl.float32)
    tl.store(first_out, first * c - second * s, mask=inside)
    tl.store(second_out, first * s + second * c, mask=inside)


def launch(
    out: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor,
    cu_seqlens: Tensor | None,
    max_seqlen: int | None,
    batch: int,
    interleaved: bool,
    conjugate: bool,
) -> None:
    """Writes the rotated channels of x into out (which may be x); arguments are checked already."""
    packed = cu_seqlens is not None
    seqlen = max_seqlen if packed else x.shape[1]
    out_strides: tuple[Any, ...] = (0, *out.stride()) if packed else out.stride()
    x_strides: tuple[Any, ...] = (0, *x.stride()) if packed else x.stride()
    by_tensor = isinstance(seqlen_offsets, Tensor)
    grid = (triton.cdiv(seqlen, BLOCK_ROWS), x.shape[-2], batch)
    if not all(grid):
        return
    with torch.cuda.device(x.device):
        _rotary_kernel[grid](
            out, x, cos, sin, cu_seqlens if packed else x, seqlen_offsets if by_tensor else x,
            0 if by_tensor else seqlen_offsets, seqlen, cos.shape[0], cos.shape[1], *out_strides, *x_strides,
            IS_PACKED=packed, HAS_OFFSETS=by_tensor, INTERLEAVED=interleaved, CONJUGATE=conjugate,
            ROWS=BLOCK_ROWS, COLUMNS=triton.next_power_of_2(cos.shape[1]),
        )  # fmt: skip
