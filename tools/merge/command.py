"""``python -m tools merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.architectures import parse_architectures
from tools.ending import refusal

_Shards = Annotated[
    list[Path],
    typer.Argument(metavar="SHARD...", help="Folders that nox -s kernels made.", show_default=False),
]
_Output = Annotated[Path, typer.Option(help="Folder for the fatbins and their manifest.", show_default=False)]
_Archs = Annotated[
    str | None,
    typer.Option(
        help='Architectures that must be there, such as "80;90". Left out: those of ci/matrix.toml.',
        show_default=False,
    ),
]


def command(shards: _Shards, output: _Output, archs: _Archs = None) -> None:
    """Join shards of one architecture each to the folder that FLASH_ATTN_KERNELS_DIR takes.

    They must come from this commit's kernels, one toolkit and one set of flags; none missing, none twice.
    """
    from tools.matrix.definition import MatrixError, definition
    from tools.merge.merge import merge
    from tools.merge.shard import MergeError
    from tools.output import OutputError

    try:
        wanted = definition().architectures if archs is None else parse_architectures(archs)
        manifest = merge(shards, wanted, output)
    except (MergeError, MatrixError, OutputError) as error:
        raise refusal(error) from None
    except OSError as error:
        raise refusal(f"{error.filename} can't be written ({error.strerror}); name another output.") from None
    kernels = sum(len(fatbin["kernels"]) for fatbin in manifest["fatbins"])
    size = sum(fatbin["size"] for fatbin in manifest["fatbins"])
    typer.echo(
        f"{output}: {kernels} kernels in {len(manifest['fatbins'])} fatbins, {size / 1e6:.1f} MB, SASS "
        f"{', '.join(manifest['architectures']['sass'])}, PTX {', '.join(manifest['architectures']['ptx'])}, "
        f"CUDA {manifest['toolkit']}"
    )
