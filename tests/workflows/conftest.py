"""Lets the tests import ``tools``, behind everything else, so that flash_attn stays the installed one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
