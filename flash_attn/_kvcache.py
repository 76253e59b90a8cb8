"""Attention to a cache of keys and values, growing it in place on the way. Checks, allocation, launch."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks, _forward, _launcher, _tensors

FAMILY = "flash_fwd_splitkv"
NOWHERE: tuple[int, tuple[int, ...]] = (0, (0, 0, 0))  # address and strides of no tensor


def require_kernels() -> None:
    """Raises RuntimeError when this build can't attend to a cache."""
    if not _launcher.has_family(FAMILY):
        raise RuntimeError(
            f"This build of flash_attn holds no {FAMILY} kernels, which a KV cache needs: install a "
            "complete wheel."
        )


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    cache_seqlens: Tensor | int | None,
    cache_batch_idx: Tensor | None,
    cache_leftpad: Tensor | None,
    block_table: Tensor | None,
    softmax_scale: float | None,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    rotary_interleaved: bool,
    alibi_slopes: Tensor | None,
    num_splits: int,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out (as q) and softmax_lse (batch, nheads, seqlen_q); arguments as in `flash_attn_with_kvcache`."""
    sizes = _cache_sizes(q, k_cache, v_cache, cache_batch_idx, block_table)
    batch, seqlen_q, seqlen_cache, nheads, nheads_k, head_dim, _, _ = sizes
    seqlen_new = _new_keys(k, v, q, k_cache, sizes, cache_seqlens)
    if isinstance(cache_seqlens, int):
        _checks.length(cache_seqlens, "cache_seqlens")
        if cache_seqlens + seqlen_new > seqlen_cache:
            raise RuntimeError(
                f"cache_seqlens is {cache_seqlens} and there are {seqlen_new} new keys, but the cache "
                "holds only "
                f"{seqlen_cache}: make it larger."
            )
    elif cache_seqlens is not None:
        _checks.index(cache_seqlens, "cache_seqlens", q, (batch,))
    for name, x in (("cache_batch_idx", cache_batch_idx), ("cache_leftpad", cache_leftpad)):
        if x is not None:
            _checks.index(x, name, q, (batch,))
    _rotary(rotary_cos, rotary_sin, q, sizes)
    alibi_batch_stride = _checks.alibi(alibi_slopes, q, batch, nheads)
    if softmax_scale is None:
        softmax_scale = head_dim**-0.5
    _checks.options(0.0, softmax_scale, softcap, causal)
    window_left = _checks.window_side(window_left)
    window_right = 0 if causal else _checks.window_side(window_right)
    _checks.flag(rotary_interleaved, "rotary_interleaved")
    _checks.length(num_splits, "num_splits")
    if out is not None:
        _checks.output(out, "out", q, "q")
    device_ordinal = _checks.device_of(q)
    require_kernels()
    launcher = _launcher.launcher()

    dtype = _checks.DTYPE_CODES[q.dtype]
    stream = _tensors.current_stream(device_ordinal)
    result = _tensors.empty_like(q) if out is None else out
    softmax_lse = _tensors.empty_floats((batch, nheads, seqlen_q), q)
    query, query_at, query_strides = _tensors.readable(q)
    padded_dim = query.shape[-1]
    keys, keys_at, keys_strides = _tensors.readable(k_cache)
    values, values_at, values_strides = _tensors.readable(v_cache)
    # cache_batch_idx, block_table, block_table_stride, page_size, num_pages, cache_rows
    paging = (_tensors.address(cache_batch_idx), 0, 0, 0, 0, k_cache.shape[0])
    if block_table is not None:
        paging = (0, block_table.data_ptr(), block_table.stride(0), k_cache.shape[1], k_cache.shape[0], 0)

    if seqlen_new or rotary_cos is not None:
        rotated, rotated_at, rotated_strides = query, query_at, query_strides
        if rotary_cos is not None:
            rotated, rotated_at, rotated_strides = _tensors.readable(_tensors.empty_like(query))
        k_new_at, k_new_strides = v_new_at, v_new_strides = NOWHERE
        if k is not None and v is not None:
            k, k_new_at, k_new_strides = _tensors.readable(k)
            v, v_new_at, v_new_strides = _tensors.readable(v)
        launcher.append(
            device_ordinal, stream,
            query_at, 0 if rotary_cos is None else rotated_at, k_new_at, v_new_at, keys_at, values_at,
            _tensors.address(rotary_cos), _tensors.address(rotary_sin),
            cache_seqlens.data_ptr() if isinstance(cache_seqlens, Tensor) else 0,
            _tensors.address(cache_leftpad), paging[0], paging[1], paging[2],
            *query_strides, *k_new_strides, *v_new_strides, *keys_strides, *values_strides,
            batch, nheads, nheads_k, padded_dim, dtype, seqlen_q, seqlen_new, seqlen_cache,
            *((0, 0) if rotary_cos is None else (rotary_cos.shape[0], 2 * rotary_cos.shape[1])),
            rotary_interleaved, causal or window_left >= 0 or window_right >= 0,
            paging[3], paging[4], paging[5],
            cache_seqlens if isinstance(cache_seqlens, int) else seqlen_cache - seqlen_new,
        )  # fmt: skip
        query, query_at, query_strides = rotated, rotated_at, rotated_strides
        if seqlen_new:
            _tensors.write_back(keys, k_cache)
            _tensors.write_back(values, v_cache)

    seqused, seqlen_k = None, seqlen_cache
    if isinstance(cache_seqlens, int):
        seqlen_k = cache_seqlens + seqlen_new
    elif cache_seqlens is not None:
        seqused = cache_seqlens + seqlen_new if seqlen_new else cache_seqlens
    if not q.numel():
        return result, softmax_lse
    if not seqlen_k:
        result.zero_()
        softmax_lse.fill_(torch.inf)
        return result, softmax_lse
    if softmax_scale <= 0:
        scaled, softmax_scale = _forward.positive(query, softmax_scale)
        query, query_at, query_strides = _tensors.readable(scaled)
    target, target_at, target_strides = _tensors.writable(result)
    _forward.launch_split(
        launcher, q,
        (
            device_ordinal, stream,
            0, 0, _tensors.address(seqused), _tensors.address(cache_leftpad),
            _tensors.address(alibi_slopes), 0,
            alibi_batch_stride, batch, nheads, nheads_k, padded_dim, seqlen_q, seqlen_k, 0, 0, dtype, causal,
            window_left, window_right, softmax_scale, softcap, 0.0, 0,
            query_at, keys_at, values_at, target_at, softmax_lse.data_ptr(), 0,
            *query_strides, *keys_strides, *values_strides, *target_strides,
            *paging,
        ), num_splits,
    )  # fmt: skip
    _tensors.write_back(target, result)
    return result, softmax_lse


def _cache_sizes(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_batch_idx: Tensor | None, block_table: Tensor | None
) -> _checks.Sizes:
    """Sizes of the call; seqlen_k is the rows that a sequence has in the cache."""
    _checks.tensors(q=q, k_cache=k_cache, v_cache=v_cache)
    for name, x in (("q", q), ("k_cache", k_cache)):
        if x.dim() != 4:
            raise RuntimeError(f"{name} has shape {tuple(x.shape)}, but it must have four dimensions.")
    _checks.attend(q, k_cache, v_cache)
    batch, seqlen_q, nheads, head_dim = q.shape
    rows, seqlen_cache, nheads_k, _ = k_cache.shape
    if block_table is not None:
        _checks.pages(block_table, q, k_cache, batch)
        if cache_batch_idx is not None:
            raise RuntimeError(
                "cache_batch_idx and block_table are both given: a paged cache has no rows to pick."
            )
        seqlen_cache *= block_table.shape[1]
    elif cache_batch_idx is None and rows != batch:
        raise RuntimeError(f"k_cache has batch size {rows}, but q has {batch}: they must be equal.")
    return _checks.Sizes(batch, seqlen_q, seqlen_cache, nheads, nheads_k, head_dim, 0, 0)


def _new_keys(
    k: Tensor | None,
    v: Tensor | None,
    q: Tensor,
    k_cache: Tensor,
    sizes: _checks.Sizes,
    cache_seqlens: Tensor | int | None,
) -> int:
    """How many keys a sequence gains."""
    if k is None and v is None:
        return 0
    if k is None or v is None:
        raise RuntimeError("Only one of k and v is given: hand over both or none.")
    _checks.tensors(k=k, v=v)
    expected = (sizes.batch, sizes.nheads_k, sizes.head_dim)
    if k.dim() != 4 or (k.shape[0], *k.shape[2:]) != expected:
        raise RuntimeError(
            f"k has shape {tuple(k.shape)}, but it must be (batch, seqlen_new, nheads_k, headdim), that is "
            f"({expected[0]}, seqlen_new, {expected[1]}, {expected[2]})."
        )
    _checks.attend(q, k, v)
    if cache_seqlens is None:
        raise RuntimeError("k and v are given without cache_seqlens, which says where in the cache they go.")
    return k.shape[1]


def _rotary(cos: Tensor | None, sin: Tensor | None, q: Tensor, sizes: _checks.Sizes) -> None:
    if cos is None and sin is None:
        return
    if cos is None or sin is None:
        raise RuntimeError("Only one of rotary_cos and rotary_sin is given: hand over both or none.")
    _checks.tensors(rotary_cos=cos, rotary_sin=sin)
    if cos.dim() != 2 or (2 * cos.shape[1]) % 16 or not 0 < 2 * cos.shape[1] <= sizes.head_dim:
        raise RuntimeError(
            f"rotary_cos has shape {tuple(cos.shape)}, but it must be (seqlen_ro, rotary_dim / 2) "
            "with rotary_dim a "
            f"multiple of 16 and at most the head dimension {sizes.head_dim}."
        )
    if cos.shape[0] < sizes.seqlen_k:
        raise RuntimeError(
            f"rotary_cos has {cos.shape[0]} positions, but the cache holds {sizes.seqlen_k} keys."
        )
    _checks.like(sin, "rotary_sin", cos, "rotary_cos")
    if cos.dtype != q.dtype or cos.device != q.device:
        raise RuntimeError(f"rotary_cos is {cos.dtype} on {cos.device}, but q is {q.dtype} on {q.device}.")
    if not cos.is_contiguous() or not sin.is_contiguous():
        raise RuntimeError("rotary_cos and rotary_sin must be contiguous: call .contiguous() on them.")
