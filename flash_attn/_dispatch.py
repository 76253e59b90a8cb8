"""Which calls may go straight to the launcher, past PyTorch's dispatcher, which costs more than a launch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

is_compiling = torch.compiler.is_compiling


def _unknown() -> bool:
    return True


def _probe(name: str) -> Any:
    """A question that PyTorch keeps among its internals; one that is gone counts as "yes", which is safe."""
    return getattr(torch._C, name, _unknown)


_dispatch_modes = _probe("_len_torch_dispatch_stack")
_function_modes = _probe("_len_torch_function_stack")
_functorch = _probe("_are_functorch_transforms_active")
_tracing = _probe("_get_tracing_state")
_PLAIN = (Tensor, Parameter)


def is_direct(q: Any, k: Any, v: Any) -> bool:
    """Whether no tensor subclass, mode, transform or trace has to see the call, and q has data."""
    return (
        type(q) in _PLAIN
        and type(k) in _PLAIN
        and type(v) in _PLAIN
        and not _dispatch_modes()
        and not _function_modes()
        and not _functorch()
        and not _tracing()
        and not q.is_meta
    )


@functools.cache
def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Its `apply` for direct calls, which need no look for torch.func: the one that torch's own ends in."""
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)


def needs_gradient(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
