"""Operators, autograd, torch.compile, checkpointing and fakes, with the reference in place of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cpu_kernels
import pytest
import torch
from gpu import reference
from mock_driver import toolchain
from mock_driver.isolated import isolated
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import flash_attn

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="isolated tests build the mock driver")

CU_Q = torch.tensor([0, 5, 5, 17], dtype=torch.int32)
CU_K = torch.tensor([0, 9, 12, 32], dtype=torch.int32)
CAUSAL = {"causal": True}
WINDOW = {"window_size": (3, 2), "softcap": 5.0, "softmax_scale": 0.4}


class Watched(TorchDispatchMode):
    """Does nothing, but has to see every operator; keeps calls from the direct way."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def draw(*shape: int, grad: bool = True) -> Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape).to(torch.bfloat16).requires_grad_(grad)


def calls() -> dict[str, tuple[Callable[..., Tensor], list[Tensor]]]:
    return {
        "dense": (
            lambda q, k, v: flash_attn.flash_attn_func(q, k, v, **CAUSAL),
            [draw(2, 7, 4, 16), draw(2, 9, 2, 16), draw(2, 9, 2, 16)],
        ),
        "dense window": (
            lambda q, k, v: flash_attn.flash_attn_func(q, k, v, **WINDOW, deterministic=True),
            [draw(2, 7, 4, 12), draw(2, 9, 2, 12), draw(2, 9, 2, 12)],
        ),
        "dense probabilities": (
            lambda q, k, v: flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)[0],
            [draw(2, 7, 4, 16), draw(2, 9, 2, 16), draw(2, 9, 2, 16)],
        ),
        "qkvpacked": (
            lambda qkv: flash_attn.flash_attn_qkvpacked_func(qkv, **CAUSAL),
            [draw(2, 7, 3, 4, 16)],
        ),
        "kvpacked": (
            lambda q, kv: flash_attn.flash_attn_kvpacked_func(q, kv, **CAUSAL),
            [draw(2, 7, 4, 16), draw(2, 9, 2, 2, 16)],
        ),
        "varlen": (
            lambda q, k, v: flash_attn.flash_attn_varlen_func(q, k, v, CU_Q, CU_K, 12, 20, **CAUSAL),
            [draw(17, 4, 16), draw(32, 2, 16), draw(32, 2, 16)],
        ),
        "varlen qkvpacked": (
            lambda qkv: flash_attn.flash_attn_varlen_qkvpacked_func(qkv, CU_Q, 12, **WINDOW),
            [draw(17, 3, 4, 16)],
        ),
        "varlen kvpacked": (
            lambda q, kv: flash_attn.flash_attn_varlen_kvpacked_func(q, kv, CU_Q, CU_K, 12, 20, **CAUSAL),
            [draw(17, 4, 16), draw(32, 2, 2, 16)],
        ),
    }


def expected(name: str, inputs: list[Tensor]) -> Tensor:
    """From the reference, in fp32."""
    options: dict[str, Any] = {"causal": True}
    if name in ("dense window", "varlen qkvpacked"):
        options = {"window": (3, 2), "softcap": 5.0, "softmax_scale": 0.4}
    if name == "dense probabilities":
        options = {}
    q, k, v = inputs if len(inputs) == 3 else (None, None, None)
    if len(inputs) == 1:
        q, k, v = inputs[0].unbind(-3)
    if len(inputs) == 2:
        q, (k, v) = inputs[0], inputs[1].unbind(-3)
    assert q is not None
    assert k is not None
    assert v is not None
    if not name.startswith("varlen"):
        return reference.attention(q, k, v, **options)[0]
    lengths_q = CU_Q.diff().tolist()
    lengths_k = lengths_q if name == "varlen qkvpacked" else CU_K.diff().tolist()
    return reference.varlen_attention(q, k, v, lengths_q, lengths_k, **options)[0]


def gradients(out: Tensor, inputs: list[Tensor], keep: bool = False) -> list[Tensor]:
    return list(torch.autograd.grad(out, inputs, torch.ones_like(out).cumsum(-1) / 16, retain_graph=keep))


def assert_like_reference(name: str, out: Tensor, inputs: list[Tensor]) -> None:
    exact = expected(name, inputs)
    torch.testing.assert_close(out.float(), exact, rtol=2e-2, atol=2e-2)
    for found, wanted in zip(gradients(out, inputs), gradients(exact, inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)


@isolated
def test_gradients_in_eager_mode() -> None:
    library = cpu_kernels.register()
    for name, (call, inputs) in calls().items():
        print(name)
        with Watched() as watched:
            out = call(*inputs)
            gradients(out, inputs, keep=True)
            assert_like_reference(name, out, inputs)  # the graph can be used twice
        kind = "varlen_" if name.startswith("varlen") else ""
        assert f"flash_attn._flash_attn_{kind}forward.default" in watched.seen
        assert f"flash_attn._flash_attn_{kind}backward.default" in watched.seen
    del library


@pytest.mark.parametrize("dynamic", [False, True])
@isolated
def test_compiled(dynamic: bool) -> None:
    library = cpu_kernels.register()
    for name, (call, inputs) in calls().items():
        print(name)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        assert_like_reference(name, compiled(*inputs), inputs)
        with torch.no_grad():
            out = compiled(*inputs).float()
        torch.testing.assert_close(out, expected(name, inputs), rtol=2e-2, atol=2e-2)
    del library


@isolated
def test_gradients_only_once() -> None:
    library = cpu_kernels.register()
    call, inputs = calls()["dense"]
    with Watched():
        out = call(*inputs)
        (dq,) = torch.autograd.grad(out.float().square().sum(), inputs[:1], create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            dq.float().sum().backward()
    del library


@isolated
def test_selective_checkpointing_names_the_operator() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    library = cpu_kernels.register()
    call, inputs = calls()["dense"]
    runs = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op == torch.ops.flash_attn._flash_attn_forward.default:
            runs.append("recompute" if ctx.is_recompute else "forward")
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    out = checkpoint(
        lambda *x: call(*x) * 2,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    with Watched() as watched:
        found = gradients(out, inputs)
    assert "flash_attn._flash_attn_forward.default" not in watched.seen
    for one, wanted in zip(found, gradients(2 * expected("dense", inputs), inputs), strict=True):
        torch.testing.assert_close(one, wanted, rtol=3e-2, atol=5e-2)
    assert runs
    del library


@isolated
def test_cache_compiled() -> None:
    library = cpu_kernels.register()
    from flash_attn import flash_attn_with_kvcache

    q, k, v = (draw(2, 1, heads, 16, grad=False) for heads in (4, 2, 2))
    lengths = torch.tensor([3, 8], dtype=torch.int32)

    def step(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        return flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True) + 0

    caches = [draw(2, 12, 2, 16, grad=False) for _ in range(2)]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    own = [x.clone() for x in caches]
    with Watched():
        out = step(q, *own, k, v, lengths)
    other = [x.clone() for x in caches]
    torch.testing.assert_close(compiled(q, *other, k, v, lengths), out)
    for one, two in zip(own, other, strict=True):
        assert torch.equal(one, two)
    assert torch.equal(own[0][0, 3], k[0, 0])
    assert torch.equal(own[0][1, 8], k[1, 0])
    with Watched():
        by_int = flash_attn_with_kvcache(q, *own, cache_seqlens=5)
    torch.testing.assert_close(
        by_int.float(), reference.attention(q, *(x[:, :5] for x in own))[0], rtol=2e-2, atol=2e-2
    )
    del library


@isolated
def test_opcheck() -> None:
    library = cpu_kernels.register()
    ops = torch.ops.flash_attn
    options = (0.0, 0.25, True, -1, -1, 0.0, None)
    q, k, v = draw(2, 7, 4, 16), draw(2, 9, 2, 16), draw(2, 9, 2, 16)
    torch.library.opcheck(ops._flash_attn_forward.default, (q, k, v, *options, False))
    rows = draw(17, 4, 16), draw(32, 2, 16), draw(32, 2, 16)
    lengths = (CU_Q, CU_K, 12, 20)
    torch.library.opcheck(ops._flash_attn_varlen_forward.default, (*rows, *lengths, *options))
    detached = [x.detach() for x in (q, k, v)]
    out, lse, _, rng_state = ops._flash_attn_forward(*detached, *options, False)
    written = [torch.zeros_like(x) for x in detached]
    torch.library.opcheck(
        ops._flash_attn_backward.default, (out, *detached, out, lse, *written, *options, False, rng_state)
    )
    detached = [x.detach() for x in rows]
    out, lse, _, rng_state = ops._flash_attn_varlen_forward(*detached, *lengths, *options)
    written = [torch.zeros_like(x) for x in detached]
    torch.library.opcheck(
        ops._flash_attn_varlen_backward.default,
        (out, *detached, out, lse, *written, *lengths, *options, False, rng_state),
    )
    one, keys = draw(2, 1, 4, 16, grad=False), draw(2, 12, 2, 16, grad=False)
    new, filled = draw(2, 1, 2, 16, grad=False), CU_K[:2] + 3
    cache = (one, keys.clone(), keys.clone(), new, new, None, None, filled, None, None, None, None)
    torch.library.opcheck(
        ops._flash_attn_with_kvcache.default, (*cache, 0.25, True, -1, -1, 0.0, True, None, 0)
    )
    del library


def test_fakes_give_shapes() -> None:
    ops = torch.ops.flash_attn
    q, k = (
        torch.empty(2, 7, 4, 20, device="meta", dtype=torch.half),
        torch.empty(2, 9, 2, 20, device="meta", dtype=torch.half),
    )
    out, lse, s_dmask, rng_state = ops._flash_attn_forward(q, k, k, 0.5, 0.1, False, -1, -1, 0.0, None, True)
    assert (out.shape, out.dtype, out.is_contiguous()) == (q.shape, q.dtype, True)
    assert (lse.shape, lse.dtype) == ((2, 4, 7), torch.float32)
    assert (s_dmask.shape, s_dmask.dtype) == ((2, 4, 128, 128), q.dtype)
    assert (rng_state.shape, rng_state.dtype) == ((2,), torch.int64)
    rows, keys = q.flatten(0, 1), k.flatten(0, 1)
    cu = torch.empty(3, dtype=torch.int32, device="meta")
    out, lse, s_dmask, _ = ops._flash_attn_varlen_forward(
        rows, keys, keys, cu, cu, 7, 130, 0.5, 0.1, False, return_softmax=True
    )
    assert out.shape == rows.shape
    assert lse.shape == (4, 14)
    assert s_dmask.shape == (2, 4, 128, 256)
    with pytest.raises(RuntimeError, match="multiple"):
        ops._flash_attn_forward(q[:, :, :3], k, k, 0.0, 0.1, False, -1, -1, 0.0, None, False)


def test_fakes_take_sizes_that_only_data_knows() -> None:
    """As after unpad_input under torch.compile."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def packed(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
        rows = x[mask.nonzero().flatten()]
        return torch.ops.flash_attn._flash_attn_varlen_forward(
            rows, rows, rows, cu, cu, 4, 4, 0.0, 0.1, True
        )[0]

    x = torch.zeros(6, 2, 16, dtype=torch.half)
    mask = torch.tensor([1, 0, 1, 1, 0, 1])
    cu = torch.zeros(2, dtype=torch.int32)
    graph = make_fx(packed, tracing_mode="symbolic")(x, mask, cu)
    assert any("varlen_forward" in str(node.target) for node in graph.graph.nodes)
