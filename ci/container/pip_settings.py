"""This machine's pip settings, handed into the container: pip there must find what pip here finds."""

from __future__ import annotations

import ast
import configparser
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Settings that say where packages come from. Others (a target folder, a cache) stay outside.
SOURCES = (
    "cert", "client-cert", "constraint", "default-timeout", "extra-index-url", "find-links", "index-url",
    "no-index", "proxy", "retries", "timeout", "trusted-host",
)  # fmt: skip
DEBIAN_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
CONTAINER_BUNDLE = Path("/etc/ssl/host-certificates.crt")


def read_settings() -> dict[str, str]:
    """pip's settings: those of its files, and over them those of the environment."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = {}
    for line in listed.stdout.splitlines():
        section_and_key, _, value = line.partition("=")
        section, _, key = section_and_key.partition(".")
        if section == "global" and key in SOURCES:
            found[key] = str(ast.literal_eval(value))
    for key in SOURCES:
        if named := os.environ.get(f"PIP_{key.upper().replace('-', '_')}"):
            found[key] = named
    return found


def certificates() -> Path | None:
    """The bundle of certificate authorities that programs here trust."""
    named = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    candidates = (Path(named) if named else DEBIAN_BUNDLE, DEBIAN_BUNDLE)
    return next((path for path in candidates if path.is_file()), None)


def local_folders(settings: Mapping[str, str]) -> list[Path]:
    """Files and folders here that the settings name; for an index, also what its pages may point to."""
    found = []
    for word in (word for value in settings.values() for word in value.split()):
        if word.startswith("file:"):
            found.append(Path(unquote(urlsplit(word).path)).parent)
        elif word.startswith("/"):
            found.append(Path(word))
    return [path for path in dict.fromkeys(found) if path.exists()]


def mounts(folder: Path) -> dict[Path, Path]:
    """Paths here and where the container has to see them; ``folder`` keeps the new pip.conf."""
    settings = read_settings()
    found: dict[Path, Path] = {}
    if bundle := certificates():
        found[bundle] = CONTAINER_BUNDLE
        settings.setdefault("cert", str(CONTAINER_BUNDLE))
    if settings.get("cert") == str(bundle):
        settings["cert"] = str(CONTAINER_BUNDLE)
    found |= {path: path for path in local_folders(settings)}
    config = configparser.ConfigParser(interpolation=None)
    config["global"] = settings
    file = folder / "pip.conf"
    folder.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)  # an index's address may hold a password
    with file.open("w", encoding="utf-8") as stream:
        config.write(stream)
    return found | {file: Path("/etc/pip.conf")}
