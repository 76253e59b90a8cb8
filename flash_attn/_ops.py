"""The operators ``torch.ops.flash_attn.*``: schemas, implementations, fakes, autograd of the forward ones.

Operators return tensors only, never None: what a call doesn't produce is an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _backward, _checks, _forward, _kvcache, _tensors

NAMESPACE = "flash_attn"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

FourTensors = tuple[Tensor, Tensor, Tensor, Tensor]

# Dropout draws from torch's generator, which recomputation and common-subexpression elimination have to know.
_TAGS = (torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag)


def _define(
    schema: str, run: Callable[..., Any], fake: Callable[..., Any], tags: tuple[torch.Tag, ...] = _TAGS
) -> None:
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=tags)
    # For every backend: what isn't on CUDA then gets the sentence of the checks.
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)


def four_tensors(result: _forward.Result, q: Tensor) -> FourTensors:
    out, softmax_lse, s_dmask, rng_state = result
    if s_dmask is None:
        s_dmask = torch.empty((0,), dtype=q.dtype, device=q.device)
    if rng_state is None:
        rng_state = torch.zeros((2,), dtype=torch.int64, device=q.device)
    return out, softmax_lse, s_dmask, rng_state


# ---- forward ----


def _forward_run(
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
) -> FourTensors:
    result = _forward.dense(
        q, k, v, None, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
        softcap, return_softmax,
    )  # fmt: skip
    return four_tensors(result, q)


def _fake_outputs(q: Tensor, lse: tuple[Any, ...], dmask: tuple[Any, ...] | None) -> FourTensors:
    return (
        torch.empty(q.shape, dtype=q.dtype, device=q.device),
        torch.empty(lse, dtype=torch.float32, device=q.device),
        torch.empty((0,) if dmask is None else dmask, dtype=q.dtype, device=q.device),
        torch.empty((2,), dtype=torch.int64, device=q.device),
    )


def _forward_fake(
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
) -> FourTensors:
    _checks.dense(q, k, v)
    _checks.options(dropout_p, softmax_scale, softcap, causal)
    batch, seqlen_q, nheads, _ = q.shape
    dmask = None
    if return_softmax and dropout_p:
        dmask = (batch, nheads, _tensors.round_up(seqlen_q), _tensors.round_up(k.shape[1]))
    return _fake_outputs(q, (batch, nheads, seqlen_q), dmask)


def _varlen_forward_run(
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
) -> FourTensors:
    result = _forward.varlen(
        q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes,
        max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left,
        window_size_right, softcap, return_softmax,
    )  # fmt: skip
    return four_tensors(result, q)


def _varlen_forward_fake(
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
) -> FourTensors:
    # Rows of packed tensors may be sizes that only the data knows, so they are compared at run time only.
    _checks.attend_packed(q, k, v, block_table)
    _checks.options(dropout_p, softmax_scale, softcap, causal)
    total_q, nheads, _ = q.shape
    dmask = None
    if return_softmax and dropout_p:
        batch = cu_seqlens_q.shape[0] - 1
        dmask = (batch, nheads, _tensors.round_up(max_seqlen_q), _tensors.round_up(max_seqlen_k))
    return _fake_outputs(q, (nheads, total_q), dmask)


# ---- backward ----


def _backward_run(
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
    softmax_d = _backward.dense(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, deterministic, rng_state,
    )[3]  # fmt: skip
    assert softmax_d is not None
    return softmax_d


def _backward_fake(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    *options: object,
    **more: object,
) -> Tensor:
    _checks.dense(q, k, v)
    batch, seqlen_q, nheads, _ = q.shape
    return torch.empty((batch, nheads, _tensors.round_up(seqlen_q)), dtype=torch.float32, device=q.device)


def _varlen_backward_run(
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
    softmax_d = _backward.varlen(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q,
        max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right,
        softcap, deterministic, rng_state,
    )[3]  # fmt: skip
    assert softmax_d is not None
    return softmax_d


def _varlen_backward_fake(
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
    *options: object,
    **more: object,
) -> Tensor:
    _checks.attend_packed(q, k, v, None)
    total_q, nheads, _ = q.shape
    rows = _tensors.round_up(total_q + _tensors.ROUNDING * (cu_seqlens_q.shape[0] - 1))
    return torch.empty((nheads, rows), dtype=torch.float32, device=q.device)


# ---- cache ----


def _kvcache_run(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    cache_seqlens: Tensor | None,
    cache_seqlen: int | None,
    cache_batch_idx: Tensor | None,
    cache_leftpad: Tensor | None,
    block_table: Tensor | None,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    rotary_interleaved: bool,
    alibi_slopes: Tensor | None,
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    return _kvcache.attend(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin,
        cache_seqlen if cache_seqlens is None else cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
        softmax_scale, causal, window_size_left, window_size_right, softcap, rotary_interleaved, alibi_slopes,
        num_splits,
    )  # fmt: skip


def _kvcache_fake(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *options: object, **more: object
) -> tuple[Tensor, Tensor]:
    _checks.attend(q, k_cache, v_cache)
    batch, seqlen_q, nheads, _ = q.shape
    return (
        torch.empty(q.shape, dtype=q.dtype, device=q.device),
        torch.empty((batch, nheads, seqlen_q), dtype=torch.float32, device=q.device),
    )


_ATTENTION = (
    "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left{none}, "
    "SymInt window_size_right{none}, float softcap{zero}, Tensor? alibi_slopes{nil}"
)
_OPTIONS = _ATTENTION.format(none="", zero="", nil="")
_DEFAULTED_OPTIONS = _ATTENTION.format(none="=-1", zero="=0.0", nil="=None")
_PACKED = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_GRADIENTS = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq, "
    "Tensor(b!)? dk, "
    "Tensor(c!)? dv"
)
_FOUR = "(Tensor out, Tensor softmax_lse, Tensor S_dmask, Tensor rng_state)"

_define(
    f"_flash_attn_forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool return_softmax) -> {_FOUR}",
    _forward_run,
    _forward_fake,
)
_define(
    f"_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, {_PACKED}, {_DEFAULTED_OPTIONS}, "
    "bool return_softmax=False, Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, "
    f"bool zero_tensors=False) -> {_FOUR}",
    _varlen_forward_run,
    _varlen_forward_fake,
)
_define(
    f"_flash_attn_backward({_GRADIENTS}, {_OPTIONS}, bool deterministic, Tensor? rng_state=None) -> Tensor",
    _backward_run,
    _backward_fake,
    (torch.Tag.pt2_compliant_tag,),
)
_define(
    f"_flash_attn_varlen_backward({_GRADIENTS}, {_PACKED}, {_OPTIONS}, bool deterministic, Tensor? "
    "rng_state=None, "
    "bool zero_tensors=False) -> Tensor",
    _varlen_backward_run,
    _varlen_backward_fake,
    (torch.Tag.pt2_compliant_tag,),
)
_define(
    "_flash_attn_with_kvcache(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k, Tensor? v, "
    "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? cache_seqlens, SymInt? cache_seqlen, Tensor? "
    "cache_batch_idx, "
    "Tensor? cache_leftpad, Tensor? block_table, float softmax_scale, bool causal, SymInt window_size_left, "
    "SymInt window_size_right, float softcap, bool rotary_interleaved, Tensor? alibi_slopes, SymInt "
    "num_splits) "
    "-> (Tensor out, Tensor softmax_lse)",
    _kvcache_run,
    _kvcache_fake,
    (torch.Tag.pt2_compliant_tag,),
)

# ---- autograd of the operators when called by themselves ----


def _forward_context(ctx: Any, inputs: tuple[Any, ...], output: FourTensors) -> None:
    q, k, v, *ctx.options, alibi_slopes, _ = inputs
    out, softmax_lse, _, rng_state = output
    ctx.save_for_backward(q, k, v, out, softmax_lse, rng_state, alibi_slopes)


def _forward_gradient(ctx: Any, dout: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
    q, k, v, out, softmax_lse, rng_state, alibi_slopes = ctx.saved_tensors
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    torch.ops.flash_attn._flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, *ctx.options, alibi_slopes,
        torch.are_deterministic_algorithms_enabled(), rng_state,
    )  # fmt: skip
    return dq, dk, dv, *(None,) * 8


def _varlen_forward_context(ctx: Any, inputs: tuple[Any, ...], output: FourTensors) -> None:
    q, k, v, cu_seqlens_q, cu_seqlens_k, *ctx.options = inputs[:13]
    alibi_slopes, _, *ctx.unsupported, _ = inputs[13:]
    out, softmax_lse, _, rng_state = output
    ctx.save_for_backward(q, k, v, out, softmax_lse, rng_state, alibi_slopes, cu_seqlens_q, cu_seqlens_k)
    if any(x is not None for x in ctx.unsupported):
        ctx.unsupported = (
            "block_table, leftpad_k and seqused_k have no gradients: call it under torch.no_grad()."
        )


def _varlen_forward_gradient(ctx: Any, dout: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
    if isinstance(ctx.unsupported, str):
        raise RuntimeError(ctx.unsupported)
    q, k, v, out, softmax_lse, rng_state, alibi_slopes, cu_seqlens_q, cu_seqlens_k = ctx.saved_tensors
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    torch.ops.flash_attn._flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, *ctx.options, alibi_slopes,
        torch.are_deterministic_algorithms_enabled(), rng_state,
    )  # fmt: skip
    return dq, dk, dv, *(None,) * 16


torch.library.register_autograd(
    "flash_attn::_flash_attn_forward", _forward_gradient, setup_context=_forward_context, lib=LIBRARY
)
torch.library.register_autograd(
    "flash_attn::_flash_attn_varlen_forward",
    _varlen_forward_gradient,
    setup_context=_varlen_forward_context,
    lib=LIBRARY,
)
