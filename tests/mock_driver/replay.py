"""Sample calls, and a line for each launch that they lead to: the same ones from launchers of every platform.

``replay.c`` makes the calls where no Python runs::

    calls = replay.write_calls(folder / "calls", digests, replay.sample_calls())
    lines = replay.run(["qemu-aarch64-static", ...], binary, launcher, mock, kernels, calls)

and Python where it does::

    python -m mock_driver.replay LAUNCHER MOCK_DRIVER PACKAGE LINES
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mock_driver import driver
from mock_driver import launcher as at
from mock_driver.c_structs import structs
from mock_driver.launcher import append_args, bwd_args, change, fwd_args, packed


class SmemLimit(ctypes.Structure):
    """Not a call: from here on a block may use so much shared memory; 0: what the device has."""

    _fields_ = (("bytes", ctypes.c_int32),)


_KINDS = {"flash_attn_fwd_args": 0, "flash_attn_append_args": 1, "flash_attn_bwd_args": 2, "SmemLimit": 3}
_NAME_BYTES, _DIGEST_BYTES = 64, 65
_SMEM_LIMITS = range(96, 4, -4)  # KiB


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
                fwd_args(**common, seqlen_q=1, seqlen_k=20000, num_splits=0, softcap=5.0),
                fwd_args(**common, seqlen_q=20, seqlen_k=5000, num_splits=0, softcap=5.0),
                fwd_args(**common, seqlen_q=200, seqlen_k=5000, num_splits=3),
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


def every_kernel(devices: int) -> Iterator[ctypes.Structure]:
    """The sample calls on each device, then those that append, with less and less shared memory.

    No device has those take the smaller tile.
    """
    for device in range(devices):
        for args in sample_calls():
            yield change(args, device=args.device + device)
    for kib in _SMEM_LIMITS:
        yield SmemLimit(kib * driver.KIB)
        yield from filter(_appends, sample_calls())
    yield SmemLimit(0)


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
    runner: Sequence[str],
    binary: Path,
    launcher: Path,
    mock: Path,
    kernels: Path,
    calls: Path,
    **variables: str,
) -> list[str]:
    """The lines that the replay prints; ``runner`` is what the binary needs in front, such as an emulator."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOCK_CUDA_")}
    environment |= variables
    command = [*runner, *map(str, (binary, launcher, mock, kernels, calls))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    return result.stdout.splitlines()


def write_launches(path: Path, launcher: at.Launcher, mock: driver.MockDriver) -> None:
    """Lines as those of ``replay.c``, every kernel, on every device that the mock driver plays."""
    calls = every_kernel(launcher.device_count())
    lines = [line for args in calls for line in _launches(launcher, mock, args)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _appends(args: ctypes.Structure) -> bool:
    return isinstance(args, structs()["flash_attn_append_args"])


def _launches(launcher: at.Launcher, mock: driver.MockDriver, args: ctypes.Structure) -> Iterator[str]:
    if isinstance(args, SmemLimit):
        launcher.set_smem_limit(args.bytes)
        return
    before = mock.launch_count
    run = launcher.run if _appends(args) else launcher.run_with_scratch
    try:
        run(args)
    except at.LauncherError as error:
        yield f"error: {error}"
    yield from map(_line, mock.launches_from(before))


def _line(launch: driver.Launch) -> str:
    grid, block = (",".join(map(str, size)) for size in (launch.grid, launch.block))
    return (
        f"{launch.kernel} {grid} {block} {launch.smem_bytes} {launch.device} {launch.stream:x} "
        f"{launch.params.hex()}"
    )


def main(library: str, mock_library: str, package: str, output: str) -> None:
    mock = driver.MockDriver(Path(mock_library), *driver.DEVICES)
    launcher = at.Launcher(Path(library))
    launcher.use_installed_kernels(Path(package))
    write_launches(Path(output), launcher, mock)


if __name__ == "__main__":
    main(*sys.argv[1:])
