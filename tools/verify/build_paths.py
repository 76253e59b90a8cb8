"""Finds paths of the machine that built a library among its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.verify.expected import CHECKOUT

# Of a drive, of a folder in which people or pipelines build, or of a source or object file anywhere.
_ABSOLUTE = re.compile(
    r"(?<![\w.%])(?:"
    r"[A-Za-z]:[\\/](?:[\w.~+-][\w.~+ -]*[\\/])+"
    r"|/(?:home|root|tmp|Users|builds?|work|project|host|mnt|__w)/[\w.~+-]"
    r"|/(?:[\w.~+-]+/)+[\w.~+-]+\.(?:c|cc|cpp|cu|h|o|obj|S|zig)\b"
    rf"|{re.escape(str(CHECKOUT))}\b"
    r")[\x20-\x7e]*",
    re.ASCII,
)


def build_paths(data: bytes) -> Iterator[str]:
    """Each once, in the order of their places, first those of 8-bit text, then those of UTF-16."""
    texts = (data.decode("latin-1"), *(data[start:].decode("utf-16-le", "replace") for start in (0, 1)))
    yield from dict.fromkeys(match[0] for text in texts for match in _ABSOLUTE.finditer(text))
