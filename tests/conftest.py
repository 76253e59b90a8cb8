"""Makes ``tests/`` importable, so that tests of every folder find the helpers in ``mock_driver``."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parent)
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)
