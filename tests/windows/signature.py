"""Whether a CPython for Windows is the one that the Python Software Foundation signed.

What is checked of each program and library but Microsoft's C runtime: it has the digest that was signed,
the signature fits the signer's certificate, that names the Python Software Foundation, and a chain of
certificates, each signed by the next, leads from it to a root that Windows trusts, known here by its
fingerprint. What is not: revocation, which needs a network, and expiry, since a signature outlives its
certificate by a timestamp, which this doesn't examine. The archive's pinned hash says the rest.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import lief

PE = lief.PE
SIGNER = "CN=Python Software Foundation"
# SHA-256 of the certificate, as Windows' trust list gives it.
ROOTS = {
    "552f7bdcf1a7af9e6ce672017f4f12abf77240c78e761ac203d1d9d20ac89988": "DigiCert Trusted Root G4",
    "5367f20c7ade0e2bca790915056d086b720c33c1fa2a2661acf787e3292e1270": (
        "Microsoft Identity Verification Root Certificate Authority 2020"
    ),
}


def problems_of_python(folder: Path) -> list[str]:
    """What is wrong with the signatures of all programs and libraries of a CPython but the C runtime."""
    programs = [path for path in sorted(folder.iterdir()) if path.suffix in (".exe", ".dll", ".pyd")]
    return [
        problem
        for program in programs
        if not program.name.startswith("vcruntime")
        for problem in problems(program)
    ]


def problems(program: Path) -> list[str]:
    """What is wrong with the signature of a program; empty when nothing is."""
    parsed = PE.parse(str(program))
    if not isinstance(parsed, PE.Binary) or not parsed.signatures:
        return [f"{program} carries no signature"]
    verdict = parsed.verify_signature()
    if verdict != PE.Signature.VERIFICATION_FLAGS.OK:
        return [f"{program} is not what was signed ({verdict})"]
    signature = parsed.signatures[0]
    signer = signature.signers[0].cert
    if SIGNER not in signer.subject.split(", "):
        return [f"{program} was signed by {signer.subject}"]
    root = _root(signer, list(signature.certificates))
    if root not in ROOTS:
        return [f"the certificates of {program} lead to {root}, which is no known root"]
    return []


def _root(certificate: lief.PE.x509, others: list[lief.PE.x509]) -> str:
    """The fingerprint of the last certificate that vouches for this one."""
    for _ in others:
        issuer = next((other for other in others if _vouches(other, certificate)), None)
        if issuer is None:
            break
        certificate = issuer
    return sha256(certificate.raw).hexdigest()


def _vouches(issuer: lief.PE.x509, certificate: lief.PE.x509) -> bool:
    flags = PE.x509.VERIFICATION_FLAGS
    if issuer.subject != certificate.issuer or issuer.raw == certificate.raw:
        return False
    return issuer.verify(certificate) in (flags.OK, flags.BADCERT_EXPIRED)
