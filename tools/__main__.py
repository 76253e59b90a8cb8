"""``python -m tools COMMAND``: each command is one module, imported only when it is the one asked for.

A command module defines ``command``, a function whose signature typer reads. What is slow to import (pefile,
torch, matplotlib) belongs inside that function, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

COMMANDS: dict[str, tuple[str, str]] = {
    "merge": ("tools.merge.command", "Join kernel shards to the folder that FLASH_ATTN_KERNELS_DIR takes."),
    "matrix": ("tools.matrix.command", "What an event builds and tests, expanded from ci/matrix.toml."),
    "verify": ("tools.verify.command", "Open wheels and check everything that is inside them."),
    "index": ("tools.index.command", "Make a package index that pip and uv install from."),
    "repair": (
        "tools.repair",
        "Give a built wheel its platform tag; refuse one that needs foreign libraries.",
    ),
    "attest": ("tools.trust.command", "Write a bill of materials and provenance beside wheels."),
    "version": ("tools.release.version_command", "Print the version, or make it that of a nightly."),
    "release": ("tools.release.release_command", "Check that a tag may be released, and write its notes."),
    "nightly": ("tools.release.nightly_command", "Say whether a nightly is due."),
    "same": ("tools.same", "Compare wheels that several builds made; they must be the same bytes."),
    "bench": ("tools.bench.command", "Measure speed on a GPU against PyTorch's flash backend."),
}


def _placeholder() -> None:
    """Stands for a command that is listed but not asked for."""


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The application for these arguments, with the module of the named command, and no other, imported."""
    import typer

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

    @app.callback()
    def tools() -> None:
        """Maintainer's tools of flash-attn."""

    for name, (module, summary) in COMMANDS.items():
        command: Callable[..., Any] = import_module(module).command if name in arguments[:1] else _placeholder
        app.command(name, help=summary if command is _placeholder else None)(command)
    return app


def main() -> None:
    """Runs the command; one sentence when a package that it needs is not there."""
    try:
        build_app(sys.argv[1:])(prog_name="python -m tools")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "tools"):
            raise
        sys.exit(
            f"error: The Python package of {missing} is not installed here ({sys.executable}); "
            "run pip install -r ci/tools.txt in the checkout."
        )


if __name__ == "__main__":
    main()
