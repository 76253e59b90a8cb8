"""The one time of day that enters a wheel: that of ``SOURCE_DATE_EPOCH``, else a constant."""

from __future__ import annotations

import os
from datetime import datetime, timezone

CONSTANT = "1767225600"  # 2026-01-01


class EpochError(Exception):
    """What is wrong with the variable, in one sentence."""


def epoch() -> datetime | None:
    """``SOURCE_DATE_EPOCH``, None when it is not set. Raises EpochError when it is no number of seconds."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    try:
        return datetime.fromtimestamp(int(text), timezone.utc)
    except (ValueError, OverflowError, OSError):
        raise EpochError(
            f"SOURCE_DATE_EPOCH is {text!r}; expected seconds since 1970, such as {CONSTANT}."
        ) from None


def with_epoch() -> dict[str, str]:
    """This process's environment with ``SOURCE_DATE_EPOCH`` set, for programs that pack wheels."""
    return {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or CONSTANT}
