"""ci/build-requirements.txt: pinned with hashes, fit for pyproject.toml, and without any index's address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nox
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.verify.expected import CHECKOUT

LOCK = CHECKOUT / "ci/build-requirements.txt"
ENTRY = re.compile(
    r"^(?P<pin>[A-Za-z0-9][^\\\n]*?)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE
)


def pins() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for match in ENTRY.finditer(LOCK.read_text(encoding="utf-8")):
        requirement = Requirement(match["pin"])
        assert match["hashes"], f"{requirement} has no hash"
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), requirement
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def required() -> Iterator[Requirement]:
    project = nox.project.load_toml(CHECKOUT / "pyproject.toml")
    lines = [
        *project["build-system"]["requires"],
        *nox.project.dependency_groups(project, "build"),
        *(CHECKOUT / "cmake/cuda-toolkit.txt").read_text(encoding="utf-8").split("\n"),
    ]
    return (Requirement(line) for line in lines if line)


def test_every_line_is_a_pin_with_hashes_or_a_comment() -> None:
    text = LOCK.read_text(encoding="utf-8")
    rest = ENTRY.sub("", text)
    assert not [line for line in rest.splitlines() if line and not line.startswith("#")]
    assert len(pins()) > 20
    assert "://" not in text
    assert "index" not in text


@pytest.mark.parametrize("requirement", list(required()), ids=str)
def test_what_a_build_needs_is_pinned_and_fits(requirement: Requirement) -> None:
    found = pins().get(canonicalize_name(requirement.name), [])
    assert found, f"{requirement} is not in {LOCK.name}; run nox -s lock"
    for pin in found:
        (version,) = [one.version for one in pin.specifier]
        assert requirement.specifier.contains(version), f"{pin} does not fit {requirement}; run nox -s lock"


def test_the_toolkit_of_the_build_is_pinned_part_by_part() -> None:
    names = set(pins())
    assert {"cuda-toolkit", "nvidia-cuda-nvcc", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-nvvm"} <= names
    assert Path(LOCK).stat().st_size < 200_000
