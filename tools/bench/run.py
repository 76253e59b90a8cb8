"""One run of the benchmark, from choosing sections to files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from tools.output import check_file, write_file
from tools.reading import read_json

SCHEMA = 1
SECTION_NAMES = ("host", "forward", "backward", "features", "decode", "varlen")


def prefer_installed() -> None:
    """Takes this checkout off the path when the built package is elsewhere: it has no kernels itself."""
    root = Path(__file__).resolve().parents[2]
    elsewhere = [place for place in sys.path if Path(place).resolve() != root]
    if not (root / "flash_attn" / "kernels").is_dir() and PathFinder.find_spec("flash_attn", elsewhere):
        sys.path[:] = elsewhere


def measure(chosen: Sequence[str], dtype_name: str) -> dict[str, Any]:
    """Raises RuntimeError without a GPU, ValueError for an unknown section or dtype."""
    unknown = [name for name in chosen if name not in SECTION_NAMES]
    if unknown:
        raise ValueError(f"There is no section {unknown[0]}: choose from {', '.join(SECTION_NAMES)}.")
    if dtype_name not in ("bf16", "fp16"):
        raise ValueError(f"dtype is {dtype_name}, but it must be bf16 or fp16.")
    try:
        import torch
    except ImportError as error:
        raise RuntimeError(
            f"PyTorch can't be imported here ({error}): install one that was built for CUDA, or show a "
            "finished run with --from."
        ) from None
    if not torch.cuda.is_available():
        raise RuntimeError(
            "There is no CUDA device here: run the bench on a GPU, or show a finished one with --from."
        )
    prefer_installed()
    import flash_attn
    from flash_attn import _launcher

    from .sections import NEEDS, SECTIONS

    torch.manual_seed(0)
    run: dict[str, Any] = {
        "schema": SCHEMA,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "flash_attn": flash_attn.__version__,
        "dtype": dtype_name,
        "sections": {},
        "skipped": {},
    }
    for name in chosen:
        family = NEEDS.get(name)
        if family and not _launcher.has_family(family):
            run["skipped"][name] = f"since this build holds no {family} kernels"
            continue
        run["sections"][name] = SECTIONS[name](torch.bfloat16 if dtype_name == "bf16" else torch.float16)
        torch.cuda.empty_cache()
    return run


def load(path: Path) -> dict[str, Any]:
    """Raises ValueError unless the file is a run that `measure` gave."""
    try:
        run = read_json(path)
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}): make a run with --json.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): make a run with --json.") from None
    if not isinstance(run, dict) or run.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no run of this benchmark: make one with --json.")
    return run


def save(run: dict[str, Any], path: Path) -> None:
    write_file(path, (json.dumps(run, indent=2) + "\n").encode())


def bench(
    sections: Sequence[str], dtype: str, json_path: Path | None, png: Path | None, source: Path | None
) -> None:
    """Measures, or loads with source, then prints tables and writes what is asked for."""
    from . import chart, report

    for path in (json_path, png):
        if path is not None:
            check_file(path)  # not after minutes of measuring
    run = measure(sections or SECTION_NAMES, dtype) if source is None else load(source)
    if json_path is not None:
        save(run, json_path)
    try:
        report.show(run)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{source or 'This run'} is no run of this benchmark ({type(error).__name__}: {error}): "
            "make one with --json."
        ) from None
    if png is not None:
        chart.draw(run, png)
