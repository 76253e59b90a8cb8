"""Whether nvcc for Windows can be given these paths: it reads them in the system's code page (13.4 does).

Run as a program with paths, it ends with a sentence about the first one that nvcc could not find.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable


def problem(paths: Iterable[str], code_page: str = "mbcs") -> str:
    """One sentence about the first path that the code page can't hold; empty when it holds all."""
    for path in paths:
        if lacking := "".join(letter for letter in dict.fromkeys(path) if not _held(letter, code_page)):
            # Escaped, for nobody knows what the reader of this can print.
            return (
                f"nvcc can't find {path!a}, since this Windows' code page lacks {lacking!a}; move it, or, "
                "for a folder of pip's own, set TEMP and TMP to one with a plain name such as C:\\build."
            )
    return ""


def _held(letter: str, code_page: str) -> bool:
    try:
        letter.encode(code_page)
    except UnicodeEncodeError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(problem(sys.argv[1:]) or 0)
