"""Makes the package index: static files that pip and uv install from, and a page for people.

``distribution`` reads and judges one file, ``published`` reads the index that is there already, ``selection``
decides what the new one holds, ``pages`` renders it, ``publish`` puts it in place, all or nothing.
"""

from __future__ import annotations

PROJECT = "flash-attn"
FILES = "files"  # folder of the index that holds the distributions


class RefusedError(Exception):
    """Why there is no new index, in one sentence that names the file."""
