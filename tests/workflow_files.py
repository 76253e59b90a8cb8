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


def outcome(
    workflow: Workflow,
    failing: str = "",
    how: str = "failure",
    *,
    due: bool = True,
    runner: bool = False,
    ref: str = "refs/heads/main",
) -> dict[str, str]:
    """What each job ends as, when the one named ends as ``how`` wherever it runs, else success or skipped.

    ``how`` is failure, or cancelled: so ends a job that runs into its time limit.

    As GitHub has it, a job without a status function in its ``if`` runs only when all jobs before it, not
    only those it needs, ended well: one that was skipped skips what comes after.
    """
    results: dict[str, str] = {}

    def run(name: str) -> str:
        job = workflow.jobs[name]
        before = [result(one) for one in sorted(upstream(workflow, name))]
        well = all(one == "success" for one in before)
        condition = str(job.get("if", "success()")).strip().removeprefix("${{").removesuffix("}}")
        for pattern, python in (
            (r"&&", " and "),
            (r"\|\|", " or "),
            (r"!(?!=)", " not "),
            (r"needs\.\*\.result", "needed"),
            (r"needs\.(\w+)\.result", r"needs['\1']"),
            (r"needs\.due\.outputs\.due", "due"),
            (r"vars\.GPU_RUNNER", "runner"),
            (r"github\.event_name", "'schedule'"),
            (r"github\.ref", "ref"),
        ):
            condition = re.sub(pattern, python, condition)
        known = {
            "needs": (needed := {one: result(one) for one in needs(job)}),
            "needed": list(needed.values()),
            "due": "true" if due else "false",
            "ref": ref,
            "runner": "gpu" if runner else "",
            "success": lambda: well,
            "cancelled": lambda: False,
            "always": lambda: True,
            "contains": lambda values, value: value in values,
        }
        runs = eval(" ".join(condition.split()), {"__builtins__": {}}, known)
        if not runs or not (well or re.search(r"\b(success|cancelled|always)\(", condition)):
            return "skipped"
        return how if name == failing else "success"

    def result(name: str) -> str:
        if name not in results:
            results[name] = run(name)
        return results[name]

    return {name: result(name) for name in workflow.jobs}


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
