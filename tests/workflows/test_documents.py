"""What the documents for people name is there: the files they link to, the sessions, commands and paths."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nox
import pytest

from tools.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
SESSION = re.compile(r"\bnox -s ([a-z]\w*)")
COMMAND = re.compile(r"\bpython -m tools ([a-z]\w*)")
TOP = {path.name for path in ROOT.iterdir()} - {"build", "dist"}


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ +(.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def paths(text: str) -> set[str]:
    """What stands in backticks and begins with something of the root folder."""
    spans = re.findall(r"`([\w.\-]+(?:/[\w.\-]+)+)/?`", text)
    return {span for span in spans if span.split("/")[0] in TOP}


@pytest.fixture(scope="module")
def sessions() -> set[str]:
    before = dict(nox.registry.get())
    found = runpy.run_path(str(ROOT / "noxfile.py"))
    assert "wheel" in found
    return {*before, *nox.registry.get()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=[path.name for path in DOCUMENTS])
def test_what_it_names_is_there(document: Path, sessions: set[str]) -> None:
    text = document.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    assert set(SESSION.findall(text)) <= sessions
    assert set(COMMAND.findall(text)) <= COMMANDS.keys()
    assert {path for path in paths(text) if not (ROOT / path).exists()} == set()


def test_the_readme_leads_to_every_document() -> None:
    links = {
        link.partition("#")[0] for link in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    }
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= links
    assert len(DOCUMENTS) > 6
