"""What a script found, as JSON for the tests; and the errors of calls, as they reach a user."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def error_of(call: Callable[[], Any]) -> str:
    """The kind and sentence of the error that a call raises; "none" when it raises none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def write(path: str, found: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(found), encoding="utf-8")


def begin(tests: str) -> None:
    """Makes the tests' helpers importable."""
    sys.path.insert(0, tests)
