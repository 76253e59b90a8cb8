"""Keeps a wheel out of the index when it is not the one that was attested."""

from __future__ import annotations

from collections.abc import Iterable

from tools.index import RefusedError
from tools.index.distribution import Distribution
from tools.trust import TrustError, provenance_of
from tools.trust.check import check


def check_attested(distributions: Iterable[Distribution], required: bool) -> None:
    """Raises RefusedError for a wheel whose provenance does not fit or, if that is required, is not there."""
    for distribution in distributions:
        if distribution.metadata is None:
            continue
        if not required and not provenance_of(distribution.path).exists():
            continue
        try:
            check(distribution.path)
        except TrustError as error:
            raise RefusedError(str(error)) from None
