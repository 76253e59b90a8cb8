"""``python -m tools bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.ending import refusal
from tools.output import OutputError

from .run import SECTION_NAMES, bench


def command(
    section: Annotated[
        list[str] | None,
        typer.Option(help=f"Measure this only; repeat it for more: {', '.join(SECTION_NAMES)}."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="bf16 or fp16.")] = "bf16",
    json: Annotated[Path | None, typer.Option(help="Write the figures there.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the chart there (needs matplotlib).")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Show a finished run instead of measuring.")
    ] = None,
) -> None:
    """Measure speed on a GPU against PyTorch's flash backend."""
    try:
        bench(section or [], dtype, json, png, source)
    except (OutputError, RuntimeError, ValueError) as error:
        raise refusal(error) from None
