"""GPU architectures as a person writes them: "80;90", or apart by commas or blanks."""

from __future__ import annotations

import re

import typer


def parse_architectures(text: str) -> list[str]:
    """At least one. Raises typer.BadParameter for anything else."""
    found = [arch.removesuffix("-real") for arch in re.split(r"[;,\s]+", text) if arch]
    for arch in found:
        if not re.fullmatch(r"\d{2,3}[af]?", arch):
            raise typer.BadParameter(f'"{arch}" is no architecture; expected numbers such as "80;90;100"')
    if not found:
        raise typer.BadParameter(f'"{text}" names no architecture; expected numbers such as "80;90;100"')
    return found
