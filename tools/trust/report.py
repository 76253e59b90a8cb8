"""Shows what provenance says: a line for each wheel, or one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.ending import printable
from tools.trust import TrustError
from tools.trust.check import Attested, check


def judge(wheels: Sequence[Path], commit: str | None, json_wanted: bool) -> int:
    """Checks these wheels, prints what was found, and returns the exit status: 1 when anything is wrong."""
    found: list[tuple[Path, Attested | TrustError]] = []
    for wheel in wheels:
        try:
            found.append((wheel, check(wheel, commit)))
        except TrustError as error:
            found.append((wheel, error))
    wrong = [printable(str(result)) for _, result in found if isinstance(result, TrustError)]
    if json_wanted:
        print(json.dumps({"ok": not wrong, "wheels": [_json(*item) for item in found]}, indent=2))
    else:
        for wheel, result in found:
            if isinstance(result, Attested):
                print(
                    f"{printable(wheel.name)}: commit {result.commit}, nvcc {result.facts.toolkit}, "
                    f"SHA-256 {result.facts.sha256}, built by {printable(result.builder)}"
                )
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _json(wheel: Path, result: Attested | TrustError) -> dict[str, object]:
    if isinstance(result, TrustError):
        return {"file": wheel.name, "problem": str(result)}
    return {
        "file": wheel.name,
        "sha256": result.facts.sha256,
        "commit": result.commit,
        "builder": result.builder,
        "kernel_sources": result.facts.source_sha256,
        "toolkit": result.facts.toolkit,
    }
