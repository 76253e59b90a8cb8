"""``python -m tools.bench``: the same for a machine that has torch and nothing else."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.output import OutputError

from .run import SECTION_NAMES, bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument(
        "--section", action="append", default=[], choices=SECTION_NAMES, help="measure this only"
    )
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16"))
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--png", type=Path, help="draw the chart there (needs matplotlib)")
    parser.add_argument("--from", dest="source", type=Path, help="show a finished run instead of measuring")
    options = parser.parse_args()
    try:
        bench(options.section, options.dtype, options.json, options.png, options.source)
    except (OutputError, RuntimeError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
