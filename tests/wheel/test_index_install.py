"""pip and uv install from the index: over HTTP, as HTML and as JSON, and from a folder."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from plain_wheel import PLATFORMS, plain_sdist, plain_wheel

from tools.verify.expected import CHECKOUT

JSON = "application/vnd.pypi.simple.v1+json"
MINE = next(
    (
        name
        for name in PLATFORMS
        if name.endswith(sysconfig.get_platform().split("-", 1)[1].replace("-", "_"))
    ),
    None,
)
pytestmark = pytest.mark.skipif(MINE is None, reason="no wheel is made for this platform")
Install = Callable[..., "subprocess.CompletedProcess[str]"]


class Handler(SimpleHTTPRequestHandler):
    """A static server; with ``negotiate`` it gives the JSON of a folder to those who accept it."""

    negotiate = False
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.negotiate and self.path.endswith("/") and JSON in self.headers.get("Accept", ""):
            self.path += "index.json"
        super().do_GET()

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        return JSON if self.negotiate and str(path).endswith("index.json") else super().guess_type(path)

    def log_message(self, *_: object) -> None:
        """Nothing: the requests are in ``asked``."""


@dataclass
class Served:
    url: str
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four platforms of two versions, of which the newer is yanked, and one that no Python may take."""
    dist = tmp_path_factory.mktemp("dist")
    for platform in PLATFORMS:
        plain_wheel(dist, "2.9.0", platform)
        plain_wheel(dist, "2.9.1", platform)
        plain_wheel(dist, "2.9.2", platform, requires_python=">=3.99")
        plain_wheel(dist, "2.10.0.dev20270101", platform)
    plain_sdist(dist, "2.9.0")
    made = tmp_path_factory.mktemp("index") / "site"
    command = [
        sys.executable,
        "-m",
        "tools",
        "index",
        str(dist),
        "--output",
        str(made),
        "--yank",
        "2.9.1=bad",
    ]
    subprocess.run(command, cwd=CHECKOUT, check=True, timeout=60)
    return made


@pytest.fixture(params=["html", "json"])
def served(site: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    handler = type("Asked", (Handler,), {"asked": [], "negotiate": request.param == "json"})
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Served(f"http://127.0.0.1:{server.server_port}/simple/", handler.asked)  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


@pytest.fixture(params=["pip", "uv"])
def install(request: pytest.FixtureRequest, tmp_path: Path) -> Install:
    """Installs into a folder and returns how that went, with no index and no cache but what is asked for."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_")) and not name.lower().endswith("_proxy")
    }
    environment |= {
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    tool = {
        "pip": ("pip", "install", "--no-cache-dir", "--disable-pip-version-check"),
        "uv": ("uv", "pip", "install", "--python", sys.executable),
    }[request.param]

    def run(
        *arguments: str, project: str = "flash-attn", dependencies: bool = False
    ) -> subprocess.CompletedProcess[str]:
        alone = () if dependencies else ("--no-deps",)
        return subprocess.run(
            [sys.executable, "-m", *tool, *alone, "--target", str(tmp_path / "to"), *arguments, project],
            env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def installed(tmp_path: Path) -> str:
    (found,) = (tmp_path / "to").glob("flash_attn-*.dist-info")
    assert (tmp_path / "to/flash_attn/kernels/manifest.json").is_file()
    return found.name.split("-")[1].removesuffix(".dist")


def test_over_http(install: Install, served: Served, tmp_path: Path) -> None:
    """The version that is neither yanked nor for other Pythons nor for testing, for this platform."""
    done = install("--index-url", served.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed(tmp_path) == "2.9.0"
    wheels = {path for path in served.asked if path.endswith(".whl")}
    assert wheels == {f"/files/flash_attn-2.9.0-py3-none-{MINE}.whl"}


def test_metadata_is_read_without_the_wheel(install: Install, served: Served) -> None:
    """torch is not to be had here; that it is needed is learnt from the file beside the wheel."""
    done = install("--index-url", served.url, dependencies=True)
    assert done.returncode != 0
    assert "torch" in done.stdout + done.stderr
    assert f"/files/flash_attn-2.9.0-py3-none-{MINE}.whl.metadata" in served.asked
    assert not [path for path in served.asked if path.endswith(".whl")]


def test_a_nightly(install: Install, served: Served, tmp_path: Path) -> None:
    done = install("--index-url", served.url, "--pre")
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed(tmp_path) == "2.10.0.dev20270101"


def test_a_yanked_version_says_why(install: Install, served: Served, tmp_path: Path) -> None:
    done = install("--index-url", served.url, project="flash-attn==2.9.1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed(tmp_path) == "2.9.1"
    assert "bad" in done.stdout + done.stderr


@pytest.mark.parametrize("form", ["find-links", "file"])
def test_from_a_folder(install: Install, site: Path, tmp_path: Path, form: str) -> None:
    if form == "file":
        done = install("--index-url", (site / "simple").as_uri())
    else:  # a folder of files says nothing of yanks
        done = install("--no-index", "--find-links", str(site / "files"), project="flash-attn<2.9.1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed(tmp_path) == "2.9.0"


def test_a_changed_file_is_not_installed(install: Install, site: Path, tmp_path: Path) -> None:
    """What the hashes are for: the installer itself refuses a wheel that is not the published one."""
    copy = Path(shutil.copytree(site, tmp_path / "copy"))
    plain_wheel(copy / "files", "2.9.0", str(MINE), files={"flash_attn/evil.py": b""})
    done = install("--index-url", (copy / "simple").as_uri())
    assert done.returncode != 0
    assert "hash" in (done.stdout + done.stderr).lower()
    assert not (tmp_path / "to/flash_attn").exists()
