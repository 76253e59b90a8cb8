"""``python -m tools release``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.ending import refusal

_Distributions = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[DIST...]", help="What is to be published, or folders of it.", show_default=False
    ),
]
_Tag = Annotated[str, typer.Option(help="The tag that was pushed, such as v2.9.0.", show_default=False)]
_Notes = Annotated[
    Path | None, typer.Option(help="Write the notes into this file (Markdown).", show_default=False)
]


def command(tag: _Tag, distributions: _Distributions = None, notes: _Notes = None) -> None:
    """Check that this tree may be released under a tag, with DIST that all files are there; write the notes.

    The tag must be v and the version, CHANGELOG.md must have a dated section for it, and there must be
    one wheel for each platform and one source distribution. Exits 1 with one sentence
    otherwise, and writes nothing.
    """
    from tools.index import RefusedError
    from tools.index.distribution import find, read
    from tools.matrix.definition import MatrixError, definition
    from tools.output import OutputError, write_file
    from tools.release.notes import ReleaseError, check_complete, check_tag, section, table
    from tools.release.project_version import ROOT, VersionError

    try:
        version = check_tag(ROOT, tag)
        text = section(ROOT, version)
        if distributions:
            files = [read(path) for path in find(distributions)]
            check_complete(files, version, definition().platforms)
            text += "\n\n" + table(files)
        if notes is not None:
            write_file(notes, f"{text}\n".encode())
    except (MatrixError, OutputError, RefusedError, ReleaseError, VersionError) as error:
        raise refusal(error) from None
    typer.echo(f"{tag} may be released: the version is {version}, and CHANGELOG.md has it.")
