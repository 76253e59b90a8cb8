"""``python -m tools matrix``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tools.ending import refusal


class Format(str, Enum):
    """How a plan is printed."""

    table = "table"
    github = "github"
    json = "json"


_Event = Annotated[str, typer.Option(help="pull_request, nightly or release.", show_default=False)]
_Format = Annotated[
    Format, typer.Option("--format", help="github: one key=json line a kind of job, for $GITHUB_OUTPUT.")
]
_File = Annotated[Path | None, typer.Option(help="Another matrix than ci/matrix.toml.", show_default=False)]


def command(event: _Event, form: _Format = Format.table, file: _File = None) -> None:
    """Expand and check the matrix for an event: kernel shards, wheels, test cells, and what they cost."""
    from tools.matrix.definition import MATRIX, MatrixError, read_definition
    from tools.matrix.plan import expand
    from tools.matrix.report import as_github, as_json, show
    from tools.tables import table_console

    try:
        plan = expand(read_definition(file or MATRIX), event)
    except MatrixError as error:
        raise refusal(error) from None
    if form is Format.table:
        show(plan, table_console())
    else:
        typer.echo(as_github(plan) if form is Format.github else as_json(plan))
