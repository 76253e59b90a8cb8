"""FlashAttention-2: exact attention for PyTorch, in one wheel a platform."""

import sys as _sys

__version__ = "2.9.0"


def _is_diagnosis() -> bool:
    """Whether `python -m flash_attn` is being started, which has to work where torch does not."""
    if _sys.argv[:1] != ["-m"]:  # what Python puts there while it looks for the module
        return False
    started = _sys.orig_argv[-len(_sys.argv) :][0]  # the name, or -m and the name in one
    return started in (__name__, f"{__name__}.__main__") or (
        started.startswith("-") and started.endswith(f"m{__name__}")
    )


if not _is_diagnosis():
    from .flash_attn_interface import (
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
        flash_attn_with_kvcache,
    )

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
