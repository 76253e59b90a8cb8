"""Calls written to a file for ``replay.c``, and the launches that it prints for them.

The same calls made through launchers of two platforms must print the same lines::

    calls = replay.write_calls(folder / "calls", digests, replay.sample_calls())
    lines = replay.run(["qemu-aarch64-static", ...], binary, launcher, mock, kernels, calls)
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mock_driver import launcher as at
from mock_driver.launcher import append_args, bwd_args, fwd_args, packed

_KINDS = {"flash_attn_fwd_args": 0, "flash_attn_append_args": 1, "flash_attn_bwd_args": 2}
_NAME_BYTES, _DIGEST_BYTES = 64, 65


def sample_calls() -> list[ctypes.Structure]:
    """Each variant, head dimension and dtype; packed, paged, split; and some calls that are refused."""
    calls: list[ctypes.Structure] = []
    for head_dim in range(8, 257, 8):
        for dtype in (at.FP16, at.BF16):
            common = {"head_dim": head_dim, "dtype": dtype}
            calls += [
                fwd_args(**common),
                fwd_args(**common, causal=1, alibi_slopes=at.ALIBI, window_left=77),
                fwd_args(**common, softcap=30.0, softmax_scale=0.123),
                fwd_args(**common, dropout_p=0.17, rng_state=at.RNG, s_dmask=at.S_DMASK),
                fwd_args(**common, seqlen_q=1, seqlen_k=20000, num_splits=0),
                fwd_args(**common, seqlen_q=20, seqlen_k=5000, num_splits=0, softcap=5.0),
                packed(fwd_args(**common, batch=7), 1000, 1500),
                packed(bwd_args(**common, batch=7, deterministic=1), 1000, 1500),
                bwd_args(**common),
                bwd_args(**common, dropout_p=0.17, rng_state=at.RNG),
                append_args(**{**common, "rotary_dim": 16}) if head_dim >= 16 else append_args(),
            ]
    pages = {"block_table": at.BLOCK_TABLE, "block_table_stride": 9, "page_size": 256, "num_pages": 40}
    calls += [
        fwd_args(seqlen_q=3, seqlen_k=9 * 256, num_splits=0, **pages),
        append_args(seqlen_cache=2304, **pages),
    ]
    calls += [
        fwd_args(batch=-1),
        bwd_args(softcap=-1.0),
        append_args(cache_seqlen=1 << 20),
        fwd_args(device=9),
    ]
    return calls


def write_calls(path: Path, digests: Mapping[str, str], calls: Iterable[ctypes.Structure]) -> Path:
    """``digests``: SHA-256 of the fatbins by name."""
    parts = [len(digests).to_bytes(4, "little")]
    for name, digest in digests.items():
        parts.append(name.encode().ljust(_NAME_BYTES, b"\0") + digest.encode().ljust(_DIGEST_BYTES, b"\0"))
    for args in calls:
        content = bytes(args)
        parts.append(
            _KINDS[type(args).__name__].to_bytes(4, "little") + len(content).to_bytes(4, "little") + content
        )
    path.write_bytes(b"".join(parts))
    return path


def run(
    runner: Sequence[str], binary: Path, launcher: Path, mock: Path, kernels: Path, calls: Path
) -> list[str]:
    """The lines that the replay prints; ``runner`` is what the binary needs in front, such as an emulator."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOCK_CUDA_")}
    command = [*runner, *map(str, (binary, launcher, mock, kernels, calls))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    return result.stdout.splitlines()
