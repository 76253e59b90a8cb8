"""Decides whether a nightly is due: not when the last one was made of the same commit, and is no week old."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from tools.reading import read_json

# So long may a nightly stand for an unchanged tree: torch, Python and the runners change without a commit.
AT_LEAST_EVERY = timedelta(days=7)
_DAY = re.compile(r"\.dev(\d{8})-")


class DueError(Exception):
    """Why it can't be decided, in one sentence."""


@dataclass(frozen=True)
class Nightly:
    """A nightly that was published: the day of its version, and the commit it was made of."""

    day: date
    commit: str


def read_last(folder: Path) -> Nightly | None:
    """The newest nightly that a provenance file in the folder tells of; None when there is none."""
    if not folder.is_dir():
        raise DueError(
            f"{folder} is no folder; name the one with the provenance files of published nightlies."
        )
    found = [_read(path) for path in sorted(folder.glob("*.provenance.json")) if _DAY.search(path.name)]
    return max(found, key=lambda nightly: nightly.day, default=None)


def _read(path: Path) -> Nightly:
    match = _DAY.search(path.name)
    assert match is not None
    try:
        day = datetime.strptime(match[1], "%Y%m%d").date()
        commits = set(_commits(read_json(path)["predicate"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DueError(
            f"{path} is no provenance of a nightly ({type(error).__name__}: {error}); remove it."
        ) from None
    if len(commits) != 1:
        raise DueError(f"{path} names {len(commits)} commits; one was expected.")
    return Nightly(day, commits.pop())


def _commits(predicate: dict[str, Any]) -> Iterable[str]:
    for material in predicate["buildDefinition"]["resolvedDependencies"]:
        if commit := material.get("digest", {}).get("gitCommit"):
            yield str(commit)


def is_due(last: Nightly | None, commit: str, today: date) -> tuple[bool, str]:
    """Whether, and why, as a sentence."""
    if last is None:
        return True, "No nightly has been published yet."
    if last.commit != commit:
        return True, f"The last nightly was made of commit {last.commit[:12]}, this is {commit[:12]}."
    if today - last.day >= AT_LEAST_EVERY:
        return True, f"Nothing has changed, but the last nightly is of {last.day}, a week ago or more."
    return False, f"Nothing has changed since the nightly of {last.day}: both are commit {commit[:12]}."
