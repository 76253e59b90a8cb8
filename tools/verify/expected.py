"""What a wheel should hold: by the one list of kernels, and by the manifest that the build wrote from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.reading import parse_json, read_json
from tools.verify.problems import UnreadableError

CHECKOUT = Path(__file__).resolve().parents[2]
KERNEL_LIST = CHECKOUT / "csrc/flash_attn/kernels.json"
HEADER = CHECKOUT / "csrc/flash_attn/launch/flash_attn.h"


@dataclass(frozen=True)
class Kernel:
    """One kernel of the list. ``spill_bytes`` of local memory a thread were measured and accepted."""

    name: str
    fatbin: str
    family: str
    head_dim: int
    dtype: str
    variant: str
    stage: bool  # a helper of the family, which its SASS gates leave out
    block_m: int
    block_n: int
    warps: int
    smem_bytes: int
    spill_bytes: int


Gates = Mapping[str, Mapping[str, tuple[str, ...]]]  # family -> architecture or "*" -> instructions


@dataclass(frozen=True)
class KernelList:
    kernels: Mapping[str, Kernel]
    gates: Gates


@dataclass(frozen=True)
class Manifest:
    version: str
    toolkit: str
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    digests: Mapping[str, tuple[str, int]]  # fatbin -> SHA-256 and size in bytes
    kernels: Mapping[str, Kernel]
    gates: Gates


def gates_for(gates: Gates, kernel: Kernel, arch: str) -> tuple[str, ...]:
    """Instructions that this kernel's SASS for ``arch`` must hold."""
    family = {} if kernel.stage else gates.get(kernel.family, {})
    return tuple(dict.fromkeys((*family.get("*", ()), *family.get(arch, ()))))


def read_kernel_list(path: Path = KERNEL_LIST) -> KernelList:
    """The kernels that the source names. Raises UnreadableError for a list that can't be understood."""
    try:
        data = read_json(path)
        kernels = [
            kernel for name, family in data["families"].items() for kernel in _family(data, name, family)
        ]
        return KernelList({kernel.name: kernel for kernel in kernels}, _gates(data["families"]))
    except OSError as error:
        raise UnreadableError(f"{path} can't be read ({error.strerror}); name a list of kernels.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(
            f"{path} is no list of kernels ({type(error).__name__}: {error}); name one such as kernels.json."
        ) from None


def _family(data: dict[str, Any], family: str, entry: dict[str, Any]) -> list[Kernel]:
    first = entry["variants"][0]
    forms = [(variant, False, True) for variant in entry["variants"]]
    forms += [(stage["name"], True, stage.get("per_tile", True)) for stage in entry.get("stages", [])]
    seen: Counter[int] = Counter()
    kernels = []
    for tile in entry["tiles"]:
        head_dim = tile["head_dim"]
        small = "_small" if seen[head_dim] else ""
        seen[head_dim] += 1
        for dtype in data["dtypes"]:
            base = f"{family}_hdim{head_dim}_{dtype}"
            for form, stage, per_tile in forms:
                if small and not per_tile:
                    continue
                kernels.append(
                    Kernel(
                        name=base + ("" if form == first else f"_{form}") + small,
                        fatbin=f"{base}.fatbin",
                        family=family,
                        head_dim=head_dim,
                        dtype=dtype,
                        variant=form,
                        stage=stage,
                        block_m=tile["block_m"],
                        block_n=tile["block_n"],
                        warps=tile["warps"],
                        smem_bytes=tile["smem_bytes"],
                        spill_bytes=tile.get("spill_bytes", 0),
                    )
                )
    return kernels


def parse_manifest(data: bytes) -> Manifest:
    """Raises UnreadableError, with what is missing, when this is no manifest of schema 1."""
    try:
        raw = parse_json(data)
        if raw["schema"] != 1:
            raise UnreadableError(f"its schema is {raw['schema']}, and this verifier knows 1")
        kernels = [
            _kernel(str(fatbin["name"]), entry) for fatbin in raw["fatbins"] for entry in fatbin["kernels"]
        ]
        return Manifest(
            version=str(raw["version"]),
            toolkit=str(raw["toolkit"]),
            sass=tuple(map(str, raw["architectures"]["sass"])),
            ptx=tuple(map(str, raw["architectures"]["ptx"])),
            digests={
                str(fatbin["name"]): (str(fatbin["sha256"]), int(fatbin["size"])) for fatbin in raw["fatbins"]
            },
            kernels={kernel.name: kernel for kernel in kernels},
            gates=_gates(raw.get("families", {})),
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UnreadableError(f"it can't be understood ({type(error).__name__}: {error})") from None


def _kernel(fatbin: str, entry: dict[str, Any]) -> Kernel:
    return Kernel(
        name=str(entry["name"]),
        fatbin=fatbin,
        family=str(entry["family"]),
        head_dim=int(entry["head_dim"]),
        dtype=str(entry["dtype"]),
        variant=str(entry["variant"]),
        stage=bool(entry.get("stage", False)),
        block_m=int(entry["block_m"]),
        block_n=int(entry["block_n"]),
        warps=int(entry["warps"]),
        smem_bytes=int(entry["smem_bytes"]),
        spill_bytes=int(entry.get("spill_bytes", 0)),
    )


def _gates(families: dict[str, Any]) -> Gates:
    return {
        name: {str(arch): tuple(instructions) for arch, instructions in entry.get("sass", {}).items()}
        for name, entry in families.items()
    }
