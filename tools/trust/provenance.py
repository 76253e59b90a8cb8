"""The provenance of a wheel: an in-toto statement (v1) with SLSA's predicate (v1)."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from tools.trust import sbom_of
from tools.trust.builder import Builder
from tools.trust.wheel_facts import WheelFacts

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:flash-attn:build:wheel:v1"

# How the dependencies of the build are named in the statement.
SOURCE = "source"
KERNEL_SOURCES = "kernel sources"
COMPILER = "nvcc"


def external_parameters(facts: WheelFacts) -> dict[str, Any]:
    """What could be chosen for this build. Everything here stands in the wheel too."""
    return {
        "version": facts.version,
        "tags": list(facts.tags),
        "toolkit": facts.toolkit,
        "architectures": {"sass": list(facts.sass), "ptx": list(facts.ptx)},
        "flags": list(facts.flags),
    }


def compiler(facts: WheelFacts) -> dict[str, str]:
    return {"name": COMPILER, "uri": f"pkg:generic/nvcc@{facts.toolkit}"}


def provenance(facts: WheelFacts, commit: str, builder: Builder, bill: bytes) -> bytes:
    """The statement about this wheel; ``bill`` is its bill of materials."""
    source: dict[str, Any] = {"name": SOURCE, "digest": {"gitCommit": commit}}
    if builder.repository:
        source["uri"] = f"git+{builder.repository}"
    run = {"metadata": {"invocationId": builder.run}} if builder.run else {}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": facts.name, "digest": {"sha256": facts.sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": external_parameters(facts),
                "resolvedDependencies": [
                    source,
                    {"name": KERNEL_SOURCES, "digest": {"sha256": facts.source_sha256}},
                    compiler(facts),
                ],
            },
            "runDetails": {
                "builder": {"id": builder.identity},
                **run,
                "byproducts": [
                    {"name": sbom_of(facts.path).name, "digest": {"sha256": sha256(bill).hexdigest()}}
                ],
            },
        },
    }
    return (json.dumps(statement, indent=2, sort_keys=True) + "\n").encode()
