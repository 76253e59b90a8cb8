"""``python -m flash_attn``: what is installed, what the machine has, and whether the two fit."""

import sys

from ._diagnosis.command import main

if __name__ == "__main__":
    sys.exit(main())
