"""The one time of day that enters a wheel: that of ``SOURCE_DATE_EPOCH``, else a constant."""

from __future__ import annotations

import os

CONSTANT = "1767225600"  # 2026-01-01


def with_epoch() -> dict[str, str]:
    """This process's environment with ``SOURCE_DATE_EPOCH`` set, for programs that pack wheels."""
    return {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or CONSTANT}
