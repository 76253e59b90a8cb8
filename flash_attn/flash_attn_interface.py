"""The public functions, and the operators that sequence-parallel libraries call.

All tensors are fp16 or bf16 on a CUDA device of compute capability 8.0 or newer, contiguous in their last
dimension. Bad arguments raise RuntimeError, TypeError or ValueError before anything is launched or written.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from . import _backward, _checks, _dispatch, _forward, _kvcache, _ops
from ._autograd import FlashAttnFunc, FlashAttnKVPackedFunc, FlashAttnQKVPackedFunc, Lengths, Options

__all__ = [
    "FlashAttnFunc",
    "FlashAttnKVPackedFunc",
    "FlashAttnQKVPackedFunc",
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

Output = Any  # out, or (out, softmax_lse, S_dmask) with return_attn_probs


def _direct(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return not _dispatch.is_compiling() and _dispatch.is_direct(q, k, v)


def _scale(q: Tensor, softmax_scale: float | None) -> float:
    if softmax_scale is not None:
        return softmax_scale
    if q.is_nested:
        _checks.tensors(q=q)
    return q.shape[-1] ** -0.5 if q.shape[-1] else 1.0  # the checks refuse 0


def _options(
    direct: bool,
    q: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    deterministic: bool,
    return_attn_probs: bool,
) -> Options:
    _checks.flag(deterministic, "deterministic")
    _checks.flag(return_attn_probs, "return_attn_probs")
    left, right = _checks.window(window_size)
    scale = _scale(q, softmax_scale)
    return Options(dropout_p, scale, causal, left, right, softcap, deterministic, return_attn_probs, direct)


def _require_backward(direct: bool, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Says before the forward that its gradients can't be had."""
    if direct and _dispatch.needs_gradient(q, k, v):
        _checks.device_of(q)
        _backward.require_kernels()


def _apply(function: Any, options: Options, *arguments: Any) -> Output:
    apply = _dispatch.direct_apply(function) if options.direct else function.apply
    result = apply(options, *arguments)
    # Without dropout there is no S_dmask.
    return (*result, None) if options.return_attn_probs and not options.dropout_p else result


def _length(value: Any, name: str) -> Any:
    """A length, also when it comes as an integer tensor or as a NumPy integer."""
    if _dispatch.is_compiling() or type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, but it is {value!r}.") from None


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Output:
    """Attention: softmax(q kᵀ · softmax_scale) v.

    Args:
        q: (batch, seqlen_q, nheads, headdim), headdim 1 to 256.
        k: (batch, seqlen_k, nheads_k, headdim); nheads is a multiple of nheads_k, and query head h reads key
            head h // (nheads / nheads_k).
        v: as k.
        dropout_p: probability of dropping an attention weight, in [0, 1). Draws from torch's CUDA generator.
        softmax_scale: None for headdim ** -0.5.
        causal: query i sees keys j <= i + seqlen_k - seqlen_q, that is, aligned to the bottom right.
        window_size: (left, right): query i sees keys from i + seqlen_k - seqlen_q - left to i + seqlen_k -
            seqlen_q + right; -1 for no limit.
        softcap: c > 0 turns a score s into c · tanh(s / c). Not together with dropout.
        alibi_slopes: fp32 (nheads,) or (batch, nheads): adds -slope · |i + seqlen_k - seqlen_q - j| to a
            score.
        deterministic: gradients that are the same bits in every run, a little slower.
        return_attn_probs: also return softmax_lse and S_dmask (for tests only).

    Returns:
        out (batch, seqlen_q, nheads, headdim); a row that sees no key is 0. With return_attn_probs also
        softmax_lse, fp32 (batch, nheads, seqlen_q), the natural logarithm of each row's sum, and S_dmask
        (batch, nheads, seqlen_q, seqlen_k), both lengths rounded up to 128, negative where dropped, or None
        without dropout.

    Raises:
        RuntimeError: an argument is wrong, or the GPU, the driver or the installed kernels can't do it.
    """
    direct = _direct(q, k, v)
    if direct and not _dispatch.needs_gradient(q, k, v):
        if deterministic is not False:
            _checks.flag(deterministic, "deterministic")
        if return_attn_probs is not False:
            _checks.flag(return_attn_probs, "return_attn_probs")
        left, right = _checks.window(window_size)
        out, softmax_lse, s_dmask, _ = _forward.dense(
            q,
            k,
            v,
            None,
            alibi_slopes,
            dropout_p,
            softmax_scale,
            causal,
            left,
            right,
            softcap,
            return_attn_probs,
        )
        return (out, softmax_lse, s_dmask) if return_attn_probs else out
    if not direct:
        _checks.tensors(q=q, k=k, v=v)
    _require_backward(direct, q, k, v)
    options = _options(
        direct, q, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
    )
    return _apply(FlashAttnFunc, options, q, k, v, None, alibi_slopes, None)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Output:
    """As `flash_attn_func`, with k and v in one tensor kv (batch, seqlen_k, 2, nheads_k, headdim)."""
    _checks.packed(kv, "kv", 2, 5)
    _checks.tensors(q=q)
    direct = _direct(q, kv, kv)
    _require_backward(direct, q, kv, kv)
    options = _options(
        direct, q, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
    )
    return _apply(FlashAttnKVPackedFunc, options, q, kv, None, alibi_slopes)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Output:
    """As `flash_attn_func`, with q, k and v in one tensor qkv (batch, seqlen, 3, nheads, headdim)."""
    _checks.packed(qkv, "qkv", 3, 5)
    direct = _direct(qkv, qkv, qkv)
    _require_backward(direct, qkv, qkv, qkv)
    options = _options(
        direct, qkv, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
    )
    return _apply(FlashAttnQKVPackedFunc, options, qkv, None, alibi_slopes)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Output:
    """As `flash_attn_func`, of sequences of different lengths, 0 included, packed one after the other.

    Args:
        q: (total_q, nheads, headdim).
        k: (total_k, nheads_k, headdim), or with block_table pages (num_blocks, page_size, nheads_k, headdim).
        v: as k.
        cu_seqlens_q: int32 (batch + 1,) on the GPU: sequence b is rows cu_seqlens_q[b] to cu_seqlens_q[b + 1]
            of q.
        cu_seqlens_k: the same for k; with block_table it only gives the lengths.
        max_seqlen_q: length of the longest sequence in q; rows beyond it are not computed.
        max_seqlen_k: the same for k.
        block_table: int32 (batch, max_blocks): the pages of each sequence. No gradients, no dropout.

    Returns:
        out (total_q, nheads, headdim). With return_attn_probs also softmax_lse (nheads, total_q), and
        S_dmask.
    """
    max_seqlen_q = _length(max_seqlen_q, "max_seqlen_q")
    max_seqlen_k = _length(max_seqlen_k, "max_seqlen_k")
    direct = _direct(q, k, v)
    if direct and not _dispatch.needs_gradient(q, k, v):
        if deterministic is not False:
            _checks.flag(deterministic, "deterministic")
        if return_attn_probs is not False:
            _checks.flag(return_attn_probs, "return_attn_probs")
        left, right = _checks.window(window_size)
        out, softmax_lse, s_dmask, _ = _forward.varlen(
            q, k, v, None, cu_seqlens_q, cu_seqlens_k, None, None, block_table, alibi_slopes, max_seqlen_q,
            max_seqlen_k, dropout_p, softmax_scale, False, causal, left, right, softcap, return_attn_probs,
        )  # fmt: skip
        return (out, softmax_lse, s_dmask) if return_attn_probs else out
    if not direct:
        _checks.tensors(q=q, k=k, v=v)
    if block_table is not None and _dispatch.needs_gradient(q, k, v):
        raise RuntimeError("There are no gradients with a block_table: call it under torch.no_grad().")
    _require_backward(direct, q, k, v)
    options = _options(
        direct, q, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
    )
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _apply(FlashAttnFunc, options, q, k, v, lengths, alibi_slopes, block_table)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Output:
    """As `flash_attn_varlen_func`, with k and v in one tensor kv (total_k, 2, nheads_k, headdim)."""
    _checks.packed(kv, "kv", 2, 4)
    _checks.tensors(q=q)
    direct = _direct(q, kv, kv)
    _require_backward(direct, q, kv, kv)
    options = _options(
        direct, q, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
    )
    lengths = Lengths(
        cu_seqlens_q,
        cu_seqlens_k,
        _length(max_seqlen_q, "max_seqlen_q"),
        _length(max_seqlen_k, "max_seqlen_k"),
    )
    return _apply(FlashAttnKVPackedFunc, options, q, kv, lengths, alibi_slopes)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Output:
    """As `flash_attn_varlen_func`, with q, k and v in one tensor qkv (total, 3, nheads, headdim)."""
    _checks.packed(qkv, "qkv", 3, 4)
    direct = _direct(qkv, qkv, qkv)
    _require_backward(direct, qkv, qkv, qkv)
    options = _options(
        direct, qkv, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
    )
    max_seqlen = _length(max_seqlen, "max_seqlen")
    lengths = Lengths(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return _apply(FlashAttnQKVPackedFunc, options, qkv, lengths, alibi_slopes)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention to cached keys and values, after appending new ones in place. No gradients.

    Args:
        q: (batch, seqlen_q, nheads, headdim).
        k_cache: (rows, seqlen_cache, nheads_k, headdim), with block_table pages (num_blocks, page_size,
            nheads_k, headdim), page_size a multiple of 16.
        v_cache: as k_cache.
        k: (batch, seqlen_new, nheads_k, headdim): written into k_cache from cache_seqlens on.
        v: as k, into v_cache.
        rotary_cos: (seqlen_ro, rotary_dim / 2), rotary_dim a multiple of 16: rotates q and k first, keys by
            their position, queries by their own when causal or windowed, else all by cache_seqlens.
        rotary_sin: as rotary_cos.
        cache_seqlens: int or int32 (batch,): keys in the cache before this call; None for all that it holds.
        cache_batch_idx: int32 (batch,): the row of the cache that each sequence uses; not with block_table.
        cache_leftpad: int32 (batch,): where the keys of each row begin.
        block_table: int32 (batch, max_blocks): the pages of each sequence.
        rotary_interleaved: rotate neighbouring pairs; else the two halves of rotary_dim.
        num_splits: how many ways to split the keys; 0 chooses.
        return_softmax_lse: also return softmax_lse.

        softmax_scale, causal, window_size, softcap, alibi_slopes: as `flash_attn_func` says.

    Returns:
        out (batch, seqlen_q, nheads, headdim), with return_softmax_lse also softmax_lse, fp32 (batch, nheads,
        seqlen_q).
    """
    _checks.flag(return_softmax_lse, "return_softmax_lse")
    left, right = _checks.window(window_size)
    if _direct(q, k_cache, v_cache):
        if cache_seqlens is not None and not isinstance(cache_seqlens, Tensor):
            cache_seqlens = _length(cache_seqlens, "cache_seqlens")
        out, softmax_lse = _kvcache.attend(
            q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
            block_table, softmax_scale, causal, left, right, softcap, rotary_interleaved, alibi_slopes,
            num_splits,
        )  # fmt: skip
    else:
        _checks.tensors(q=q, k_cache=k_cache, v_cache=v_cache)
        by_tensor = isinstance(cache_seqlens, Tensor)
        with torch.no_grad():
            out, softmax_lse = torch.ops.flash_attn._flash_attn_with_kvcache(
                q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens if by_tensor else None,
                None if by_tensor else cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
                _scale(q, softmax_scale), causal,
                left, right, softcap, rotary_interleaved, alibi_slopes, num_splits,
            )  # fmt: skip
    return (out, softmax_lse) if return_softmax_lse else out


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The operator ``flash_attn::_flash_attn_forward``, by a shorter way when nothing need see the call.

    Returns out, softmax_lse (batch, nheads, seqlen_q), S_dmask (empty unless wanted and dropped) and
    rng_state.
    """
    _checks.tensors(q=q, k=k, v=v)
    if _direct(q, k, v) and not _dispatch.needs_gradient(q, k, v):
        return _ops._forward_run(
            q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
            alibi_slopes, return_softmax,
        )  # fmt: skip
    return torch.ops.flash_attn._flash_attn_forward(  # type: ignore[no-any-return]
        q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
        return_softmax,
    )  # fmt: skip


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The operator ``flash_attn::_flash_attn_varlen_forward``: as `_flash_attn_forward`, of packed sequences.

    leftpad_k and seqused_k are int32 (batch,): how many leading keys of a sequence don't count, and where its
    keys end.
    """
    _checks.tensors(q=q, k=k, v=v)
    run: Any = torch.ops.flash_attn._flash_attn_varlen_forward
    if _direct(q, k, v) and not _dispatch.needs_gradient(q, k, v):
        run = _ops._varlen_forward_run
    return run(  # type: ignore[no-any-return]
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, return_softmax, block_table, leftpad_k,
        seqused_k, zero_tensors,
    )  # fmt: skip


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """The operator ``flash_attn::_flash_attn_backward``: writes dq, dk and dv in place.

    Returns softmax_d, fp32 (batch, nheads, seqlen_q rounded up to 128): each row's sum of dout · out.
    """
    _checks.tensors(dout=dout, q=q, k=k, v=v, out=out, softmax_lse=softmax_lse)
    run: Any = torch.ops.flash_attn._flash_attn_backward
    if _direct(q, k, v) and _dispatch.is_direct(dout, out, softmax_lse):
        run = _ops._backward_run
    return run(  # type: ignore[no-any-return]
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic, rng_state,
    )  # fmt: skip


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """The operator ``flash_attn::_flash_attn_varlen_backward``: `_flash_attn_backward` of packed sequences.

    Returns softmax_d, fp32 (nheads, total_q + 128 * batch rounded up to 128).
    """
    _checks.tensors(dout=dout, q=q, k=k, v=v, out=out, softmax_lse=softmax_lse)
    run: Any = torch.ops.flash_attn._flash_attn_varlen_backward
    if _direct(q, k, v) and _dispatch.is_direct(dout, out, softmax_lse):
        run = _ops._varlen_backward_run
    return run(  # type: ignore[no-any-return]
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
        deterministic, rng_state, zero_tensors,
    )  # fmt: skip
