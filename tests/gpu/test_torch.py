"""What PyTorch does around a call: compile, graphs, autocast, checkpoints, threads, devices, fakes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from gpu.support import COMPILE_BACKEND, cumulative, draw, draw_qkv, needs, packed
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from flash_attn import (
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)


def inputs(grad: bool = True, seqlen: int = 200, head_dim: int = 64) -> list[Tensor]:
    return [x.requires_grad_(grad) for x in draw_qkv(2, seqlen, seqlen, 4, 2, head_dim, torch.bfloat16)]


def gradients(out: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, tensors, draw(*out.shape, dtype=out.dtype, seed=4), retain_graph=True)


def assert_same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> None:
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left, right)


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flash_attn_func(q, k, v, causal=True, deterministic=True)


@needs("flash_bwd")
@pytest.mark.parametrize(("head_dim", "dynamic"), [(64, False), (100, True)])
def test_compiled_training(head_dim: int, dynamic: bool) -> None:
    compiled = torch.compile(dense, fullgraph=True, backend=COMPILE_BACKEND, dynamic=dynamic)
    for seqlen in (200, 130):
        qkv = inputs(seqlen=seqlen, head_dim=head_dim)
        expected = dense(*qkv)
        out = compiled(*qkv)
        assert torch.equal(out, expected)
        grads = torch.autograd.grad(out, qkv, draw(*out.shape, dtype=out.dtype, seed=4))
        assert_same(grads, gradients(expected, qkv))


@needs("flash_bwd")
def test_compiled_packed_and_varlen() -> None:
    lengths = cumulative([30, 0, 70])
    rows = packed([30, 0, 70], 3, 4, 64, dtype=torch.bfloat16).requires_grad_()

    def varlen(rows: Tensor) -> Tensor:
        q, k, v = rows.unbind(1)
        return flash_attn_varlen_func(q, k, v, lengths, lengths, 70, 70, causal=True, deterministic=True) * 2

    def together(qkv: Tensor) -> Tensor:
        return flash_attn_qkvpacked_func(qkv, window_size=(20, 0), deterministic=True)

    qkv = draw(2, 100, 3, 4, 64, dtype=torch.bfloat16).requires_grad_()
    for call, x in ((varlen, rows), (together, qkv)):
        expected = call(x)
        out = torch.compile(call, fullgraph=True, backend=COMPILE_BACKEND)(x)
        assert torch.equal(out, expected)
        grads = torch.autograd.grad(out, x, draw(*out.shape, dtype=out.dtype, seed=4))
        assert_same(grads, gradients(expected, [x]))


@needs("flash_fwd_splitkv")
def test_compiled_cache() -> None:
    q, new = draw(2, 1, 4, 64, dtype=torch.bfloat16), draw(2, 1, 2, 64, dtype=torch.bfloat16)
    cache = draw(2, 100, 2, 64, dtype=torch.bfloat16)
    lengths = torch.tensor([37, 60], dtype=torch.int32, device="cuda")

    def step(q: Tensor, k_cache: Tensor, v_cache: Tensor, new: Tensor, lengths: Tensor) -> Tensor:
        return flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=lengths, causal=True)

    own, other = [cache.clone(), cache.clone()], [cache.clone(), cache.clone()]
    expected = step(q, *own, new, lengths)
    assert torch.equal(
        torch.compile(step, fullgraph=True, backend=COMPILE_BACKEND)(q, *other, new, lengths), expected
    )
    assert_same(tuple(own), tuple(other))


def captured(run: Any) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def test_graph_of_a_forward() -> None:
    q, k, v = inputs(grad=False)
    result: dict[str, Tensor] = {}

    def run() -> None:
        result["out"] = flash_attn_func(q, k, v, causal=True)

    graph = captured(run)
    for seed in (1, 2):
        for x, fresh in zip(
            (q, k, v), draw_qkv(2, 200, 200, 4, 2, 64, torch.bfloat16, seed * 10), strict=True
        ):
            x.copy_(fresh)
        graph.replay()
        assert torch.equal(result["out"], flash_attn_func(q, k, v, causal=True))


@needs("flash_bwd")
def test_graph_of_a_training_step() -> None:
    qkv = inputs()
    dout = draw(*qkv[0].shape, dtype=torch.bfloat16, seed=4)
    result: dict[str, Any] = {}

    def run() -> None:
        result["grads"] = torch.autograd.grad(dense(*qkv), qkv, dout)

    graph = captured(run)
    with torch.no_grad():
        for x, fresh in zip(qkv, draw_qkv(2, 200, 200, 4, 2, 64, torch.bfloat16, 50), strict=True):
            x.copy_(fresh)
    graph.replay()
    assert_same(result["grads"], torch.autograd.grad(dense(*qkv), qkv, dout))


def test_graph_with_dropout_draws_anew() -> None:
    q, k, v = inputs(grad=False)
    result: dict[str, Tensor] = {}

    def run() -> None:
        result["out"] = flash_attn_func(q, k, v, 0.5)

    graph = captured(run)
    graph.replay()
    first = result["out"].clone()
    graph.replay()
    assert not torch.equal(result["out"], first)


@needs("flash_fwd_splitkv")
def test_graph_of_decoding() -> None:
    q, cache = draw(2, 1, 8, 64, dtype=torch.float16), draw(2, 2000, 2, 64, dtype=torch.float16)
    new = draw(2, 1, 2, 64, dtype=torch.float16)
    lengths = torch.tensor([37, 1500], dtype=torch.int32, device="cuda")
    own = [cache.clone(), cache.clone()]
    result: dict[str, Tensor] = {}

    def run() -> None:
        result["out"] = flash_attn_with_kvcache(q, *own, new, new, cache_seqlens=lengths, causal=True)

    graph = captured(run)
    for _ in range(3):
        lengths += 1
        graph.replay()
        other = [x.clone() for x in own]
        assert torch.equal(
            result["out"], flash_attn_with_kvcache(q, *other, new, new, cache_seqlens=lengths, causal=True)
        )


@needs("flash_bwd")
def test_autocast() -> None:
    layer = torch.nn.Linear(256, 3 * 256, device="cuda")
    x = torch.randn(2, 100, 256, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        out = flash_attn_qkvpacked_func(layer(x).view(2, 100, 3, 4, 64), causal=True)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    with torch.autocast("cuda", torch.bfloat16), pytest.raises(RuntimeError, match="fp16 and bf16"):
        flash_attn_func(*(torch.randn(1, 8, 1, 64, device="cuda") for _ in range(3)))


@needs("flash_bwd")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_checkpointing(dropout_p: float, reentrant: bool) -> None:
    qkv = inputs()

    def call(*x: Tensor) -> Tensor:
        return flash_attn_func(*x, dropout_p, causal=True, deterministic=True) * 1.5

    torch.manual_seed(5)
    expected = call(*qkv)
    torch.manual_seed(5)
    out = checkpoint(call, *qkv, use_reentrant=reentrant)
    assert torch.equal(out, expected)
    dout = draw(*out.shape, dtype=out.dtype, seed=4)
    for x in qkv:
        x.grad = None
    out.backward(dout)
    for x, wanted in zip(qkv, torch.autograd.grad(expected, qkv, dout), strict=True):
        assert torch.equal(x.grad, wanted)


@needs("flash_bwd")
def test_a_graph_used_twice() -> None:
    qkv = inputs()
    out = dense(*qkv)
    assert_same(gradients(out, qkv), gradients(out, qkv))


@needs("flash_bwd")
def test_second_derivatives_are_refused() -> None:
    qkv = inputs()
    (dq,) = torch.autograd.grad(dense(*qkv).float().square().sum(), qkv[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.float().sum().backward()


@needs("flash_bwd")
def test_operator_has_gradients() -> None:
    qkv = inputs()
    out = torch.ops.flash_attn._flash_attn_forward(*qkv, 0.0, 0.125, True, -1, -1, 0.0, None, False)[0]
    expected = flash_attn_func(*qkv, causal=True)
    assert torch.equal(out, expected)
    for one, other in zip(gradients(out, qkv), gradients(expected, qkv), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@needs("flash_bwd")
def test_changed_inputs_are_noticed() -> None:
    q, k, v = inputs()
    k = k * 1
    out = flash_attn_func(q, k, v)
    k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_threads() -> None:
    """Many threads, each with a stream and shapes of its own."""
    from flash_attn import _backward, _launcher

    grad = _launcher.has_family(_backward.FAMILY)
    cases = [inputs(grad, seqlen=50 + 37 * index, head_dim=(64, 96, 128)[index % 3]) for index in range(8)]
    expected = [dense(*case) for case in cases]
    expected_gradients = [
        gradients(out, case) if grad else () for out, case in zip(expected, cases, strict=True)
    ]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(index: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    out = dense(*cases[index])
                    assert torch.equal(out, expected[index])
                    if grad:
                        assert_same(gradients(out, cases[index]), expected_gradients[index])
        except Exception as error:
            wrong.append(f"thread {index}: {error!r}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_second_device() -> None:
    qkv = inputs(grad=False)
    expected = dense(*qkv)
    for _ in range(3):
        out = dense(*(x.to("cuda:1") for x in qkv))
        assert out.device.index == 1
        assert torch.equal(out.to("cuda:0"), expected)
        assert torch.equal(dense(*qkv), expected)
    with pytest.raises(RuntimeError, match="one device"):
        flash_attn_func(qkv[0], qkv[1].to("cuda:1"), qkv[2])


def test_fake_tensors_on_the_gpu() -> None:
    with FakeTensorMode():
        q = torch.empty(2, 7, 4, 20, device="cuda", dtype=torch.half, requires_grad=True)
        out, lse, _ = flash_attn_func(q, q, q, return_attn_probs=True)
    assert out.shape == q.shape
    assert out.device.type == "cuda"
    assert lse.shape == (2, 4, 7)


def test_inference_mode_and_parameters() -> None:
    q, k, v = inputs(grad=False)
    expected = dense(q, k, v)
    with torch.inference_mode():
        assert torch.equal(dense(q, k, v), expected)
        assert torch.equal(dense(torch.nn.Parameter(q), k, v), expected)
