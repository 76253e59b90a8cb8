"""Decides what the new index holds: what is published and what is new, yanked or too old to stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from packaging.version import InvalidVersion, Version

from tools.index import RefusedError
from tools.index.distribution import Distribution
from tools.index.published import Entry


def unique(distributions: Iterable[Distribution]) -> list[Distribution]:
    """The same, when no two of them are one distribution; RefusedError names both otherwise."""
    seen: dict[tuple[object, ...], Distribution] = {}
    for new in distributions:
        other = seen.setdefault(new.identity, new)
        if other is not new:
            bytes_too = "the same bytes" if other.sha256 == new.sha256 else "different bytes"
            raise RefusedError(
                f"{new.filename} is there twice, with {bytes_too}: {other.path} and {new.path}; "
                "leave one out."
            )
    return list(seen.values())


def merge(published: Sequence[Entry], new: Iterable[Distribution], now: datetime) -> list[Entry]:
    """Published files stay as they are; RefusedError for a new one that would replace one by other bytes."""
    entries = {entry.distribution.identity: entry for entry in published}
    for distribution in unique(new):
        old = entries.get(distribution.identity)
        if old is None:
            entries[distribution.identity] = Entry(distribution, now)
        elif old.distribution.sha256 != distribution.sha256:
            raise RefusedError(
                f"{distribution.path} has SHA-256 {distribution.sha256}, but the index offers "
                f"{old.distribution.filename} with {old.distribution.sha256}; what is published never "
                "changes, so give the new one another version."
            )
    return sorted(
        entries.values(), key=lambda entry: (entry.distribution.version, entry.distribution.filename)
    )


def parse_version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise RefusedError(f"{text!r} is no version; expected one such as 2.9.0.") from None


def yank(entries: Sequence[Entry], reasons: Mapping[str, str | None]) -> list[Entry]:
    """With these versions yanked, or taken back where the reason is None."""
    wanted = {parse_version(text): reason for text, reason in reasons.items()}
    versions = {entry.distribution.version for entry in entries}
    yanked = {entry.distribution.version for entry in entries if entry.yanked is not None}
    for version, reason in wanted.items():
        if version not in versions:
            there = ", ".join(map(str, sorted(versions))) or "none"
            what = "yank" if reason else "unyank"
            raise RefusedError(f"The index has no version {version} to {what}; it has {there}.")
        if reason is None and version not in yanked:
            there = ", ".join(map(str, sorted(yanked))) or "none"
            raise RefusedError(
                f"Version {version} is not yanked, so --unyank has nothing to do; yanked: {there}."
            )
    return [
        replace(entry, yanked=wanted[entry.distribution.version])
        if entry.distribution.version in wanted
        else entry
        for entry in entries
    ]


def keep_newest(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Without the nightlies that are older than the ``count`` newest; versions that are no nightly stay."""
    nightlies = sorted(
        {entry.distribution.version for entry in entries if entry.distribution.version.is_devrelease}
    )
    dropped = set(nightlies[:-count])
    return [entry for entry in entries if entry.distribution.version not in dropped]
