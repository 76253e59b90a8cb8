"""``python -m tools version``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.ending import refusal

_Dev = Annotated[
    str | None,
    typer.Option(metavar="YYYYMMDD", help="Make it the nightly of this day.", show_default=False),
]
_Source = Annotated[Path | None, typer.Option(help="Another checkout than this one.", show_default=False)]


def command(dev: _Dev = None, source: _Source = None) -> None:
    """Print the version; with --dev, first make it that of the nightly, such as 2.9.0.dev20261202."""
    from tools.release.project_version import ROOT, VersionError, dev_version, read_version, write_version

    root = source or ROOT
    try:
        version = read_version(root)
        if dev is not None:
            version = dev_version(version, dev)
            write_version(root, version)
    except VersionError as error:
        raise refusal(error) from None
    typer.echo(version)
