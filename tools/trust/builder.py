"""Who builds: a GitHub workflow, told by the variables that GitHub sets, or a person at a desk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DESK = "urn:flash-attn:builder:desk"


@dataclass(frozen=True)
class Builder:
    """``identity`` is a URI. ``repository`` and ``run`` are addresses, known on GitHub alone."""

    identity: str
    repository: str | None = None
    run: str | None = None


def find_builder(environment: Mapping[str, str]) -> Builder:
    """Reads no variable but those of GitHub that name the repository, the workflow and the run."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return Builder(DESK)
    server, repository, workflow, run, attempt = (
        environment.get(f"GITHUB_{name}", "")
        for name in ("SERVER_URL", "REPOSITORY", "WORKFLOW_REF", "RUN_ID", "RUN_ATTEMPT")
    )
    address = f"{server}/{repository}"
    return Builder(f"{server}/{workflow}", address, f"{address}/actions/runs/{run}/attempts/{attempt or '1'}")
