"""Reads .github/workflows as a test needs them: jobs, steps, commands, and matrices as they expand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tools.matrix.definition import MATRIX, read_definition
from tools.matrix.plan import expand
from tools.matrix.report import as_github

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".github" / "workflows"
SELF = "$/.github/workflows/"
_FROM_MATRIX_JOB = re.compile(r"\$\{\{ fromJSON\(needs\.(\w+)\.outputs\.(\w+)\) \}\}")


@dataclass(frozen=True)
class Workflow:
    name: str
    text: str
    content: dict[Any, Any]

    @property
    def triggers(self) -> dict[str, Any]:
        return self.content[True]  # YAML 1.1 reads the key "on" so

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        return self.content["jobs"]

    def steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for job, content in self.jobs.items():
            for step in content.get("steps", ()):
                yield job, step


@cache
def workflows() -> dict[str, Workflow]:
    found = {}
    for path in sorted(FOLDER.glob("*.y*ml")):
        text = path.read_text(encoding="utf-8")
        found[path.name] = Workflow(path.name, text, yaml.safe_load(text))
    return found


def needs(job: dict[str, Any]) -> list[str]:
    named = job.get("needs", [])
    return [named] if isinstance(named, str) else named


def upstream(workflow: Workflow, job: str) -> set[str]:
    """All jobs that end before this one starts."""
    direct = needs(workflow.jobs[job])
    return set(direct).union(*(upstream(workflow, one) for one in direct))


def called(job: dict[str, Any]) -> Workflow | None:
    uses = job.get("uses")
    return workflows()[uses.removeprefix(SELF)] if uses else None


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script, split into words; redirections and what follows them are left out."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        redirected = False
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;()"):
                if words:
                    yield words
                words, redirected = [], False
            elif set(word) <= set("<>"):
                redirected = True
            elif not redirected:
                words.append(word)


@cache
def plan(event: str) -> dict[str, list[dict[str, Any]]]:
    """What ``python -m tools matrix --event EVENT --format github`` gives a workflow."""
    lines = as_github(expand(read_definition(MATRIX), event)).splitlines()
    return {key: json.loads(value) for key, _, value in (line.partition("=") for line in lines)}


def events() -> dict[str, set[str]]:
    """For each reusable workflow with an input ``event``, those that its callers give."""
    found: dict[str, set[str]] = {}
    for workflow in workflows().values():
        for job in workflow.jobs.values():
            if (callee := called(job)) and "event" in job.get("with", {}):
                found.setdefault(callee.name, set()).add(job["with"]["event"])
    return found


def matrix_source(job: dict[str, Any]) -> tuple[str, str] | None:
    """The job and the output that its matrix comes from."""
    matrix = job.get("strategy", {}).get("matrix")
    if matrix is None:
        return None
    match = _FROM_MATRIX_JOB.fullmatch(matrix["include"])
    assert match, matrix
    assert set(matrix) == {"include"}, matrix
    return match[1], match[2]
