"""The software bill of materials of a wheel: CycloneDX 1.6, the same bytes for the same wheel and commit."""

from __future__ import annotations

import json
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from tools.trust import COMMIT, KERNEL_SOURCES
from tools.trust.wheel_facts import WheelFacts


def sbom(facts: WheelFacts, commit: str) -> bytes:
    """What is in the wheel (each compiled file with its digest), what it needs, and what compiled it."""
    wheel = Component(
        name="flash-attn",
        version=facts.version,
        type=ComponentType.LIBRARY,
        bom_ref="wheel",
        purl=PackageURL("pypi", None, "flash-attn", facts.version, {"file_name": facts.name}),
        licenses=[LicenseExpression("BSD-3-Clause")],
        hashes=[_hash(facts.sha256)],
        properties=[
            Property(name=COMMIT, value=commit),
            Property(name=KERNEL_SOURCES, value=facts.source_sha256),
        ],
    )
    files = [
        Component(name=name, type=ComponentType.FILE, bom_ref=f"file:{name}", hashes=[_hash(digest)])
        for name, digest in facts.parts.items()
    ]
    needed = [_needed(Requirement(line)) for line in facts.requires]
    compiler = Component(
        name="nvcc",
        version=facts.toolkit,
        type=ComponentType.APPLICATION,
        bom_ref="nvcc",
        scope=ComponentScope.EXCLUDED,  # it made the files, and is not among them
        description="CUDA compiler of the kernels",
        properties=[Property(name="flash-attn:nvcc-flags", value=" ".join(facts.flags))],
    )
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"sha256:{facts.sha256}:{commit}"),
        metadata=BomMetaData(component=wheel),
        components=[*files, *needed, compiler],
        dependencies=[Dependency(wheel.bom_ref, [Dependency(part.bom_ref) for part in (*files, *needed)])],
    )
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]  # of this minute; the same wheel is to have the same bill
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _hash(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _needed(requirement: Requirement) -> Component:
    """A package that the user brings; which version is not ours to say."""
    return Component(
        name=requirement.name,
        type=ComponentType.LIBRARY,
        bom_ref=f"needs:{requirement.name}",
        purl=PackageURL("pypi", None, requirement.name),
        scope=ComponentScope.REQUIRED,
        properties=[Property(name="flash-attn:requirement", value=str(requirement))],
    )
