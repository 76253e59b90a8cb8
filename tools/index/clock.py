"""What time it is, for whoever wants the same index again: ``SOURCE_DATE_EPOCH`` when that is set."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from tools.index import RefusedError


def now() -> datetime:
    """Without microseconds. Raises RefusedError for a SOURCE_DATE_EPOCH that is no number of seconds."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return datetime.now(timezone.utc).replace(microsecond=0)
    try:
        return datetime.fromtimestamp(int(text), timezone.utc)
    except (ValueError, OverflowError, OSError):
        raise RefusedError(
            f"SOURCE_DATE_EPOCH is {text!r}; expected seconds since 1970, such as 1767225600."
        ) from None
