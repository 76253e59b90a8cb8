"""``python -m tools version``."""

from __future__ import annotations

from typing import Annotated

import typer

from tools.ending import refusal

_Dev = Annotated[
    str | None,
    typer.Option(metavar="YYYYMMDD", help="Make it the nightly of this day.", show_default=False),
]


def command(dev: _Dev = None) -> None:
    """Print the version; with --dev, first make it that of the nightly, such as 2.9.0.dev20261202."""
    from tools.output import OutputError
    from tools.release.project_version import ROOT, VersionError, dev_version, read_version, write_version

    try:
        version = read_version(ROOT)
        if dev is not None:
            version = dev_version(version, dev)
            write_version(ROOT, version)
    except (OutputError, VersionError) as error:
        raise refusal(error) from None
    typer.echo(version)
