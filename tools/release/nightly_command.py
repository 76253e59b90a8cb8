"""``python -m tools nightly``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.ending import refusal

_Folder = Annotated[
    Path,
    typer.Argument(help="Folder with the .provenance.json files of published nightlies.", show_default=False),
]
_Commit = Annotated[str, typer.Option(help="The commit that would be built.", show_default=False)]
_Today = Annotated[
    str | None, typer.Option(metavar="YYYYMMDD", help="Another day than today (UTC).", show_default=False)
]


def command(folder: _Folder, commit: _Commit, today: _Today = None) -> None:
    """Say whether a nightly is due, as due= and dev= lines for $GITHUB_OUTPUT; why goes to standard error."""
    from datetime import datetime, timezone

    from tools.release.due import DueError, is_due, read_last
    from tools.release.project_version import ROOT, VersionError, dev_version, read_version
    from tools.trust import TrustError, check_commit

    day = datetime.now(timezone.utc).strftime("%Y%m%d") if today is None else today
    try:
        dev_version(read_version(ROOT), day)
        check_commit(commit)
        due, why = is_due(read_last(folder), commit, datetime.strptime(day, "%Y%m%d").date())
    except (DueError, TrustError, VersionError) as error:
        raise refusal(error) from None
    typer.echo(why, err=True)
    typer.echo(f"due={'true' if due else 'false'}\ndev={day}")
