"""Kernels made up for tests: every family, with tiles that differ, whatever kernels.json says today."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
DTYPES = ("fp16", "bf16")
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # variants, stages
    "flash_fwd": (("plain", "softcap", "dropout"), ()),
    "flash_fwd_splitkv": (("plain", "softcap"), ("combine", "append")),
    "flash_bwd": (("plain", "modified"), ("dot_do_o", "convert_dq")),
}
FATBIN_MAGIC = 0xBA55ED50
COMMON_STAGES = ("combine", "append")  # of every tile of a head dimension alike
STATIC_SMEM = 1024  # bytes that the launcher keeps for what kernels declare statically


@dataclass(frozen=True)
class Tile:
    head_dim: int
    block_m: int
    block_n: int
    warps: int
    smem_bytes: int
    suffix: str = ""


@dataclass(frozen=True)
class Kernel:
    name: str
    family: str
    dtype: str
    variant: str
    tile: Tile

    @property
    def fatbin(self) -> str:
        return f"{self.family}_hdim{self.tile.head_dim}_{self.dtype}.fatbin"

    @property
    def line(self) -> str:
        tile = self.tile
        texts = (self.name, self.family, self.dtype, self.variant)
        name, family, dtype, variant = (f'"{text}"' for text in texts)
        shape = f"{tile.block_m}, {tile.block_n}, {tile.warps}, {tile.smem_bytes}"
        return f"FLASH_ATTN_KERNEL({name}, {family}, {tile.head_dim}, {dtype}, {variant}, {shape})"


def tiles(family: str, head_dim: int) -> list[Tile]:
    """In the order in which the launcher tries them."""
    if family == "flash_fwd":
        if head_dim == 256:  # the first for 163 KB and more, the second for 99 KB
            return [Tile(256, 128, 64, 8, 131072), Tile(256, 64, 64, 4, 98304, "_small")]
        return [Tile(head_dim, 128, 64, 4, 384 * head_dim)]
    if family == "flash_fwd_splitkv":
        return [
            Tile(head_dim, 64, 64, 4, 384 * head_dim),
            Tile(head_dim, 16, 128, 4, 256 * head_dim, "_decode"),
        ]
    if head_dim >= 192:
        return [
            Tile(head_dim, 64, 64, 8, 640 * head_dim),
            Tile(head_dim, 32, 64, 8, 384 * head_dim, "_small"),
        ]
    return [Tile(head_dim, 64, 128, 8, 512 * head_dim)]


def kernels() -> list[Kernel]:
    return [
        Kernel(
            f"{family}_hdim{head_dim}_{dtype}{'' if variant == 'plain' else '_' + variant}{tile.suffix}",
            family,
            dtype,
            variant,
            tile,
        )
        for family, (variants, stages) in FAMILIES.items()
        for head_dim in HEAD_DIMS
        for tile in tiles(family, head_dim)
        for dtype in DTYPES
        for variant in (*variants, *stages)
        if not (tile.suffix and variant in COMMON_STAGES)
    ]


def write_table(path: Path) -> None:
    path.write_text("\n".join(kernel.line for kernel in kernels()) + "\n", encoding="utf-8")


def fatbin_bytes(name: str) -> bytes:
    """A fatbin's header, and its own name where the code would be."""
    body = name.encode() * 50
    return struct.pack("<IHHQ", FATBIN_MAGIC, 1, 16, len(body)) + body


def write_fatbins(folder: Path) -> dict[str, str]:
    """Writes every fatbin of the table; gives their SHA-256 by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    digests: dict[str, str] = {}
    for name in sorted({kernel.fatbin for kernel in kernels()}):
        (folder / name).write_bytes(fatbin_bytes(name))
        digests[name] = hashlib.sha256(fatbin_bytes(name)).hexdigest()
    return digests
