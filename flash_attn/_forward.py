"""Forward attention on CUDA tensors: checks, allocation, launch. Knows nothing of autograd."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import _checks, _launcher, _tensors

Result = tuple[Tensor, Tensor, "Tensor | None", "Tensor | None"]  # out, softmax_lse, S_dmask, rng_state

SPLIT_KEYS_FAMILY = "flash_fwd_splitkv"
# Few queries and many keys leave most of a GPU idle unless the keys are split. From these lengths on the
# launcher is asked whether splitting pays.
SPLIT_MAX_QUERIES = 64
SPLIT_MIN_KEYS = 1024


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    alibi_slopes: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    return_softmax: bool,
    generator: torch.Generator | None = None,
) -> Result:
    """Attention of q (batch, seqlen_q, nheads, head_dim) to k and v (batch, seqlen_k, nheads_k, head_dim).

    Returns out (new, contiguous, unless given), softmax_lse fp32 (batch, nheads, seqlen_q), and with dropout
    S_dmask, if wanted, and the state of the random generator, int64 (2,).
    """
    sizes = _checks.dense(q, k, v)
    return _run(
        q, k, v, out, sizes, None, None, None, None, None, alibi_slopes, dropout_p, softmax_scale, causal,
        window_left, window_right, softcap, return_softmax, generator,
    )  # fmt: skip


def varlen(
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
    dropout_p: float,
    softmax_scale: float | None,
    zero_tensors: bool,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    return_softmax: bool,
    generator: torch.Generator | None = None,
) -> Result:
    """As `dense`, of packed sequences: q (total_q, nheads, head_dim), softmax_lse (nheads, total_q)."""
    sizes = _checks.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table)
    for name, x in (("seqused_k", seqused_k), ("leftpad_k", leftpad_k)):
        if x is not None:
            _checks.index(x, name, q, (sizes.batch,))
    if dropout_p and block_table is not None:
        raise RuntimeError(
            f"dropout_p is {dropout_p}, but there is no dropout with a block_table: set it to 0."
        )
    return _run(
        q, k, v, out, sizes, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes,
        dropout_p, softmax_scale, causal, window_left, window_right, softcap, return_softmax, generator,
        zero_tensors,
    )  # fmt: skip


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    sizes: _checks.Sizes,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    leftpad_k: Tensor | None,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    return_softmax: bool,
    generator: torch.Generator | None,
    zero_tensors: bool = False,
) -> Result:
    batch, seqlen_q, seqlen_k, nheads, nheads_k, head_dim, total_q, total_k = sizes
    if softmax_scale is None:
        softmax_scale = head_dim**-0.5
    _checks.options(dropout_p, softmax_scale, softcap, causal)
    window_left = _checks.window_side(window_left)
    window_right = 0 if causal else _checks.window_side(window_right)
    alibi_batch_stride = 0
    if alibi_slopes is not None:
        alibi_batch_stride = _checks.alibi(alibi_slopes, q, batch, nheads)
    if out is not None:
        _checks.output(out, "out", q, "q")
    device_ordinal = _checks.device_of(q)
    launcher = _launcher.launcher()

    device = q.device
    packed = cu_seqlens_q is not None
    result = _tensors.empty_like(q) if out is None else out
    lse_shape = (nheads, total_q) if packed else (batch, nheads, seqlen_q)
    softmax_lse = _tensors.empty_floats(lse_shape, q)
    s_dmask = rng_state = None
    if dropout_p:
        rng_state = draw(device, generator)
        if return_softmax:
            rounded = (batch, nheads, _tensors.round_up(seqlen_q), _tensors.round_up(seqlen_k))
            s_dmask = torch.zeros(rounded, dtype=q.dtype, device=device)
    if zero_tensors:
        result.zero_()
        softmax_lse.fill_(-math.inf)
    if not q.numel():
        return result, softmax_lse, s_dmask, rng_state
    if not k.numel() or not seqlen_k or not seqlen_q:
        result.zero_()
        softmax_lse.fill_(math.inf)
        return result, softmax_lse, s_dmask, rng_state

    if softmax_scale <= 0:
        q, softmax_scale = positive(q, softmax_scale)
    q, q_at, q_strides = _tensors.readable(q)
    k, k_at, k_strides = _tensors.readable(k)
    v, v_at, v_strides = _tensors.readable(v)
    target, target_at, target_strides = _tensors.writable(result)
    stream = _tensors.current_stream(device_ordinal)
    problem = (
        0 if cu_seqlens_q is None else cu_seqlens_q.data_ptr(),
        0 if cu_seqlens_k is None else cu_seqlens_k.data_ptr(),
        0 if seqused_k is None else seqused_k.data_ptr(),
        0 if leftpad_k is None else leftpad_k.data_ptr(),
        0 if alibi_slopes is None else alibi_slopes.data_ptr(),
        0 if rng_state is None else rng_state.data_ptr(),
        alibi_batch_stride,
        batch, nheads, nheads_k, q.shape[-1], seqlen_q, seqlen_k, total_q, total_k,
        _checks.DTYPE_CODES[q.dtype], causal, window_left, window_right,
        softmax_scale, softcap, dropout_p, 0,
    )  # fmt: skip
    tensors = (
        q_at, k_at, v_at, target_at, softmax_lse.data_ptr(),
        0 if s_dmask is None else s_dmask.data_ptr(),
        *q_strides, *k_strides, *v_strides, *target_strides,
    )  # fmt: skip
    paging = NOT_PAGED
    if block_table is not None:
        paging = (0, block_table.data_ptr(), block_table.stride(0), k.shape[1], k.shape[0], 0)
    may_split = block_table is not None or (seqlen_q <= SPLIT_MAX_QUERIES and seqlen_k >= SPLIT_MIN_KEYS)
    if may_split and not dropout_p and _launcher.has_family(SPLIT_KEYS_FAMILY):
        launch_split(launcher, q, (device_ordinal, stream, *problem, *tensors, *paging), 0)
    else:
        launcher.forward(device_ordinal, stream, *problem, *tensors, *paging, 1, 0, 0)
    _tensors.write_back(target, result)
    return result, softmax_lse, s_dmask, rng_state


# cache_batch_idx, block_table, block_table_stride, page_size, num_pages, cache_rows
NOT_PAGED = (0, 0, 0, 0, 0, 0)


def launch_split(launcher: _launcher.Launcher, q: Tensor, values: tuple[float, ...], num_splits: int) -> None:
    """Launches with keys split num_splits ways, 0: as the launcher finds best, the same way in both calls."""
    _, scratch_bytes = launcher.forward_plan(*values, num_splits, 0, 0)
    scratch = _tensors.empty_bytes(scratch_bytes, q)
    launcher.forward(*values, num_splits, _tensors.address(scratch), scratch_bytes)


def draw(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Philox seed and offset, int64 (2,), drawn on the device: CUDA graphs draw anew in every replay."""
    return torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device=device, generator=generator)


def positive(q: Tensor, softmax_scale: float) -> tuple[Tensor, float]:
    """The same scores from a positive scale: kernels fold it into an exponent and want it so."""
    if softmax_scale < 0:
        return -q, -softmax_scale
    return q * 0, 1.0
