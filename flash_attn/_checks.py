"""What a call may hand over. Every check raises before anything is allocated, launched or written.

All functions look at types, shapes, strides and devices only, so they never wait for the GPU.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor

MAX_HEAD_DIM = 256
MAX_FLOAT = torch.finfo(torch.float32).max
MAX_ROWS = 2**31 - 1  # the launcher counts rows in 32 bits
NO_LIMIT = 1 << 29  # no sequence may be longer, so a window this wide ends nowhere

DTYPE_CODES = {torch.float16: 0, torch.bfloat16: 1}


class Sizes(NamedTuple):
    """Sizes of a call: of the longest sequence, and, packed, of all rows together (else 0)."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    nheads: int
    nheads_k: int
    head_dim: int
    total_q: int
    total_k: int


def tensors(**named: object) -> None:
    """Raises TypeError unless all are tensors, RuntimeError for nested and sparse ones."""
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, but it is {_kind(value)}.")
        if value.is_nested or value.layout is not torch.strided:
            raise RuntimeError(
                f"{name} is {'nested' if value.is_nested else value.layout}, but flash_attn takes dense "
                f"tensors only: {_made_dense(value, name)}."
            )


def _made_dense(value: Tensor, name: str) -> str:
    if not value.is_nested:
        return "call .to_dense() on it"
    if name in ("q", "k", "v", "kv", "qkv"):
        return "pack sequences of different lengths and call flash_attn_varlen_func"
    return "call .to_padded_tensor(0) on it"


def device_of(q: Tensor) -> int:
    """The CUDA ordinal that q lives on."""
    if not q.is_cuda:
        raise RuntimeError(
            f"q is on {q.device}, but flash_attn works on CUDA tensors only: move it with .cuda()."
        )
    return q.get_device()


def dense(q: Tensor, k: Tensor, v: Tensor) -> Sizes:
    """Sizes of q (batch, seqlen_q, nheads, head_dim) and of k, v (batch, seqlen_k, nheads_k, head_dim)."""
    try:
        shape_q, shape_k, shape_v = q.shape, k.shape, v.shape
    except RuntimeError:  # a nested tensor has none
        tensors(q=q, k=k, v=v)
        raise
    if len(shape_q) != 4 or len(shape_k) != 4:
        _rank(q, "q", 4, "(batch, seqlen_q, nheads, headdim)")
        _rank(k, "k", 4, "(batch, seqlen_k, nheads_k, headdim)")
    if shape_v != shape_k:
        _unequal_values(k, v)
    batch, seqlen_q, nheads, head_dim = shape_q
    batch_k, seqlen_k, nheads_k, head_dim_k = shape_k
    _alike(q, k, v, nheads, nheads_k, head_dim, head_dim_k)
    if batch != batch_k:
        raise RuntimeError(f"k has batch size {batch_k}, but q has {batch}: they must be equal.")
    return Sizes(batch, seqlen_q, seqlen_k, nheads, nheads_k, head_dim, 0, 0)


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    block_table: Tensor | None = None,
) -> Sizes:
    """Sizes of packed q (total_q, nheads, head_dim) and k, v (total_k, nheads_k, head_dim).

    With a block table k and v are pages (num_pages, page_size, nheads_k, head_dim).
    """
    _rank(q, "q", 3, "(total_q, nheads, headdim)")
    if block_table is None:
        _rank(k, "k", 3, "(total_k, nheads_k, headdim)")
    else:
        _rank(k, "k", 4, "(num_blocks, page_size, nheads_k, headdim), since there is a block_table")
    attend(q, k, v)
    total_q, nheads, head_dim = q.shape
    nheads_k = k.shape[-2]
    tensors(cu_seqlens_q=cu_seqlens_q)
    if cu_seqlens_q.dim() != 1 or cu_seqlens_q.numel() < 1:
        raise RuntimeError(
            f"cu_seqlens_q must have shape (batch + 1,), but it has {tuple(cu_seqlens_q.shape)}."
        )
    batch = cu_seqlens_q.numel() - 1
    index(cu_seqlens_q, "cu_seqlens_q", q, (batch + 1,))
    index(cu_seqlens_k, "cu_seqlens_k", q, (batch + 1,))
    length(max_seqlen_q, "max_seqlen_q")
    length(max_seqlen_k, "max_seqlen_k")
    total_k = 0
    if block_table is None:
        total_k = k.shape[0]
    else:
        pages(block_table, q, k, batch)
    if max(total_q, total_k) > MAX_ROWS:
        raise RuntimeError(
            f"q and k have {total_q} and {total_k} rows, but at most {MAX_ROWS} work: split the call."
        )
    return Sizes(batch, max_seqlen_q, max_seqlen_k, nheads, nheads_k, head_dim, total_q, total_k)


def attend_packed(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor | None) -> None:
    """What packed q, k and v must share, without asking how many rows they have."""
    _rank(q, "q", 3, "(total_q, nheads, headdim)")
    rank = 3 if block_table is None else 4
    _rank(k, "k", rank, "(total_k, nheads_k, headdim), or pages with a block_table")
    _rank(v, "v", rank, "of the shape of k")
    if v.shape[-2:] != k.shape[-2:]:
        _unequal_values(k, v)
    _alike(q, k, v, q.shape[-2], k.shape[-2], q.shape[-1], k.shape[-1])


def attend(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What q, k and v of any layout must share."""
    try:
        shape_q, shape_k, shape_v = q.shape, k.shape, v.shape
    except RuntimeError:
        tensors(q=q, k=k, v=v)
        raise
    if shape_v != shape_k:
        _unequal_values(k, v)
    _alike(q, k, v, shape_q[-2], shape_k[-2], shape_q[-1], shape_k[-1])


def _alike(
    q: Tensor, k: Tensor, v: Tensor, nheads: int, nheads_k: int, head_dim: int, head_dim_k: int
) -> None:
    dtype = q.dtype
    if dtype not in DTYPE_CODES:
        raise RuntimeError(
            f"q has dtype {dtype}, but flash_attn works in fp16 and bf16 only: cast q, k and v."
        )
    if k.dtype != dtype or v.dtype != dtype:
        raise RuntimeError(f"q, k and v have dtypes {dtype}, {k.dtype} and {v.dtype}: they must be equal.")
    if head_dim != head_dim_k:
        raise RuntimeError(f"q has head dimension {head_dim} and k {head_dim_k}: they must be equal.")
    if head_dim > MAX_HEAD_DIM or head_dim < 1:
        raise RuntimeError(
            f"The head dimension is {head_dim}, but flash_attn works from 1 to {MAX_HEAD_DIM}."
        )
    if nheads_k < 1 or nheads < 1 or nheads % nheads_k:
        raise RuntimeError(
            f"q has {nheads} heads and k {nheads_k}: the heads of q must be a positive multiple of "
            "those of k."
        )
    device = q.device
    if device != k.device or device != v.device:
        raise RuntimeError(
            f"q, k and v are on {device}, {k.device} and {v.device}: they must be on one device."
        )
    if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
        for name, x in (("q", q), ("k", k), ("v", v)):
            contiguous_last(x, name)


def contiguous_last(x: Tensor, name: str) -> None:
    if x.stride(-1) != 1 and x.shape[-1] != 1 and x.numel():
        tensors(**{name: x})
        raise RuntimeError(
            f"{name} has stride {x.stride(-1)} in its last dimension, but that must be contiguous: "
            f"call .contiguous() on it."
        )


def options(dropout_p: float, softmax_scale: float, softcap: float, causal: bool) -> None:
    if type(causal) is not bool:
        flag(causal, "causal")
    try:
        if (
            0.0 <= dropout_p < 1.0
            and -MAX_FLOAT <= softmax_scale <= MAX_FLOAT
            and 0.0 <= softcap <= MAX_FLOAT
            and not (softcap and dropout_p)
        ):
            return
    except (RuntimeError, TypeError, ValueError):  # no numbers, or tensors of several
        pass
    _refuse_options(dropout_p, softmax_scale, softcap)


def _refuse_options(dropout_p: float, softmax_scale: float, softcap: float) -> None:
    _number(dropout_p, "dropout_p")
    _number(softmax_scale, "softmax_scale")
    _number(softcap, "softcap")
    if not 0.0 <= dropout_p < 1.0:
        raise RuntimeError(f"dropout_p is {dropout_p}, but it must be at least 0 and less than 1.")
    if not -MAX_FLOAT <= softmax_scale <= MAX_FLOAT:
        raise RuntimeError(f"softmax_scale is {softmax_scale}, but it must be finite and fit fp32.")
    if not 0.0 <= softcap <= MAX_FLOAT:
        raise RuntimeError(f"softcap is {softcap}, but it must be 0 (none), or positive and fit fp32.")
    raise RuntimeError(
        f"softcap {softcap} and dropout_p {dropout_p} don't work together: set one of them to 0."
    )


def _number(value: object, name: str) -> None:
    if isinstance(value, (int, float)):
        return
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        float(value)  # type: ignore[arg-type]
    except (RuntimeError, TypeError, ValueError):
        raise TypeError(f"{name} must be a number, but it is {_kind(value)}.") from None


def flag(value: object, name: str) -> None:
    """Raises TypeError unless this is True, False, 1 or 0."""
    if not isinstance(value, int) or value not in (0, 1):
        shown = repr(value) if isinstance(value, (int, str)) else _kind(value)
        raise TypeError(f"{name} must be True or False, but it is {shown:.40}.")


def window(size: Any) -> tuple[int, int]:
    """Both sides of a window. Raises TypeError or ValueError unless there are two."""
    try:
        left, right = size
    except (TypeError, ValueError) as error:
        length = " of another length" if isinstance(error, ValueError) else ""
        raise type(error)(f"window_size must be (left, right), but it is {_kind(size)}{length}.") from None
    return left, right


def window_side(width: int) -> int:
    """A side of a window as the launcher wants it: -1 for no limit."""
    if not isinstance(width, int):
        try:
            width = operator.index(width)
        except TypeError:
            raise TypeError(f"window_size must hold integers, but it holds {_kind(width)}.") from None
    return width if 0 <= width < NO_LIMIT else -1


def whole(value: Any, name: str) -> None:
    """Raises TypeError unless this is an integer, of Python, NumPy or PyTorch."""
    if isinstance(value, (int, torch.SymInt)):
        return
    try:
        operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, but it is {_kind(value)}.") from None


def length(value: object, name: str) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, but it is {_kind(value)}.")
    if not 0 <= value <= NO_LIMIT:
        raise RuntimeError(f"{name} is {value}, but it must be at least 0 and at most {NO_LIMIT}.")


def index(x: object, name: str, q: Tensor, shape: tuple[int, ...]) -> None:
    """An int32 tensor that kernels read on the device of q."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, but it is {_kind(x)}.")
    if x.dtype != torch.int32:
        raise RuntimeError(f"{name} has dtype {x.dtype}, but it must be torch.int32.")
    _beside(x, name, q)
    if tuple(x.shape) != shape:
        raise RuntimeError(f"{name} has shape {tuple(x.shape)}, but it must be {shape}.")
    if not x.is_contiguous():
        raise RuntimeError(f"{name} must be contiguous, but it has strides {x.stride()}.")


def pages(block_table: object, q: Tensor, k: Tensor, batch: int) -> None:
    """block_table (batch, max_blocks), and k (num_pages, page_size, nheads_k, head_dim)."""
    if not isinstance(block_table, Tensor):
        raise TypeError(f"block_table must be a torch.Tensor, but it is {_kind(block_table)}.")
    if block_table.dtype != torch.int32:
        raise RuntimeError(f"block_table has dtype {block_table.dtype}, but it must be torch.int32.")
    _beside(block_table, "block_table", q)
    if block_table.dim() != 2 or block_table.shape[0] != batch:
        raise RuntimeError(
            f"block_table has shape {tuple(block_table.shape)}, but it must be (batch, max_blocks) "
            f"with batch {batch}."
        )
    if block_table.stride(1) != 1 and block_table.shape[1] > 1:
        raise RuntimeError(
            f"block_table must be contiguous in its last dimension, not {block_table.stride()}."
        )
    if k.shape[1] < 16 or k.shape[1] % 16:
        raise RuntimeError(f"The page size is {k.shape[1]}, but it must be a positive multiple of 16.")


def alibi(slopes: Tensor | None, q: Tensor, batch: int, nheads: int) -> int:
    """The stride of the slopes from sequence to sequence."""
    if slopes is None:
        return 0
    tensors(alibi_slopes=slopes)
    if slopes.dtype != torch.float32:
        raise RuntimeError(f"alibi_slopes has dtype {slopes.dtype}, but it must be torch.float32.")
    _beside(slopes, "alibi_slopes", q)
    if tuple(slopes.shape) not in ((nheads,), (batch, nheads)):
        raise RuntimeError(
            f"alibi_slopes has shape {tuple(slopes.shape)}, but it must be ({nheads},) or ({batch}, "
            f"{nheads})."
        )
    batch_stride = slopes.stride(0) if slopes.dim() == 2 and batch > 1 else 0
    if (slopes.stride(-1) != 1 and nheads > 1) or batch_stride not in (0, nheads):
        raise RuntimeError(f"alibi_slopes must be contiguous, but it has strides {slopes.stride()}.")
    return batch_stride


def like(x: object, name: str, other: Tensor, other_name: str) -> None:
    """A tensor of 16-bit floats of the shape, dtype and device of another."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, but it is {_kind(x)}.")
    if x.shape != other.shape:
        raise RuntimeError(f"{name} has shape {tuple(x.shape)}, but {other_name} has {tuple(other.shape)}.")
    if x.dtype != other.dtype:
        raise RuntimeError(f"{name} has dtype {x.dtype}, but {other_name} has {other.dtype}.")
    _beside(x, name, other)


def output(x: object, name: str, other: Tensor, other_name: str) -> None:
    """A tensor that kernels write."""
    like(x, name, other, other_name)
    assert isinstance(x, Tensor)
    contiguous_last(x, name)


def lse(softmax_lse: object, q: Tensor, shape: tuple[int, ...]) -> None:
    """softmax_lse as the forward gave it."""
    if not isinstance(softmax_lse, Tensor):
        raise TypeError(f"softmax_lse must be a torch.Tensor, but it is {_kind(softmax_lse)}.")
    if softmax_lse.dtype != torch.float32 or tuple(softmax_lse.shape) != shape:
        raise RuntimeError(
            f"softmax_lse is {softmax_lse.dtype} of shape {tuple(softmax_lse.shape)}, but it must be "
            "torch.float32 "
            f"of shape {shape}."
        )
    _beside(softmax_lse, "softmax_lse", q)


def rng(rng_state: object, q: Tensor) -> None:
    """The Philox seed and offset that the forward returned."""
    if not isinstance(rng_state, Tensor):
        raise RuntimeError(
            "rng_state is missing: with dropout the backward needs the one that the forward returned."
        )
    if rng_state.dtype != torch.int64 or rng_state.numel() != 2 or not rng_state.is_contiguous():
        raise RuntimeError(
            f"rng_state is {rng_state.dtype} of shape {tuple(rng_state.shape)}, but it must be the "
            "int64 pair that "
            "the forward returned."
        )
    _beside(rng_state, "rng_state", q)


def packed(x: object, name: str, parts: int, rank: int) -> None:
    """A tensor that holds q, k and v, or k and v, side by side in its third last dimension."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, but it is {_kind(x)}.")
    if x.is_nested or x.dim() != rank or x.shape[-3] != parts:
        tensors(**{name: x})
        rows = "batch, seqlen" if rank == 5 else "total"
        raise RuntimeError(
            f"{name} has shape {tuple(x.shape)}, but it must be ({rows}, {parts}, nheads, headdim)."
        )


def _rank(x: Tensor, name: str, rank: int, meaning: str) -> None:
    if x.dim() != rank:
        tensors(**{name: x})
        raise RuntimeError(f"{name} has shape {tuple(x.shape)}, but it must be {meaning}.")


def _unequal_values(k: Tensor, v: Tensor) -> None:
    raise RuntimeError(f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}: they must be equal.")


def _beside(x: Tensor, name: str, q: Tensor) -> None:
    if x.device != q.device:
        raise RuntimeError(f"{name} is on {x.device}, but q is on {q.device}: they must be on one device.")


def _kind(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
