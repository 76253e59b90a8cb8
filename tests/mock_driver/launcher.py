"""The launcher from Python, with arguments for every call that are right unless a test changes them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mock_driver.c_structs import structs
from mock_driver.kernel_table import write_fatbins

OK, INVALID_ARGUMENT, NO_DRIVER, NO_DEVICE, BAD_KERNELS, CUDA_ERROR = range(6)
FP16, BF16 = range(2)
UNLIMITED = 1 << 29

_ADDRESS = 0x7F00_0000_0000  # every tensor gets its own range, so that a swapped pointer shows
Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, SOFTMAX_D, SCRATCH, S_DMASK = (_ADDRESS + (i << 32) for i in range(12))
CU_SEQLENS_Q, CU_SEQLENS_K, SEQUSED_K, LEFTPAD_K, ALIBI, RNG, BATCH_IDX, BLOCK_TABLE = (
    _ADDRESS + (i << 32) for i in range(16, 24)
)
Q_ROTATED, K_NEW, V_NEW, COS, SIN, CACHE_SEQLENS = (_ADDRESS + (i << 32) for i in range(32, 38))
STREAM = 0x5EED0


class LauncherError(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Launcher:
    """A launcher library. Its state is the process's: use one in an isolated test."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.flash_attn_last_error.restype = ctypes.c_char_p

    @property
    def last_error(self) -> str:
        return bytes(self.library.flash_attn_last_error()).decode()

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != OK:
            raise LauncherError(status, self.last_error)

    def set_kernels(self, folder: str | Path, digests: Mapping[str, str]) -> None:
        entries = (structs()["flash_attn_fatbin"] * max(len(digests), 1))()
        for entry, (name, digest) in zip(entries, digests.items(), strict=False):
            entry.name, entry.sha256 = name.encode(), digest.encode()
        self.call("flash_attn_set_kernels", str(folder).encode(), entries, len(digests))

    def use_made_up_kernels(self, folder: Path) -> Path:
        """Writes the fatbins of ``kernel_table`` there and tells the launcher."""
        self.set_kernels(folder, write_fatbins(folder))
        return folder

    def use_installed_kernels(self, package: Path) -> dict[str, Any]:
        """Those of an installed flash_attn; gives their manifest."""
        folder = package / "kernels"
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.set_kernels(folder, {fatbin["name"]: fatbin["sha256"] for fatbin in manifest["fatbins"]})
        return manifest

    def set_smem_limit(self, size: int) -> None:
        self.call("flash_attn_set_smem_limit", size)

    def device_count(self) -> int:
        count = ctypes.c_int32(-1)
        self.call("flash_attn_device_count", ctypes.byref(count))
        return count.value

    def device_info(self, device: int) -> Any:
        info = new("flash_attn_device_info")
        self.call("flash_attn_get_device_info", device, ctypes.byref(info))
        return info

    def run(self, args: ctypes.Structure) -> None:
        """Launches what the kind of ``args`` says."""
        self.call(type(args).__name__.removesuffix("_args"), ctypes.byref(args))

    def plan(self, args: ctypes.Structure) -> Any:
        plan = new("flash_attn_plan")
        self.call(type(args).__name__.removesuffix("_args") + "_plan", ctypes.byref(args), ctypes.byref(plan))
        return plan

    def run_with_scratch(self, args: Any) -> Any:
        """As the Python package does: asks for the plan, allocates, launches."""
        plan = self.plan(args)
        args.scratch, args.scratch_bytes = (SCRATCH, plan.scratch_bytes) if plan.scratch_bytes else (0, 0)
        self.run(args)
        return plan


def new(name: str) -> Any:
    """A zeroed struct that knows its size."""
    result = structs()[name]()
    result.struct_size = ctypes.sizeof(result)
    return result


def change(args: Any, **changes: Any) -> Any:
    """Sets fields by name, those of the problem in it too."""
    for name, value in changes.items():
        owner = args.problem if hasattr(args, "problem") and hasattr(args.problem, name) else args
        if not hasattr(owner, name):
            raise AttributeError(f"{type(args).__name__} has no field {name}")
        setattr(owner, name, value)
    return args


def _contiguous(args: Any, rows: int, heads: int, head_dim: int, *names: str) -> None:
    for name in names:
        strides = getattr(args, f"{name}_strides")
        strides.batch, strides.row, strides.head = rows * heads * head_dim, heads * head_dim, head_dim


def _problem(
    args: Any, batch: int, seqlen_q: int, seqlen_k: int, nheads: int, nheads_k: int, head_dim: int
) -> None:
    change(
        args,
        device=0,
        stream=STREAM,
        batch=batch,
        nheads=nheads,
        nheads_k=nheads_k,
        head_dim=head_dim,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        dtype=BF16,
        window_left=-1,
        window_right=-1,
        softmax_scale=head_dim**-0.5,
    )


def fwd_args(
    batch: int = 2,
    seqlen_q: int = 300,
    seqlen_k: int = 500,
    nheads: int = 4,
    nheads_k: int = 2,
    head_dim: int = 64,
    **changes: Any,
) -> Any:
    """``flash_attn_fwd_args`` for contiguous bf16 tensors on device 0, keys not split."""
    args = new("flash_attn_fwd_args")
    _problem(args, batch, seqlen_q, seqlen_k, nheads, nheads_k, head_dim)
    _contiguous(args, seqlen_q, nheads, head_dim, "q", "out")
    _contiguous(args, seqlen_k, nheads_k, head_dim, "k", "v")
    change(args, q=Q, k=K, v=V, out=OUT, softmax_lse=LSE, num_splits=1)
    return change(args, **changes)


def bwd_args(
    batch: int = 2,
    seqlen_q: int = 300,
    seqlen_k: int = 500,
    nheads: int = 4,
    nheads_k: int = 2,
    head_dim: int = 64,
    **changes: Any,
) -> Any:
    """``flash_attn_bwd_args`` for contiguous bf16 tensors on device 0, without scratch."""
    args = new("flash_attn_bwd_args")
    _problem(args, batch, seqlen_q, seqlen_k, nheads, nheads_k, head_dim)
    _contiguous(args, seqlen_q, nheads, head_dim, "q", "out", "dout", "dq")
    _contiguous(args, seqlen_k, nheads_k, head_dim, "k", "v", "dk", "dv")
    change(args, dout=DOUT, q=Q, k=K, v=V, out=OUT, softmax_lse=LSE, dq=DQ, dk=DK, dv=DV, softmax_d=SOFTMAX_D)
    return change(args, **changes)


def append_args(
    batch: int = 2,
    seqlen_q: int = 3,
    seqlen_new: int = 3,
    seqlen_cache: int = 500,
    nheads: int = 4,
    nheads_k: int = 2,
    head_dim: int = 64,
    **changes: Any,
) -> Any:
    """``flash_attn_append_args`` that rotate q and append rotated keys to a cache of 100 keys."""
    args = new("flash_attn_append_args")
    _contiguous(args, seqlen_q, nheads, head_dim, "q")
    _contiguous(args, seqlen_new, nheads_k, head_dim, "k_new", "v_new")
    _contiguous(args, seqlen_cache, nheads_k, head_dim, "k_cache", "v_cache")
    change(
        args,
        device=0,
        stream=STREAM,
        q=Q,
        q_rotated=Q_ROTATED,
        k_new=K_NEW,
        v_new=V_NEW,
        k_cache=K,
        v_cache=V,
        rotary_cos=COS,
        rotary_sin=SIN,
        batch=batch,
        nheads=nheads,
        nheads_k=nheads_k,
        head_dim=head_dim,
        dtype=BF16,
        seqlen_q=seqlen_q,
        seqlen_new=seqlen_new,
        seqlen_cache=seqlen_cache,
        seqlen_rotary=1024,
        rotary_dim=32,
        interleaved=1,
        q_advances=1,
        cache_seqlen=100,
    )
    return change(args, **changes)


def packed(args: Any, total_q: int, total_k: int) -> Any:
    """The same call for packed sequences: seqlen_q and seqlen_k are those of the longest."""
    return change(
        args, cu_seqlens_q=CU_SEQLENS_Q, cu_seqlens_k=CU_SEQLENS_K, total_q=total_q, total_k=total_k
    )
