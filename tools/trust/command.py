"""``python -m tools attest``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tools.ending import refusal

_Wheels = Annotated[
    list[Path], typer.Argument(metavar="WHEEL...", help="Wheels of this commit.", show_default=False)
]
_Source = Annotated[
    Path | None,
    typer.Option(help="The checkout that built them. Left out: this one.", show_default=False),
]


def command(wheels: _Wheels, source: _Source = None) -> None:
    """Write WHEEL.cdx.json (CycloneDX) and WHEEL.provenance.json (in-toto, SLSA) beside each wheel.

    Exits 1 with one sentence, and writes nothing, when a wheel does not hold what this checkout's commit has.
    """
    from tools.trust import TrustError
    from tools.trust.attest import attest
    from tools.trust.source import read_source
    from tools.verify.expected import CHECKOUT

    try:
        checkout = read_source(source or CHECKOUT)
        for documents in attest(wheels, checkout, os.environ):
            facts = documents.facts
            typer.echo(f"{facts.name}: SHA-256 {facts.sha256}, commit {checkout.commit}")
    except TrustError as error:
        raise refusal(error) from None
