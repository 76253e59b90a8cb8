"""Writes the bill of materials and the provenance beside wheels: for all of them, or for none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.trust import TrustError, provenance_of, sbom_of
from tools.trust.builder import find_builder
from tools.trust.check import attested_digest
from tools.trust.provenance import provenance
from tools.trust.sbom import sbom
from tools.trust.source import Source, check_built_from
from tools.trust.wheel_facts import WheelFacts, read_facts


@dataclass(frozen=True)
class Documents:
    """What is to lie beside one wheel."""

    facts: WheelFacts
    bill: bytes
    statement: bytes


def attest(wheels: Sequence[Path], source: Source, environment: Mapping[str, str]) -> list[Documents]:
    """Raises TrustError, and writes nothing, when a wheel is not what this checkout builds."""
    builder = find_builder(environment)
    made = []
    for wheel in wheels:
        facts = read_facts(wheel)
        check_built_from(facts, source)
        attested = attested_digest(wheel)
        if attested not in (None, facts.sha256):
            raise TrustError(
                f"{wheel} has SHA-256 {facts.sha256}, but {provenance_of(wheel).name} beside it attests "
                f"{attested}: the wheel was changed after it was attested; if it was built again, remove "
                "that file first."
            )
        bill = sbom(facts, source.commit)
        made.append(Documents(facts, bill, provenance(facts, source.commit, builder, bill)))
    for documents in made:
        _write(sbom_of(documents.facts.path), documents.bill)
        _write(provenance_of(documents.facts.path), documents.statement)
    return made


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise TrustError(f"{path} can't be written ({error.strerror}).") from None
