"""What the build finds on a Windows with a made-up Visual Studio: ``CMAKE_FOLDER PROGRAM_FILES REPORT``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

cmake, programs, report = sys.argv[1:]
sys.path.insert(0, cmake)
import msvc
import nvcc_paths


def told(**variables: str) -> dict[str, str] | str:
    """What the build adds to the environment, or the sentence that it ends with."""
    # Names are upper-case in Windows' own environment, and so are those that come back.
    environment = {name: text for name, text in os.environ.items() if name not in msvc._NAMES_A_COMPILER}
    environment |= {"ProgramFiles(x86)": programs} | variables
    try:
        return msvc.additions(environment)
    except msvc.MsvcError as error:
        return str(error)


found = {
    "system": sys.platform,
    "path": os.environ["PATH"],
    "found": told(),
    "vcvarsall fails": told(MADE_UP_FAILURE="no Windows SDK"),
    "no tools": told(MADE_UP_STUDIO=""),
    # Every Windows code page holds one of these letters, none both.
    "nvcc": [nvcc_paths.problem([path]) for path in (r"C:\Build & more", r"C:\Łukasz", r"C:\Ångström Ωμέγα")],
    "no vswhere": told(**{"ProgramFiles(x86)": r"C:\no folder"}),
}
Path(report).write_text(json.dumps(found), encoding="utf-8")
