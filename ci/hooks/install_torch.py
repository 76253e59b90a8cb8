"""cibuildwheel's step before the tests: the cell's PyTorch, before the wheel asks for just any."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

TORCH = os.environ.get("FLASH_ATTN_TEST_TORCH") or "torch>=2.10"

if __name__ == "__main__":
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *shlex.split(TORCH)]
    if subprocess.run(command).returncode != 0:
        sys.exit(
            f"PyTorch ({TORCH}; FLASH_ATTN_TEST_TORCH names another) can't be installed: see pip's message."
        )
