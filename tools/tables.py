"""The console that tables are printed on: as wide as its terminal, and wide enough where there is none."""

from __future__ import annotations

from rich.console import Console

LOG_WIDTH = 140  # a log has no terminal to fit


def table_console() -> Console:
    """Takes names as they are: no markup, no colours of its own."""
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=LOG_WIDTH)
