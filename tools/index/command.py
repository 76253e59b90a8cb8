"""``python -m tools index``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.ending import refusal

_Distributions = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIST...", help="Wheels, source distributions, or folders of them.", show_default=False
    ),
]
_Output = Annotated[
    Path,
    typer.Option(help="Folder of the index. What an index there offers already stays.", show_default=False),
]
_Keep = Annotated[
    int | None,
    typer.Option(min=1, help="Keep only so many nightlies (2.9.0.devN), the newest.", show_default=False),
]
_Yank = Annotated[
    list[str] | None,
    typer.Option(
        metavar="VERSION=REASON", help="Tell installers to pass this version by.", show_default=False
    ),
]
_Unyank = Annotated[
    list[str] | None,
    typer.Option(metavar="VERSION", help="Offer a yanked version again.", show_default=False),
]
_Attested = Annotated[
    bool, typer.Option("--attested", help="Refuse a wheel that has no provenance beside it.")
]
_Url = Annotated[
    str | None,
    typer.Option(
        help="Where simple/ will be served, for the commands that the page shows.", show_default=False
    ),
]

_FilesUrl = Annotated[
    str | None,
    typer.Option(
        help="Where the content of files/ will be served, when not beside simple/.", show_default=False
    ),
]


def command(
    distributions: _Distributions,
    output: _Output,
    keep: _Keep = None,
    yank: _Yank = None,
    unyank: _Unyank = None,
    url: _Url = None,
    files_url: _FilesUrl = None,
    attested: _Attested = False,
) -> None:
    """Make a static package index (PEP 503, 691) and a page that says which wheel to take.

    Files that the index in the output folder offers already stay, with the time since when they do. Exits 1
    with one sentence, and leaves the folder as it was, when a file is damaged, is there twice, would replace
    a published one, or is not what the provenance beside it attests.
    """
    from datetime import datetime, timezone

    from tools.epoch import EpochError, epoch
    from tools.index import RefusedError
    from tools.index.attested import check_attested
    from tools.index.distribution import find, read
    from tools.index.publish import publish
    from tools.index.published import read_index
    from tools.index.selection import keep_newest, merge, unique
    from tools.index.selection import yank as with_yanks
    from tools.matrix.definition import MatrixError
    from tools.output import OutputError

    try:
        reasons = _reasons(yank or [], unyank or [])
        for option, address in (("--url", url), ("--files-url", files_url)):
            if address is not None and not address.startswith(("https://", "http://")):
                raise RefusedError(
                    f"{option} is {address!r}; expected an address that starts with https:// or http://."
                )
        now = epoch() or datetime.now(timezone.utc).replace(microsecond=0)
        new = unique(read(path) for path in find(distributions))
        check_attested(new, attested)
        entries = merge(read_index(output), new, now)
        entries = with_yanks(entries, reasons)
        if keep is not None:
            entries = keep_newest(entries, keep)
        publish(entries, output, url and f"{url.rstrip('/')}/", files_url and files_url.rstrip("/"))
    except (EpochError, MatrixError, OutputError, RefusedError) as error:
        raise refusal(error) from None
    versions = len({entry.distribution.version for entry in entries})
    typer.echo(f"{output}: {len(entries)} files of {versions} {'versions' if versions > 1 else 'version'}.")


def _reasons(yank: list[str], unyank: list[str]) -> dict[str, str | None]:
    from tools.index import RefusedError

    reasons: dict[str, str | None] = {}
    for text in yank:
        version, _, reason = text.partition("=")
        if not reason.strip():
            raise RefusedError(f"--yank {text!r} gives no reason; write VERSION=REASON.")
        reasons[version.strip()] = " ".join(reason.split())
    named = [*(text.partition("=")[0].strip() for text in yank), *(text.strip() for text in unyank)]
    if twice := next((version for version in named if named.count(version) > 1), None):
        raise RefusedError(f"--yank and --unyank name {twice} more than once; say one thing of it.")
    return reasons | dict.fromkeys(text.strip() for text in unyank)
