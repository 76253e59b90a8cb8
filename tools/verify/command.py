"""``python -m tools verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.architectures import parse_architectures
from tools.ending import refusal

_Wheels = Annotated[
    list[Path], typer.Argument(metavar="WHEEL...", help="Wheels to open.", show_default=False)
]
_Json = Annotated[
    bool, typer.Option("--json", help="Print everything as one JSON document instead of tables.")
]
_Archs = Annotated[
    str | None,
    typer.Option(help='Architectures that must be there, such as "80;90". Left out: those of the manifest.'),
]
_Kernels = Annotated[
    Path | None,
    typer.Option(
        help="The list of kernels to check against. Left out: this checkout's kernels.json.",
        show_default=False,
    ),
]
_Provenance = Annotated[
    bool,
    typer.Option(
        "--provenance", help="Check what attest wrote beside the wheels instead; needs no CUDA, no network."
    ),
]
_Commit = Annotated[
    str | None,
    typer.Option(help="With --provenance: the commit that must be attested.", show_default=False),
]

_Summary = Annotated[
    Path | None,
    typer.Option(help="Add a Markdown table to this file, such as $GITHUB_STEP_SUMMARY.", show_default=False),
]


def command(
    wheels: _Wheels,
    as_json: _Json = False,
    archs: _Archs = None,
    kernels: _Kernels = None,
    provenance: _Provenance = False,
    commit: _Commit = None,
    summary: _Summary = None,
) -> None:
    """Open wheels and check everything that is inside them.

    Exits 1 with one line for each thing that is wrong. Several wheels must also carry the same fatbins,
    byte for byte.
    """
    if provenance:
        from tools.trust import TrustError, check_commit
        from tools.trust.report import judge as judge_provenance

        if archs is not None or kernels is not None or summary is not None:
            raise typer.BadParameter(
                "--archs, --kernels and --summary have no meaning with --provenance; leave them out."
            )
        try:
            if commit is not None:
                check_commit(commit)
        except TrustError as error:
            raise refusal(error) from None
        raise typer.Exit(judge_provenance(wheels, commit, as_json))
    if commit is not None:
        raise typer.BadParameter("--commit has a meaning with --provenance alone; add it or leave both out.")

    from tools.matrix.definition import MatrixError, definition
    from tools.verify.cuobjdump import find_cuobjdump
    from tools.verify.expected import KERNEL_LIST, read_kernel_list
    from tools.verify.inspector import Inspector
    from tools.verify.problems import ToolMissingError, UnreadableError
    from tools.verify.report import judge

    wanted = [] if archs is None else parse_architectures(archs)
    try:
        definition()  # which platforms there are
        path = kernels or (KERNEL_LIST if KERNEL_LIST.is_file() else None)
        inspector = Inspector(find_cuobjdump(), read_kernel_list(path) if path else None, wanted)
    except (MatrixError, ToolMissingError, UnreadableError) as error:
        raise refusal(error) from None
    try:
        raise typer.Exit(judge(inspector, wheels, as_json, summary))
    except OSError as error:
        raise refusal(f"{error.filename} can't be written ({error.strerror}); name another.") from None
