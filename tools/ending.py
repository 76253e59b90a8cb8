"""How a command ends that refuses: one line on standard error, whatever names it holds, and status 1."""

from __future__ import annotations

import typer


def printable(text: str) -> str:
    """Control characters and bytes that are no text, as a hostile file name may hold them, spelled out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def refusal(error: object) -> typer.Exit:
    """Says it, and gives what is to be raised."""
    typer.echo(f"error: {printable(str(error))}", err=True)
    return typer.Exit(1)
