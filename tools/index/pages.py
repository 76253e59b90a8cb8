"""Renders the index: HTML (PEP 503) and JSON (PEP 691, PEP 700) for installers, one page for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Any
from urllib.parse import quote, urljoin

import jinja2
from markupsafe import Markup
from packaging.version import Version

from tools.index import FILES, PROJECT
from tools.index.distribution import Distribution
from tools.index.published import Entry
from tools.matrix.definition import definition
from tools.verify.platforms import platform_of

API_VERSION = "1.1"

# What the parts of a platform's name are to a person.
_SYSTEMS = {"manylinux": "Linux", "win": "Windows"}
_MACHINES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "Arm (aarch64)", "arm64": "Arm"}


@dataclass(frozen=True)
class Choice:
    """A wheel to take, and who should take it: where sysconfig.get_platform() says ``sysconfig``."""

    title: str
    sysconfig: str
    entry: Entry
    glibc: str


@dataclass(frozen=True)
class Release:
    """All files of one version, newest version first on the page."""

    version: Version
    entries: tuple[Entry, ...]
    yanked: str | None


def project_json(entries: Sequence[Entry], files_url: str | None = None) -> str:
    versions = sorted({entry.distribution.version for entry in entries})
    document = {
        "meta": {"api-version": API_VERSION},
        "name": PROJECT,
        "versions": [str(version) for version in versions],
        "files": [_file_json(entry, files_url) for entry in entries],
    }
    return json.dumps(document, indent=1) + "\n"


def _file_json(entry: Entry, files_url: str | None) -> dict[str, Any]:
    distribution = entry.distribution
    found: dict[str, Any] = {
        "filename": distribution.filename,
        "url": file_url(distribution, "../../", files_url),
        "hashes": {"sha256": distribution.sha256},
        "size": distribution.size,
        "upload-time": entry.uploaded_text,
        "yanked": entry.yanked or False,
    }
    if distribution.requires_python:
        found["requires-python"] = distribution.requires_python
    if distribution.metadata is not None:
        digest = {"sha256": sha256(distribution.metadata).hexdigest()}
        found |= {"core-metadata": digest, "dist-info-metadata": digest}
    return found


def root_json() -> str:
    return (
        json.dumps({"meta": {"api-version": API_VERSION}, "projects": [{"name": PROJECT}]}, indent=1) + "\n"
    )


def file_url(distribution: Distribution, base: str, files_url: str | None = None) -> str:
    """Below ``files_url``, or in the index's own folder, which ``base`` leads to."""
    return f"{files_url or f'{base}{FILES}'}/{quote(distribution.filename)}"


def file_address(distribution: Distribution, url: str | None, files_url: str | None) -> str:
    """What pip is told from anywhere; the file's name alone where the index's address is not known."""
    if files_url is None and url is None:
        return distribution.filename
    return urljoin(url or "", file_url(distribution, "../", files_url))


def breakable(name: str) -> Markup:
    """A file name that a narrow page breaks between its parts."""
    return Markup("<wbr>").join(re.split(r"(?<=[-_.])", name))


def command(line: str) -> Markup:
    """A command that a narrow page breaks between its options."""
    program, *options = line.split(" --")
    spans = [Markup("<span>--{}</span>").format(option) for option in options]
    return Markup('<pre tabindex="0"><code>{}</code></pre>').format(Markup(" ").join([program, *spans]))


def releases(entries: Iterable[Entry]) -> list[Release]:
    ordered = sorted(entries, key=lambda entry: entry.distribution.version, reverse=True)
    found = []
    for version, group in groupby(ordered, key=lambda entry: entry.distribution.version):
        files = tuple(sorted(group, key=lambda entry: entry.distribution.filename))
        reasons = [entry.yanked for entry in files]
        found.append(Release(version, files, reasons[0] if all(reasons) else None))
    return found


def recommended(found: Sequence[Release]) -> Release | None:
    """The newest release that is finished and not yanked, else the newest that is not yanked."""
    usable = [release for release in found if release.yanked is None]
    finished = [release for release in usable if not release.version.is_prerelease]
    return next(iter(finished or usable), None)


def choices(release: Release) -> list[Choice]:
    """One wheel for each platform; of two, the one that older systems run too."""
    found = []
    for name, platform in definition().platforms.items():
        system, _, machine = name.partition("_")
        title = f"{_SYSTEMS.get(system, system)} on {_MACHINES.get(machine, machine)}"
        suited = [
            (glibc, entry)
            for entry in release.entries
            if entry.yanked is None and (glibc := _suits(entry.distribution, system, machine)) is not None
        ]
        if suited:
            glibc, entry = min(suited, key=lambda pair: pair[0])
            found.append(Choice(title, platform.host, entry, ".".join(map(str, glibc))))
    return found


def _suits(distribution: Distribution, system: str, machine: str) -> tuple[int, ...] | None:
    """The glibc that the wheel needs there, () on Windows; None when it does not fit."""
    fitting = [
        tag for tag in distribution.platforms if tag.startswith(system) and tag.endswith(f"_{machine}")
    ]
    platform = platform_of(fitting)
    return (platform.glibc or ()) if platform else None


class Pages:
    """The templates, filled in.

    ``url`` is where simple/ will be served, when that is known; ``files_url`` where the files are, when
    not beside it.
    """

    def __init__(self, url: str | None, files_url: str | None = None) -> None:
        self._url = url
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("tools.index"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._templates.filters |= {
            "url": partial(file_url, files_url=files_url),
            "address": partial(file_address, url=url, files_url=files_url),
            "breakable": breakable,
            "command": command,
            "megabytes": lambda size: f"{size / 1e6:.1f} MB",
        }

    def _render(self, template: str, **values: object) -> str:
        return self._templates.get_template(template).render(
            project=PROJECT, api_version=API_VERSION, **values
        )

    def root(self) -> str:
        return self._render("root.html")

    def project(self, entries: Sequence[Entry]) -> str:
        files = [
            (entry, sha256(entry.distribution.metadata).hexdigest() if entry.distribution.metadata else None)
            for entry in entries
        ]
        return self._render("project.html", files=files)

    def people(self, entries: Sequence[Entry]) -> str:
        found = releases(entries)
        best = recommended(found)
        taken = choices(best) if best else []
        sources = [e for e in best.entries if e.distribution.metadata is None] if best else []
        changed = max((entry.uploaded for entry in entries), default=None)
        return self._render(
            "people.html",
            url=self._url,
            best=best,
            choices=taken,
            sources=sources,
            facts=taken[0].entry.distribution if taken else None,
            releases=found,
            changed=changed,
        )
