"""What all GPU tests share: drawing inputs, poisoning outputs, and the rule by which a result is right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from gpu import reference
from torch import Tensor

from flash_attn import _launcher

DTYPES = [torch.float16, torch.bfloat16]
HEAD_DIMS = [32, 64, 96, 128, 192, 256]
# Inductor needs a C compiler for what runs on the host.
COMPILE_BACKEND = "inductor" if shutil.which("gcc") or shutil.which("cc") else "aot_eager"
FORWARD_FACTOR = 2.0
GRADIENT_FACTOR = 3.0


def draw(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator, device="cuda") * scale).to(dtype)


def draw_qkv(
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    nheads: int,
    nheads_k: int,
    head_dim: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        draw(batch, seqlen_q, nheads, head_dim, dtype=dtype, seed=seed),
        draw(batch, seqlen_k, nheads_k, head_dim, dtype=dtype, seed=seed + 1),
        draw(batch, seqlen_k, nheads_k, head_dim, dtype=dtype, seed=seed + 2),
    )


@contextmanager
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN inside, so that a value that nobody wrote is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def assert_right(
    actual: Tensor, exact: Tensor, plain: Tensor, factor: float = FORWARD_FACTOR, name: str = "out"
) -> None:
    """The largest error is at most factor times that of plain PyTorch in the same type, plus a small term."""
    assert actual.shape == exact.shape, f"{name} has shape {tuple(actual.shape)}, not {tuple(exact.shape)}"
    if not actual.numel():
        return
    assert torch.isfinite(actual).all(), (
        f"{name} holds {(~torch.isfinite(actual)).sum()} values that aren't finite"
    )
    exact = exact.detach().float()
    small = torch.finfo(actual.dtype).eps / 2 * max(1.0, exact.abs().max().item())
    error = (actual.detach().float() - exact).abs().max().item()
    allowed = factor * (plain.detach().float() - exact).abs().max().item() + small
    assert error <= allowed, f"{name} is off by {error:.3g}, more than {allowed:.3g}"


def assert_lse(actual: Tensor, exact: Tensor) -> None:
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, exact.float(), rtol=1e-4, atol=2e-3)


def check_forward(
    call: Callable[..., tuple[Tensor, Tensor, Tensor | None]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **options: object,
) -> None:
    """Calls flash_attn_func (or a stand-in for it) and compares out and LSE with the reference."""
    window = options.get("window", (-1, -1))
    own = {name: value for name, value in options.items() if name != "window"}
    with torch.no_grad(), poisoned():
        out, lse, _ = call(q, k, v, window_size=window, return_attn_probs=True, **own)
    exact, exact_lse = reference.attention(q, k, v, **options)
    plain, _ = reference.attention(q, k, v, **options, dtype=q.dtype)
    assert out.dtype == q.dtype
    assert_right(out, exact, plain)
    assert_lse(lse, exact_lse)


def own_options(options: dict[str, object]) -> dict[str, object]:
    """The reference's options as flash_attn names them."""
    names = {"window": "window_size"}
    return {names.get(name, name): value for name, value in options.items() if name != "keep"}


def check_gradients(
    call: Callable[..., Tensor],
    inputs: list[Tensor],
    plain_attention: Callable[..., Tensor],
    dout: Tensor | None = None,
) -> None:
    """Compares out and the gradients of the inputs with the reference.

    plain_attention takes the inputs and dtype=, and gives out in that type.
    """
    inputs = [x.detach().requires_grad_() for x in inputs]
    with poisoned():
        out = call(*inputs)
        if dout is None:
            dout = draw(*out.shape, dtype=out.dtype, seed=99)
        found = torch.autograd.grad(out, inputs, dout)
    wide = [x.detach().float().requires_grad_() for x in inputs]
    exact = plain_attention(*wide, dtype=torch.float32)
    narrow = [x.detach().requires_grad_() for x in inputs]
    plain = plain_attention(*narrow, dtype=out.dtype)
    assert_right(out, exact, plain)
    exact_gradients = torch.autograd.grad(exact, wide, dout.float())
    plain_gradients = torch.autograd.grad(plain, narrow, dout.to(plain.dtype))
    for index, gradients in enumerate(zip(found, exact_gradients, plain_gradients, strict=True)):
        assert gradients[0].dtype == inputs[index].dtype
        assert_right(*gradients, GRADIENT_FACTOR, f"gradient {index}")


def check_both(call: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, **options: object) -> None:
    """flash_attn_func (or a stand-in) with its gradients, against the reference."""

    def plain_attention(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
        return reference.attention(q, k, v, **options, dtype=dtype)[0]

    check_gradients(lambda *x: call(*x, **own_options(options)), [q, k, v], plain_attention)


def needs(family: str) -> pytest.MarkDecorator:
    """Skips, and says so, where the installed kernels lack a family."""
    try:
        missing = not _launcher.has_family(family)
    except RuntimeError:
        missing = True
    return pytest.mark.skipif(missing, reason=f"the installed build holds no {family} kernels")


def packed(lengths: list[int], *shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return draw(sum(lengths), *shape, dtype=dtype, seed=seed)


def cumulative(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
