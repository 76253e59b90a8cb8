"""Gradients of attention on CUDA tensors: checks, allocation, launch. Knows nothing of autograd."""

from __future__ import annotations

import math

from torch import Tensor

from . import _checks, _forward, _launcher, _tensors

Result = tuple[Tensor, Tensor, Tensor, "Tensor | None"]  # dq, dk, dv, softmax_d

FAMILY = "flash_bwd"


def require_kernels() -> None:
    """Raises RuntimeError when this build can't compute gradients."""
    if not _launcher.has_family(FAMILY):
        raise RuntimeError(
            "This build of flash_attn holds no backward kernels, so it can't compute gradients: call it "
            "under torch.no_grad(), or install a complete wheel."
        )


def dense(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    alibi_slopes: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    deterministic: bool,
    rng_state: Tensor | None,
    wants_d: bool = True,
) -> Result:
    """Writes dq, dk and dv (new if None), of the shapes of q, k and v.

    Returns dq, dk, dv and, if wanted, softmax_d, fp32 (batch, nheads, seqlen_q rounded up to 128).
    """
    sizes = _checks.dense(q, k, v)
    _checks.lse(softmax_lse, q, (sizes.batch, sizes.nheads, sizes.seqlen_q))
    d_shape = (sizes.batch, sizes.nheads, _tensors.round_up(sizes.seqlen_q))
    return _run(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, sizes, d_shape, None, None, alibi_slopes, dropout_p,
        softmax_scale, causal, window_left, window_right, softcap, deterministic, rng_state, False, wants_d,
    )  # fmt: skip


def varlen(
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
    deterministic: bool,
    rng_state: Tensor | None,
    wants_d: bool = True,
) -> Result:
    """As `dense`, of packed sequences; softmax_d (nheads, total_q + 128 * batch rounded up to 128)."""
    sizes = _checks.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    _checks.lse(softmax_lse, q, (sizes.nheads, sizes.total_q))
    d_shape = (sizes.nheads, _tensors.round_up(sizes.total_q + _tensors.ROUNDING * sizes.batch))
    return _run(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, sizes, d_shape, cu_seqlens_q, cu_seqlens_k, alibi_slopes,
        dropout_p, softmax_scale, causal, window_left, window_right, softcap, deterministic, rng_state,
        zero_tensors, wants_d,
    )  # fmt: skip


def _run(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    sizes: _checks.Sizes,
    d_shape: tuple[int, ...],
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    alibi_slopes: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    deterministic: bool,
    rng_state: Tensor | None,
    zero_tensors: bool,
    wants_d: bool,
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
    _checks.like(dout, "dout", q, "q")
    _checks.like(out, "out", q, "q")
    if dropout_p:
        _checks.rng(rng_state, q)
    if dq is not None:
        _checks.output(dq, "dq", q, "q")
    if dk is not None:
        _checks.output(dk, "dk", k, "k")
    if dv is not None:
        _checks.output(dv, "dv", v, "v")
    device_ordinal = _checks.device_of(q)
    require_kernels()
    launcher = _launcher.launcher()

    dq = _tensors.empty_like(q) if dq is None else dq
    dk = _tensors.empty_like(k) if dk is None else dk
    dv = _tensors.empty_like(v) if dv is None else dv
    softmax_d = _tensors.empty_floats(d_shape, q) if wants_d else None
    nothing_to_do = not q.numel() or not k.numel() or not seqlen_q or not seqlen_k
    if zero_tensors or nothing_to_do:
        for written in (dq, dk, dv, softmax_d):
            if written is not None:
                written.zero_()
    if nothing_to_do:
        return dq, dk, dv, softmax_d

    scaled_q, positive_scale = q, softmax_scale
    if softmax_scale <= 0:
        scaled_q, positive_scale = _forward.positive(q, softmax_scale)
    q, q_at, q_strides = _tensors.readable(scaled_q)
    k, k_at, k_strides = _tensors.readable(k)
    v, v_at, v_strides = _tensors.readable(v)
    out, out_at, out_strides = _tensors.readable(out)
    dout, dout_at, dout_strides = _tensors.readable(dout)
    written_dq, dq_at, dq_strides = _tensors.writable(dq)
    written_dk, dk_at, dk_strides = _tensors.writable(dk)
    written_dv, dv_at, dv_strides = _tensors.writable(dv)
    if not softmax_lse.is_contiguous():
        softmax_lse = softmax_lse.contiguous()
    problem = (
        device_ordinal, _tensors.current_stream(device_ordinal),
        0 if cu_seqlens_q is None else cu_seqlens_q.data_ptr(),
        0 if cu_seqlens_k is None else cu_seqlens_k.data_ptr(),
        0, 0,  # seqused_k, leftpad_k
        0 if alibi_slopes is None else alibi_slopes.data_ptr(),
        rng_state.data_ptr() if dropout_p and rng_state is not None else 0,
        alibi_batch_stride,
        batch, nheads, nheads_k, q.shape[-1], seqlen_q, seqlen_k, total_q, total_k,
        _checks.DTYPE_CODES[q.dtype], causal, window_left, window_right,
        positive_scale, softcap, dropout_p, 0,
    )  # fmt: skip
    scratch_bytes = launcher.backward_scratch(problem, deterministic)
    # A softmax_d that nobody wants needs no tensor of its own. Its rows of 128 floats keep the rest aligned.
    d_bytes = 0 if wants_d else 4 * math.prod(d_shape)
    scratch = _tensors.empty_bytes(d_bytes + scratch_bytes, q)
    scratch_at = _tensors.address(scratch)
    launcher.backward(
        *problem,
        dout_at, q_at, k_at, v_at, out_at, softmax_lse.data_ptr(), dq_at, dk_at, dv_at,
        scratch_at if softmax_d is None else softmax_d.data_ptr(),
        *dout_strides, *q_strides, *k_strides, *v_strides, *out_strides,
        *dq_strides, *dk_strides, *dv_strides,
        deterministic, 0, scratch_at + d_bytes, scratch_bytes,
    )  # fmt: skip
    if softmax_scale < 0:
        written_dq.neg_()
    elif softmax_scale == 0:
        written_dq.zero_()
    _tensors.write_back(written_dq, dq)
    _tensors.write_back(written_dk, dk)
    _tensors.write_back(written_dv, dv)
    return dq, dk, dv, softmax_d
