"""Shapes and options drawn by hypothesis, with gradients where they are built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu import reference
from gpu.support import (
    assert_right,
    check_both,
    check_forward,
    check_gradients,
    cumulative,
    draw_qkv,
    own_options,
    packed,
)
from torch import Tensor

from flash_attn import _backward, _launcher, flash_attn_func, flash_attn_varlen_func

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")

SETTINGS = hypothesis.settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)


@st.composite
def options(draw: Any, nheads: int, batch: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        side = st.one_of(st.just(-1), st.integers(0, 400))
        chosen["window"] = (draw(side), draw(side))
    if draw(st.booleans()):
        chosen["softcap"] = draw(st.sampled_from([1.0, 10.0, 40.0]))
    if draw(st.booleans()):
        chosen["softmax_scale"] = draw(st.sampled_from([-0.1, 0.05, 0.4]))
    if draw(st.booleans()):
        shape = (batch, nheads) if draw(st.booleans()) else (nheads,)
        chosen["alibi_slopes"] = torch.rand(shape, device="cuda") * 0.3
    return chosen


HEADS = [(1, 1), (2, 1), (3, 3), (4, 2), (8, 1)]


@SETTINGS
@hypothesis.given(st.data())
def test_dense(data: Any) -> None:
    nheads, nheads_k = data.draw(st.sampled_from(HEADS))
    batch = data.draw(st.integers(1, 3))
    seqlen_q, seqlen_k = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 500))
    head_dim = data.draw(st.integers(1, 256))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16]))
    chosen = data.draw(options(nheads, batch))
    q, k, v = draw_qkv(batch, seqlen_q, seqlen_k, nheads, nheads_k, head_dim, dtype)
    check_forward(flash_attn_func, q, k, v, **chosen)
    if _launcher.has_family(_backward.FAMILY):
        check_both(flash_attn_func, q, k, v, **chosen)


@SETTINGS
@hypothesis.given(st.data())
def test_varlen(data: Any) -> None:
    nheads, nheads_k = data.draw(st.sampled_from(HEADS))
    batch = data.draw(st.integers(1, 5))
    length = st.one_of(st.just(0), st.integers(1, 300))
    lengths_q = data.draw(st.lists(length, min_size=batch, max_size=batch))
    lengths_k = data.draw(st.lists(length, min_size=batch, max_size=batch))
    head_dim = data.draw(st.sampled_from([16, 40, 64, 96, 128, 160, 256]))
    chosen = data.draw(options(nheads, batch))
    q = packed(lengths_q, nheads, head_dim, dtype=torch.bfloat16)
    k = packed(lengths_k, nheads_k, head_dim, dtype=torch.bfloat16, seed=1)
    v = packed(lengths_k, nheads_k, head_dim, dtype=torch.bfloat16, seed=2)
    lengths = (cumulative(lengths_q), cumulative(lengths_k), max(lengths_q), max(lengths_k))

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attn_varlen_func(q, k, v, *lengths, **own_options(chosen))

    def plain(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
        out, _ = reference.varlen_attention(q, k, v, lengths_q, lengths_k, **chosen, dtype=dtype)
        return out + 0 * sum(x.float().sum() for x in (q, k, v)).to(
            dtype
        )  # a graph even where nothing is seen

    if not _launcher.has_family(_backward.FAMILY):
        exact, narrow = plain(q, k, v, torch.float32), plain(q, k, v, q.dtype)
        assert_right(call(q, k, v), exact, narrow)
        return
    check_gradients(call, [q, k, v], plain)
