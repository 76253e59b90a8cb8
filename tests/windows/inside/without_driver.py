"""Inside Windows without a driver: import, fake tensors, refused calls, planted libraries.

    python.exe without_driver.py TESTS REPORT

The working directory and Python's own folder hold planted files named nvcuda.dll and flash_attn.dll.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import modules
import report
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import flash_attn
from flash_attn import _launcher


def tensor(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def described(*tensors: torch.Tensor) -> list[Any]:
    return [[list(x.shape), str(x.dtype), str(x.device)] for x in tensors]


def fakes() -> dict[str, Any]:
    """Shapes that tracing sees, on GPUs that aren't there."""
    operators = torch.ops.flash_attn
    options = (0.0, 0.125, True, -1, -1, 0.0, None)
    with FakeTensorMode():
        q, cache = tensor(2, 7, 4, 64, device="cuda"), tensor(2, 32, 2, 64, device="cuda")
        packed, ends = tensor(14, 4, 64, device="cuda"), torch.zeros(3, dtype=torch.int32, device="cuda")
        func = described(flash_attn.flash_attn_func(q, q, q, causal=True))
        varlen = described(flash_attn.flash_attn_varlen_func(packed, packed, packed, ends, ends, 7, 7))
        kvcache = described(flash_attn.flash_attn_with_kvcache(q, cache, cache))
    q = tensor(2, 7, 4, 64, device="meta")
    out, lse, _, _ = operators._flash_attn_forward(q, q, q, *options, False)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    softmax_d = operators._flash_attn_backward(q, q, q, q, out, lse, dq, dk, dv, *options, False)
    return {"func": func, "varlen": varlen, "kvcache": kvcache, "meta": described(out, lse, softmax_d)}


def refused() -> dict[str, str]:
    q, k = tensor(2, 8, 4, 64), tensor(2, 16, 2, 64)
    calls: dict[str, Any] = {
        "no tensor": lambda: flash_attn.flash_attn_func([1.0], k, k),
        "fp32": lambda: flash_attn.flash_attn_func(q.float(), k.float(), k.float()),
        "head dimensions": lambda: flash_attn.flash_attn_func(q, k[..., :32], k[..., :32]),
        "heads": lambda: flash_attn.flash_attn_func(q[:, :, :3], k, k),
        "dropout": lambda: flash_attn.flash_attn_func(q, k, k, dropout_p=1.5),
        "cpu": lambda: flash_attn.flash_attn_func(q, k, k),
    }
    return {name: report.error_of(call) for name, call in calls.items()}


def main(tests: str, output: str) -> None:
    found: dict[str, Any] = {
        "version": flash_attn.__version__,
        "file": flash_attn.__file__,
        "python": sys.version,
        "torch": torch.__version__,
        "fakes": fakes(),
        "refused": refused(),
        "no driver": report.error_of(lambda: _launcher.launcher().devices()),
        "loaded": modules.named("nvcuda.dll", "flash_attn.dll"),
    }
    # A library of the driver's name that someone else has loaded is no driver either.
    ctypes.CDLL(str(Path("nvcuda.dll").absolute()))
    found["planted"] = modules.named("nvcuda.dll", "flash_attn.dll")
    found["no driver beside a loaded one"] = report.error_of(lambda: _launcher.launcher().devices())
    report.write(output, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
