"""The sections of a run. Each gives rows of plain values, which tables, JSON and charts are made from."""

# Functions that a loop defines are called within that very turn of it.
# ruff: noqa: B023

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import flash_attn_2_cuda
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

from . import workloads
from .timing import gpu_seconds, host_seconds
from .workloads import GRID, Cell

Row = dict[str, Any]


def _draw(*shape: int, dtype: torch.dtype, grad: bool = False) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype).requires_grad_(grad)


def _torch_flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """PyTorch's flash backend on the very tensors that ours gets."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _compared(cell: Cell, seconds: list[float], flops: float) -> Row:
    ours, torchs = seconds
    return {
        "head_dim": cell.head_dim,
        "seqlen": cell.seqlen,
        "causal": cell.causal,
        "ours_tflops": flops / ours / 1e12,
        "torch_tflops": flops / torchs / 1e12,
        "speedup": torchs / ours,
    }


def forward(dtype: torch.dtype) -> list[Row]:
    """flash_attn_func against PyTorch's flash backend, no gradients."""
    rows = []
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for cell in GRID:
            shape = (cell.batch, cell.seqlen, cell.nheads, cell.head_dim)
            q, k, v = (_draw(*shape, dtype=dtype) for _ in range(3))
            causal = cell.causal
            seconds = gpu_seconds(
                [lambda: flash_attn_func(q, k, v, causal=causal), lambda: _torch_flash(q, k, v, causal)]
            )
            rows.append(_compared(cell, seconds, cell.forward_flops))
    return rows


def backward(dtype: torch.dtype) -> list[Row]:
    """The gradients of q, k and v, the forward not counted."""
    rows = []
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for cell in GRID:
            shape = (cell.batch, cell.seqlen, cell.nheads, cell.head_dim)
            q, k, v = (_draw(*shape, dtype=dtype, grad=True) for _ in range(3))
            dout = _draw(*shape, dtype=dtype)
            outs = [flash_attn_func(q, k, v, causal=cell.causal), _torch_flash(q, k, v, cell.causal)]

            def gradients(out: Tensor, inputs: tuple[Tensor, ...], dout: Tensor) -> Callable[[], object]:
                return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)

            seconds = gpu_seconds([gradients(out, (q, k, v), dout) for out in outs])
            rows.append(_compared(cell, seconds, cell.forward_flops * workloads.BACKWARD_WORK))
    return rows


def features(dtype: torch.dtype) -> list[Row]:
    """What a mask or bias costs: time against the plain forward, a window in proportion to the keys seen."""
    rows = []
    seqlen, window = 4096, 512
    seen = sum(min(i + window, seqlen - 1) - max(i - window, 0) + 1 for i in range(seqlen)) / seqlen**2
    with torch.no_grad():
        for head_dim in (64, 128, 256):
            nheads = workloads.HIDDEN // head_dim
            q, k, v = (_draw(4, seqlen, nheads, head_dim, dtype=dtype) for _ in range(3))
            slopes = torch.rand(nheads, device="cuda")
            options: dict[str, tuple[dict[str, Any], float]] = {
                "window": ({"window_size": (window, window)}, seen),
                "alibi": ({"alibi_slopes": slopes}, 1.0),
                "softcap": ({"softcap": 30.0}, 1.0),
                "dropout": ({"dropout_p": 0.1}, 1.0),
            }

            def plain() -> object:
                return flash_attn_func(q, k, v)

            for name, (more, work) in options.items():
                ours, base = gpu_seconds([lambda: flash_attn_func(q, k, v, **more), plain])
                rows.append(
                    {"feature": name, "head_dim": head_dim, "ms": ours * 1e3, "plain_ms": base * 1e3}
                    | {"share_of_keys": work, "time_to_plain": ours / base / work}
                )
    return rows


def decode(dtype: torch.dtype) -> list[Row]:
    """One token each against a long cache: bytes read a second, against a copy on the device."""
    batch, nheads, nheads_k = workloads.DECODE_BATCH, workloads.DECODE_HEADS, workloads.DECODE_HEADS_K
    head_dim, keys, page = workloads.DECODE_HEAD_DIM, workloads.DECODE_KEYS, workloads.DECODE_PAGE
    source = torch.empty(workloads.COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    q = _draw(batch, 1, nheads, head_dim, dtype=dtype)
    k_cache, v_cache = (_draw(batch, keys, nheads_k, head_dim, dtype=dtype) for _ in range(2))
    k_pages, v_pages = (x.view(-1, page, nheads_k, head_dim) for x in (k_cache, v_cache))
    table = torch.randperm(k_pages.shape[0], device="cuda").to(torch.int32).view(batch, -1)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    works = {
        "contiguous": lambda: flash_attn_with_kvcache(
            q, k_cache, v_cache, cache_seqlens=lengths, causal=True
        ),
        "paged": lambda: flash_attn_with_kvcache(
            q, k_pages, v_pages, cache_seqlens=lengths, block_table=table, causal=True
        ),
    }
    with torch.no_grad():
        *seconds, copy = gpu_seconds([*works.values(), lambda: target.copy_(source)])
    copy_rate = 2 * workloads.COPY_BYTES / copy
    return [
        {"cache": name, "us": time * 1e6, "tb_per_s": workloads.DECODE_BYTES / time / 1e12}
        | {"copy_tb_per_s": copy_rate / 1e12, "share_of_copy": workloads.DECODE_BYTES / time / copy_rate}
        for name, time in zip(works, seconds, strict=True)
    ]


def varlen(dtype: torch.dtype) -> list[Row]:
    """64 packed sequences of mixed lengths against 64 of one length and like work, by throughput."""
    count, nheads = 64, 16
    chance = random.Random(0)
    lengths = [chance.randrange(64, 2048) for _ in range(count)]
    equal = round(math.sqrt(sum(length**2 for length in lengths) / count))
    cumulative = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    rows = []
    longest = max(lengths)
    with torch.no_grad():
        for head_dim in (64, 128):
            q, k, v = (_draw(sum(lengths), nheads, head_dim, dtype=dtype) for _ in range(3))
            qb, kb, vb = (_draw(count, equal, nheads, head_dim, dtype=dtype) for _ in range(3))
            for causal in (False, True):

                def mixed() -> object:
                    return flash_attn_varlen_func(
                        q, k, v, cumulative, cumulative, longest, longest, causal=causal
                    )

                def equals() -> object:
                    return flash_attn_func(qb, kb, vb, causal=causal)

                mixed_time, equal_time = gpu_seconds([mixed, equals])
                mixed_rate = workloads.attention_flops(lengths, nheads, head_dim, causal) / mixed_time
                equal_rate = workloads.attention_flops([equal] * count, nheads, head_dim, causal) / equal_time
                rows.append(
                    {"head_dim": head_dim, "causal": causal, "mixed_tflops": mixed_rate / 1e12}
                    | {"equal_tflops": equal_rate / 1e12, "ratio": mixed_rate / equal_rate}
                )
    return rows


def host(dtype: torch.dtype) -> list[Row]:
    """Host time of a call on a tiny input, in microseconds."""
    from flash_attn import _backward, _launcher

    q, k, v = (_draw(1, 16, 1, 64, dtype=dtype) for _ in range(3))

    def ours() -> object:
        return flash_attn_func(q, k, v)

    def torchs() -> object:
        return _torch_flash(q, k, v, False)

    rows = []
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        rows.append(
            {"call": "forward", "ours_us": host_seconds(ours) * 1e6, "torch_us": host_seconds(torchs) * 1e6}
        )
    if not _launcher.has_family(_backward.FAMILY):
        return rows
    for x in (q, k, v):
        x.requires_grad_()
    dout = torch.ones_like(q)

    def both(work: Callable[[], Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(work(), (q, k, v), dout)

    # autograd runs a backward in a thread of its own, and the way there and back is most of the time.
    for threads, name in ((True, "forward and backward"), (False, "forward and backward, one thread")):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autograd.set_multithreading_enabled(threads):
            rows.append(
                {"call": name, "ours_us": host_seconds(both(ours)) * 1e6}
                | {"torch_us": host_seconds(both(torchs)) * 1e6}
            )
    with torch.no_grad():
        seconds = [host_seconds(lambda: work(q, k, v, dout)) for work in (_our_operators, _torch_operators)]
    ours_us, torch_us = (x * 1e6 for x in seconds)
    rows.append({"call": "forward and backward, no autograd", "ours_us": ours_us, "torch_us": torch_us})
    return rows


def _our_operators(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> None:
    options = (None, 0.0, q.shape[-1] ** -0.5, False, -1, -1, 0.0)
    out, softmax_lse, _, _ = flash_attn_2_cuda.fwd(q, k, v, None, *options, False, None)
    flash_attn_2_cuda.bwd(dout, q, k, v, out, softmax_lse, None, None, None, *options, False, None, None)


def _torch_operators(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> None:
    q, k, v, dout = (x.transpose(1, 2) for x in (q, k, v, dout))
    aten = torch.ops.aten
    out, softmax_lse, *rest, _ = aten._scaled_dot_product_flash_attention(q, k, v)
    cum_q, cum_k, max_q, max_k, seed, offset = rest
    aten._scaled_dot_product_flash_attention_backward(
        dout, q, k, v, out, softmax_lse, cum_q, cum_k, max_q, max_k, 0.0, False, seed, offset
    )


SECTIONS: dict[str, Callable[[torch.dtype], list[Row]]] = {
    "host": host,
    "forward": forward,
    "backward": backward,
    "features": features,
    "decode": decode,
    "varlen": varlen,
}
# Kernel families that a section needs besides flash_fwd.
NEEDS = {"backward": "flash_bwd", "decode": "flash_fwd_splitkv"}
