"""What to type to install something anew: the one wording for every sentence that asks for it."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import url2pathname

from . import __version__

# How the launcher's sentences end, which knows no Python and no pip.
REINSTALL = "reinstall flash-attn"


def pip(arguments: str, python: str = "") -> str:
    """A command line for the Python that runs (computers have several); uv's environments have no pip."""
    python = quoted(python or sys.executable or "python")
    return f"{python} -m pip {arguments}" if find_spec("pip") else f"uv pip {arguments} --python {python}"


def quoted(word: str) -> str:
    """As the shells of Windows and Linux take a path."""
    return word if re.fullmatch(r"[\w:/\\.+=-]+", word) else f'"{word}"'


def reinstall(origin: str = "", python: str = "") -> str:
    """Windows lets nobody replace a library that a program has loaded."""
    origin = origin or installed_from()
    command = pip(f"install --force-reinstall --no-deps {quoted(origin)}", python)
    # Nobody knows which file it came from, and an index may have older ones only.
    file = (
        f" (with the wheel's file for {origin} where no index has it)"
        if origin.startswith("flash-attn==")
        else ""
    )
    return f"close every program that uses flash_attn and run{file} {command}"


def installed_from() -> str:
    """The file or address that pip was given, else name and version, so that it takes no older one."""
    wanted = f"flash-attn=={__version__}"
    try:
        found = metadata.distribution("flash-attn")
        record = json.loads(found.read_text("direct_url.json") or "{}")
        if found.version != __version__ or not {"archive_info", "dir_info"} & record.keys():
            return wanted
        url = urlsplit(str(record["url"]))
        if url.scheme != "file":
            return url.geturl()
        return url2pathname(f"//{url.netloc}{url.path}" if url.netloc else url.path)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, metadata.PackageNotFoundError):
        return wanted
