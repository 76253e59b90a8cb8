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
_Source = Annotated[Path | None, typer.Option(help="Another checkout than this one.", show_default=False)]


def command(
    tag: _Tag, distributions: _Distributions = None, notes: _Notes = None, source: _Source = None
) -> None:
    """Check that this tree may be released under a tag, with DIST that all files are there; write the notes.

    The tag must be v and the version, CHANGELOG.md must have a dated section for it, and there must be
    one wheel for each platform and one source distribution. Exits 1 with one sentence
    otherwise, and writes nothing.
    """
    from tools.index import RefusedError
    from tools.index.distribution import find, read
    from tools.matrix.definition import MatrixError, read_definition
    from tools.release.notes import ReleaseError, check_complete, check_tag, section, table
    from tools.release.project_version import ROOT, VersionError

    root = source or ROOT
    try:
        version = check_tag(root, tag)
        text = section(root, version)
        if distributions:
            files = [read(path) for path in find(distributions)]
            check_complete(files, version, read_definition(ROOT / "ci" / "matrix.toml").platforms)
            text += "\n\n" + table(files)
        if notes is not None:
            notes.write_text(text + "\n", encoding="utf-8")
    except (MatrixError, OSError, RefusedError, ReleaseError, VersionError) as error:
        raise refusal(error) from None
    typer.echo(f"{tag} may be released: the version is {version}, and CHANGELOG.md has it.")
