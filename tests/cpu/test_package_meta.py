"""Tensors without data, on the device meta and under FakeTensorMode: shapes as on a GPU, nothing computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import flash_attn
from flash_attn import flash_attn_interface as interface

HALF = torch.float16
Make = Callable[..., Tensor]


@contextmanager
def meta() -> Iterator[Make]:
    yield lambda *shape, dtype=HALF: torch.empty(shape, dtype=dtype, device="meta")


@contextmanager
def fake() -> Iterator[Make]:
    """As on a GPU that isn't there."""
    with FakeTensorMode():
        yield lambda *shape, dtype=HALF: torch.empty(shape, dtype=dtype, device="cuda")


@contextmanager
def fake_cpu() -> Iterator[Make]:
    with FakeTensorMode():
        yield lambda *shape, dtype=HALF: torch.empty(shape, dtype=dtype)


KINDS = [meta, fake, fake_cpu]
kinds = pytest.mark.parametrize("kind", KINDS, ids=["meta", "fake cuda", "fake cpu"])


def lengths(make: Make, batch: int = 3) -> Tensor:
    return make(batch + 1, dtype=torch.int32)


def assert_like(x: Tensor, shape: tuple[int, ...], beside: Tensor, dtype: torch.dtype = HALF) -> None:
    assert (tuple(x.shape), x.dtype, x.device) == (shape, dtype, beside.device)


CALLS: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
    "dense": (
        [(2, 7, 4, 20), (2, 9, 2, 20), (2, 9, 2, 20)],
        lambda make, q, k, v: flash_attn.flash_attn_func(q, k, v, causal=True),
    ),
    "qkvpacked": (
        [(2, 7, 3, 4, 64)],
        lambda make, qkv: flash_attn.flash_attn_qkvpacked_func(qkv, dropout_p=0.1),
    ),
    "kvpacked": (
        [(2, 7, 4, 64), (2, 9, 2, 2, 64)],
        lambda make, q, kv: flash_attn.flash_attn_kvpacked_func(q, kv, window_size=(3, 1)),
    ),
    "varlen": (
        [(17, 4, 64), (32, 2, 64), (32, 2, 64)],
        lambda make, q, k, v: flash_attn.flash_attn_varlen_func(
            q, k, v, lengths(make), lengths(make), 12, 20, causal=True
        ),
    ),
    "varlen qkvpacked": (
        [(17, 3, 4, 64)],
        lambda make, qkv: flash_attn.flash_attn_varlen_qkvpacked_func(qkv, lengths(make), 12, softcap=3.0),
    ),
    "varlen kvpacked": (
        [(17, 4, 64), (32, 2, 2, 64)],
        lambda make, q, kv: flash_attn.flash_attn_varlen_kvpacked_func(
            q, kv, lengths(make), lengths(make), 12, 20, deterministic=True
        ),
    ),
}


@kinds
@pytest.mark.parametrize("name", CALLS)
def test_functions_and_their_gradients(name: str, kind: Any) -> None:
    shapes, call = CALLS[name]
    q_shape = shapes[0] if "qkv" not in name else (*shapes[0][:-3], *shapes[0][-2:])
    with kind() as make:
        inputs = [make(*shape) for shape in shapes]
        assert_like(call(make, *inputs), q_shape, inputs[0])
        if kind is fake and not torch.cuda.is_available():
            return  # autograd asks for the real device: torch without CUDA aborts, torch without a GPU raises
        for x in inputs:
            x.requires_grad_()
        out = call(make, *inputs)
        assert_like(out, q_shape, inputs[0])
        assert out.requires_grad
        for gradient, x in zip(torch.autograd.grad(out, inputs, out.detach()), inputs, strict=True):
            assert_like(gradient, tuple(x.shape), x)


@kinds
def test_probabilities(kind: Any) -> None:
    with kind() as make:
        q, k = make(2, 7, 4, 64), make(2, 9, 2, 64)
        out, lse, dmask = flash_attn.flash_attn_func(q, k, k, return_attn_probs=True)
        assert_like(out, (2, 7, 4, 64), q)
        assert_like(lse, (2, 4, 7), q, torch.float32)
        assert dmask is None
        dmask = flash_attn.flash_attn_func(q, k, k, dropout_p=0.5, return_attn_probs=True)[2]
        assert_like(dmask, (2, 4, 128, 128), q)
        rows, keys = make(17, 4, 64), make(32, 2, 64)
        _, lse, dmask = flash_attn.flash_attn_varlen_func(
            rows, keys, keys, lengths(make), lengths(make), 12, 130, dropout_p=0.5, return_attn_probs=True
        )
        assert_like(lse, (4, 17), q, torch.float32)
        assert_like(dmask, (3, 4, 128, 256), q)


@kinds
def test_operators(kind: Any) -> None:
    with kind() as make:
        q, k = make(2, 7, 4, 64), make(2, 9, 2, 64)
        options = (0.0, 0.125, True, -1, -1, 0.0, None)
        out, lse, dmask, rng_state = interface._flash_attn_forward(q, k, k, *options, False)
        assert_like(out, (2, 7, 4, 64), q)
        assert_like(lse, (2, 4, 7), q, torch.float32)
        assert_like(dmask, (0,), q)
        assert_like(rng_state, (2,), q, torch.int64)
        written = make(2, 7, 4, 64), make(2, 9, 2, 64), make(2, 9, 2, 64)
        d = interface._flash_attn_backward(out, q, k, k, out, lse, *written, *options, False, rng_state)
        assert_like(d, (2, 4, 128), q, torch.float32)
        rows, keys, packed = make(17, 4, 64), make(32, 2, 64), (lengths(make), lengths(make), 12, 20)
        out, lse, _, rng_state = interface._flash_attn_varlen_forward(rows, keys, keys, *packed, *options)
        assert_like(lse, (4, 17), q, torch.float32)
        written = make(17, 4, 64), make(32, 2, 64), make(32, 2, 64)
        d = interface._flash_attn_varlen_backward(
            out, rows, keys, keys, out, lse, *written, *packed, *options, False, rng_state
        )
        assert_like(d, (4, 512), q, torch.float32)
        pages, table = make(6, 256, 2, 64), make(3, 2, dtype=torch.int32)
        out = interface._flash_attn_varlen_forward(
            rows, pages, pages, *packed, *options, False, table, None, make(3, dtype=torch.int32)
        )[0]
        assert_like(out, (17, 4, 64), q)


@kinds
def test_cache(kind: Any) -> None:
    with kind() as make:
        q, new, cache = make(2, 1, 4, 64), make(2, 1, 2, 64), make(2, 512, 2, 64)
        filled = make(2, dtype=torch.int32)
        out, lse = flash_attn.flash_attn_with_kvcache(
            q, cache, cache, new, new, make(512, 16), make(512, 16), filled, causal=True,
            return_softmax_lse=True,
        )  # fmt: skip
        assert_like(out, (2, 1, 4, 64), q)
        assert_like(lse, (2, 4, 1), q, torch.float32)
        pages, table = make(6, 256, 2, 64), make(2, 3, dtype=torch.int32)
        out = flash_attn.flash_attn_with_kvcache(q, pages, pages, cache_seqlens=filled, block_table=table)
        assert_like(out, (2, 1, 4, 64), q)
        assert_like(flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=5), (2, 1, 4, 64), q)


@kinds
def test_wrong_shapes_are_refused_as_on_a_gpu(kind: Any) -> None:
    with kind() as make:
        q, k = make(2, 7, 4, 64), make(2, 9, 3, 64)
        rows, keys, cu = make(7, 4, 64), make(9, 3, 64), lengths(make)
        lse = make(2, 4, 7, dtype=torch.float32)
        options = (0.0, 0.125, True, -1, -1, 0.0, None, False)
        calls: dict[str, Callable[[], object]] = {
            "multiple": lambda: flash_attn.flash_attn_func(q, k, k),
            "head dimension is 300": lambda: flash_attn.flash_attn_func(*(make(1, 4, 1, 300),) * 3),
            "fp16 and bf16": lambda: flash_attn.flash_attn_func(
                *(make(1, 4, 1, 64, dtype=torch.float32),) * 3
            ),
            "positive multiple": lambda: flash_attn.flash_attn_varlen_func(rows, keys, keys, cu, cu, 4, 4),
            "heads of q": lambda: flash_attn.flash_attn_with_kvcache(q, k, k),
            "q has 4 heads and k 3": lambda: interface._flash_attn_backward(
                q, q, k, k, q, lse, q, k, k, *options
            ),
        }
        for message, call in calls.items():
            with pytest.raises(RuntimeError, match=message):
                call()


def test_a_model_on_the_meta_device() -> None:
    """As when a large model's shapes are worked out before its weights are loaded."""
    with torch.device("meta"):
        project = torch.nn.Linear(256, 3 * 256, dtype=torch.bfloat16)
        x = torch.empty(2, 100, 256, dtype=torch.bfloat16)
        out = flash_attn.flash_attn_qkvpacked_func(project(x).view(2, 100, 3, 4, 64), causal=True)
        out.sum().backward()
    assert out.device.type == "meta"
    assert project.weight.grad is not None
    assert project.weight.grad.shape == project.weight.shape


def test_meta_beside_another_device_is_refused() -> None:
    q = torch.empty(1, 4, 2, 64, dtype=HALF, device="meta")
    k = torch.empty(1, 4, 2, 64, dtype=HALF)
    for pair in ((q, k), (k, q)):
        with pytest.raises(RuntimeError, match="one device"):
            flash_attn.flash_attn_func(pair[0], pair[1], pair[1])
