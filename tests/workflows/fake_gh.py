"""Stands in for gh: one release's assets and one list of issues, as files below $FAKE_GH."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

HOME = Path(os.environ["FAKE_GH"])
ASSETS = HOME / "assets"
ISSUES = HOME / "issues.json"  # what was said in all of them
OPEN = HOME / "open"  # their numbers


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def main(words: list[str]) -> int:
    with (HOME / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    match words[:2]:
        case ["release", "list"]:
            if os.environ.get("FAKE_GH_FAILS_AT") == "list":
                return 1
            print("\n".join(["v2.9.0", *(["index"] if ASSETS.is_dir() else [])]))
        case ["release", "create"]:
            ASSETS.mkdir()
        case ["release", "download"]:
            for path in ASSETS.iterdir():
                shutil.copy(path, value(words, "--dir"))
        case ["release", "upload"]:
            path = Path(words[3])
            if (ASSETS / path.name).exists() and "--clobber" not in words:
                return 1
            if os.environ.get("FAKE_GH_FAILS_AT") == path.name:
                return 1
            shutil.copy(path, ASSETS)
        case ["release", "delete-asset"]:
            (ASSETS / words[3]).unlink()
        case ["run", "view"]:
            print("- [Test cell](https://github.example/job/1)")
        case ["issue", "list"]:
            if OPEN.exists():
                print(OPEN.read_text())
        case ["issue", "create" | "comment"]:
            if words[1] == "create":
                OPEN.write_text("7")
            with ISSUES.open("a") as issues:
                issues.write(Path(value(words, "--body-file")).read_text())
        case ["issue", "close"]:
            if words[2] not in OPEN.read_text().split():
                return 1
            OPEN.write_text("\n".join(one for one in OPEN.read_text().split() if one != words[2]))
            with ISSUES.open("a") as issues:
                issues.write(value(words, "--comment") + "\n")
        case _:
            return 2
    return 0


sys.exit(main(sys.argv[1:]))
