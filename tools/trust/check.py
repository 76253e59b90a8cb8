"""Judges a wheel by the provenance and the bill of materials beside it. Needs no network and no checkout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tools.reading import parse_json, read_bytes
from tools.trust import COMMIT, KERNEL_SOURCES, TrustError, is_commit, provenance_of, sbom_of
from tools.trust import provenance as form
from tools.trust.wheel_facts import WheelFacts, read_facts

_SIZE_LIMIT = 16 * 2**20


@dataclass(frozen=True)
class Attested:
    """What the statement beside a wheel says of it, all of it checked against the wheel."""

    facts: WheelFacts
    commit: str
    builder: str


def check(wheel: Path, commit: str | None = None) -> Attested:
    """Raises TrustError at the first thing that is wrong. ``commit`` is the one that must be attested."""
    found = digest_of(wheel)
    path = provenance_of(wheel)
    if not path.exists():
        raise TrustError(
            f"{path} can't be read (No such file or directory); take it from where the wheel comes from, or, "
            "where it was built, write it with python -m tools attest."
        )
    statement = _load(path)
    _equal(path, "_type", _at(path, statement, "_type"), form.STATEMENT_TYPE)
    _equal(path, "predicateType", _at(path, statement, "predicateType"), form.PREDICATE_TYPE)
    subjects = _named(path, _at(path, statement, "subject"), "sha256")
    _equal(path, "the wheel that it speaks of", ", ".join(subjects), wheel.name, "the file beside it")
    if found != subjects[wheel.name]:
        raise TrustError(
            f"{wheel} has SHA-256 {found}, but {path.name} attests {subjects[wheel.name]}: the wheel was "
            "changed after it was attested; take the one that was attested."
        )
    facts = read_facts(wheel)
    build = _at(path, statement, "predicate", "buildDefinition")
    _equal(path, "buildType", _at(path, build, "buildType"), form.BUILD_TYPE)
    expected = form.external_parameters(facts)
    parameters = _at(path, build, "externalParameters")
    for key in sorted(expected.keys() | parameters.keys() if isinstance(parameters, dict) else expected):
        _equal(path, f"externalParameters.{key}", _at(path, parameters, key), expected.get(key), str(wheel))
    materials = _at(path, build, "resolvedDependencies")
    sources = _named(path, materials, "sha256")
    _equal(
        path, "the SHA-256 of the kernel sources", sources.get(form.KERNEL_SOURCES), facts.source_sha256,
        f"the manifest in {wheel.name}",
    )  # fmt: skip
    compilers = [one for one in _list(path, build, "resolvedDependencies") if one == form.compiler(facts)]
    _equal(path, "the compiler", compilers[:1], [form.compiler(facts)], f"the manifest in {wheel.name}")
    attested = _named(path, materials, "gitCommit").get(form.SOURCE, "")
    if not is_commit(attested):
        raise TrustError(f"{path} names the source commit {attested!r}; expected 40 hexadecimal digits.")
    if commit is not None and attested != commit:
        raise TrustError(f"{path} says that the wheel was built from commit {attested}; expected {commit}.")
    details = _at(path, statement, "predicate", "runDetails")
    _check_sbom(facts, attested, _named(path, _at(path, details, "byproducts"), "sha256"))
    return Attested(facts, attested, str(_at(path, details, "builder", "id")))


def digest_of(path: Path) -> str:
    """SHA-256 of a file. Raises TrustError when it can't be read."""
    try:
        return sha256(read_bytes(path)).hexdigest()
    except OSError as error:
        raise TrustError(
            f"{path} can't be read ({error.strerror}); take it from where it was built."
        ) from None


def attested_digest(wheel: Path) -> str | None:
    """What the statement beside the wheel says that its SHA-256 is; None when there is no statement."""
    path = provenance_of(wheel)
    if not path.exists():
        return None
    return _named(path, _at(path, _load(path), "subject"), "sha256").get(wheel.name)


def _check_sbom(facts: WheelFacts, commit: str, byproducts: dict[str, str]) -> None:
    path = sbom_of(facts.path)
    found = sha256(_read(path)).hexdigest()
    _equal(path, "SHA-256", found, byproducts.get(path.name), provenance_of(facts.path).name)
    bill = _load(path)
    _equal(path, "bomFormat", _at(path, bill, "bomFormat"), "CycloneDX")
    wheel = _at(path, bill, "metadata", "component")
    _equal(path, "the version", _at(path, wheel, "version"), facts.version, facts.name)
    _equal(path, "the wheel's SHA-256", _sha256(path, wheel), facts.sha256, facts.name)
    properties = {
        str(_at(path, one, "name")): _at(path, one, "value") for one in _list(path, wheel, "properties")
    }
    _equal(path, COMMIT, properties.get(COMMIT), commit, provenance_of(facts.path).name)
    _equal(path, KERNEL_SOURCES, properties.get(KERNEL_SOURCES), facts.source_sha256, facts.name)
    files = {
        str(_at(path, one, "name")): _sha256(path, one)
        for one in _list(path, bill, "components")
        if _at(path, one, "type") == "file"
    }
    for name in sorted(files.keys() | facts.parts.keys()):
        _equal(path, f"the SHA-256 of {name}", files.get(name), facts.parts.get(name), facts.name)


def _sha256(path: Path, component: Any) -> object:
    for one in _list(path, component, "hashes"):
        if _at(path, one, "alg") == "SHA-256":
            return _at(path, one, "content")
    return None


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, _SIZE_LIMIT)
    except OSError as error:
        raise TrustError(
            f"{path} can't be read ({error.strerror}); some kilobytes of JSON belong beside the wheel."
        ) from None


def _load(path: Path) -> Any:
    try:
        return parse_json(_read(path))
    except ValueError as error:
        raise TrustError(
            f"{path} is not JSON ({error}); expected what python -m tools attest writes."
        ) from None


def _at(path: Path, value: Any, *keys: str) -> Any:
    for number, key in enumerate(keys):
        if not isinstance(value, dict) or key not in value:
            raise TrustError(
                f"{path} lacks {'.'.join(keys[: number + 1])}; expected what python -m tools attest writes."
            )
        value = value[key]
    return value


def _list(path: Path, value: Any, key: str) -> Iterator[Any]:
    found = _at(path, value, key)
    if not isinstance(found, list):
        raise TrustError(f"{path} has no list in {key}; expected what python -m tools attest writes.")
    return iter(found)


def _named(path: Path, items: Any, algorithm: str) -> dict[str, str]:
    """Digests of a list of resource descriptors by name; those without this kind of digest left out."""
    digests = {}
    for one in _list(path, {"list": items}, "list"):
        digest = one.get("digest") if isinstance(one, dict) else None
        if isinstance(digest, dict) and algorithm in digest:
            digests[str(_at(path, one, "name"))] = str(digest[algorithm])
    return digests


def _equal(path: Path, what: str, found: object, expected: object, source: str = "this project") -> None:
    if found != expected:
        raise TrustError(f"{path} has {found!r} for {what}; expected {expected!r}, as {source} has it.")
