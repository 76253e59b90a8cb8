"""One thing that is wrong with a wheel, and the error for input that can't be read at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """``check`` names the rule that was broken; ``message`` is one sentence for a person."""

    check: str
    message: str


Problems = Iterator[Problem]


class UnreadableError(Exception):
    """A file is not what its name says; the text is one sentence."""


class ToolMissingError(Exception):
    """A program that the verifier needs is not installed; the text says how to get it."""
