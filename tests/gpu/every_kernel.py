"""Small inputs that run every kernel: what compute-sanitizer is run over.

``python -m gpu.every_kernel bf16`` with tests/ on PYTHONPATH. Tiles of both shared-memory limits are run.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from flash_attn import _launcher, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SMEM_LIMITS = (0, 99 * 1024)  # the device's own; that of compute capability 8.6, 8.9, 12.0 and 12.1


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def gradients(out: Tensor, *inputs: Tensor) -> None:
    torch.autograd.grad(out, inputs, torch.randn_like(out))


def dense(head_dim: int, dtype: torch.dtype) -> None:
    q, k, v = (draw(2, rows, heads, head_dim, dtype=dtype) for rows, heads in ((150, 4), (203, 2), (203, 2)))
    for x in (q, k, v):
        x.requires_grad_()
    slopes = torch.rand(2, 4, device="cuda")
    gradients(flash_attn_func(q, k, v, window_size=(60, 9), alibi_slopes=slopes), q, k, v)
    gradients(flash_attn_func(q, k, v, softcap=8.0, causal=True, deterministic=True), q, k, v)
    out, _, s_dmask = flash_attn_func(q, k, v, 0.3, causal=True, return_attn_probs=True)
    assert s_dmask is not None
    gradients(out, q, k, v)


def packed(head_dim: int, dtype: torch.dtype) -> None:
    starts = int32(0, 70, 70, 150)
    q, k, v = (draw(150, heads, head_dim, dtype=dtype).requires_grad_() for heads in (4, 2, 2))
    gradients(flash_attn_varlen_func(q, k, v, starts, starts, 80, 80, causal=True), q, k, v)


def cached(head_dim: int, dtype: torch.dtype) -> None:
    lengths, pages, page_size = int32(200, 333), int32(3, 0, 2, 1), 256
    cos, sin = (draw(512, head_dim // 4, dtype=dtype) for _ in range(2))
    for seqlen_q in (1, 70):  # the tile of 16 rows and that of 64
        q, k, v = (draw(2, seqlen_q, heads, head_dim, dtype=dtype) for heads in (8, 2, 2))
        for softcap in (0.0, 8.0):
            for paged in (False, True):
                shape = (4, page_size) if paged else (2, 2 * page_size)
                k_cache, v_cache = (draw(*shape, 2, head_dim, dtype=dtype) for _ in range(2))
                flash_attn_with_kvcache(
                    q, k_cache, v_cache, k, v, cos, sin, cache_seqlens=lengths, causal=True, softcap=softcap,
                    block_table=pages.view(2, 2) if paged else None, num_splits=3,
                )  # fmt: skip


def main(name: str) -> None:
    dtype = TYPES[name]
    try:
        for limit in SMEM_LIMITS:
            _launcher.launcher().set_smem_limit(limit)
            for head_dim in HEAD_DIMS:
                dense(head_dim, dtype)
                packed(head_dim, dtype)
                cached(head_dim, dtype)
        torch.cuda.synchronize()
    finally:
        _launcher.launcher().set_smem_limit(0)


if __name__ == "__main__":
    main(sys.argv[1])
