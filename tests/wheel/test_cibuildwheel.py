"""nox -s cibuildwheel: what it says without an engine, an image or kernels, and what a container gets."""

from __future__ import annotations

import configparser
import io
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from email.message import Message
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
import typer
from mock_driver import toolchain
from typer.testing import CliRunner

from ci import run_cibuildwheel
from ci.container import debian, engine, official, pip_settings
from ci.container.errors import ContainerError
from tools.matrix.definition import definition
from tools.matrix.plan import expand

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
HERE = run_cibuildwheel.this_platform()


def program(folder: Path, name: str, script: str) -> Path:
    """A stand-in for a program of the system."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that holds only what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for variable in ("CIBW_CONTAINER_ENGINE", "CONTAINERS_CONF"):
        monkeypatch.delenv(variable, raising=False)
    return folder


class TestEngine:
    def test_none_says_what_to_install(self, path: Path) -> None:
        with pytest.raises(ContainerError, match=r"Neither docker nor podman runs here.*apt-get install"):
            engine.find_engine()

    def test_podman_where_docker_has_no_daemon(self, path: Path) -> None:
        program(path, "docker", "exit 1")
        program(path, "podman", "exit 0")
        assert engine.find_engine() == "podman"
        program(path, "docker", "exit 0")
        assert engine.find_engine() == "docker"

    def test_the_named_one(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(path, "docker", "exit 0")
        monkeypatch.setenv("CIBW_CONTAINER_ENGINE", "podman; create_args: --tty")
        with pytest.raises(ContainerError, match="names podman, but `podman version` fails"):
            engine.find_engine()
        monkeypatch.setenv("CIBW_CONTAINER_ENGINE", "lxc")
        with pytest.raises(ContainerError, match="names 'lxc'; it must be docker or podman"):
            engine.find_engine()

    def test_podman_without_a_runtime(self, path: Path, tmp_path: Path) -> None:
        with pytest.raises(ContainerError, match="neither runc nor crun was found"):
            engine.podman_settings(tmp_path)

    def test_limits_are_no_higher_than_the_machine_s(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import resource

        program(path, "runc", "exit 0")
        monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 2000))
        settings = Path(engine.podman_settings(tmp_path)["CONTAINERS_CONF"])
        told = tomllib.loads(settings.read_text(encoding="utf-8"))
        assert told["containers"]["default_ulimits"] == ["nofile=1000:1000", "nproc=1000:1000"]
        assert told["engine"]["runtime"] == "runc"

    def test_somebody_else_s_settings_stay(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CONTAINERS_CONF", "/etc/mine.conf")
        assert engine.podman_settings(tmp_path) == {}


class TestDebianImage:
    def test_a_python_that_no_debian_has(self) -> None:
        with pytest.raises(ContainerError, match=r"Debian has no Python 3\.12; choose one of 3\.11, 3\.13"):
            debian.image_name("3.12")

    def test_the_name_follows_the_recipe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = debian.image_name("3.11")
        assert before != debian.image_name("3.13")
        monkeypatch.setattr(debian, "PACKAGES", (*debian.PACKAGES, "git"))
        assert debian.image_name("3.11") != before

    def test_one_that_is_there_is_taken(self, path: Path, tmp_path: Path) -> None:
        program(path, "podman", "exit 0")
        assert debian.make_image("podman", "3.11", tmp_path, dict(os.environ)) == debian.image_name("3.11")

    def test_only_root_makes_one(self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(path, "podman", "exit 1")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(ContainerError, match="only root can make one"):
            debian.make_image("podman", "3.11", tmp_path, dict(os.environ))

    def test_without_debootstrap(self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(path, "podman", "exit 1")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        with pytest.raises(ContainerError, match=r"debootstrap.*is missing.*apt-get install"):
            debian.make_image("podman", "3.11", tmp_path, dict(os.environ))

    def test_debootstrap_that_fails_leaves_no_folder(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(path, "podman", "exit 1")
        program(path, "debootstrap", '/bin/mkdir -p "$4"; echo "E: Failed getting release file"; exit 1')
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        work = tmp_path / "work"
        with pytest.raises(ContainerError, match=r"debootstrap failed \(E: Failed getting release file\)"):
            debian.make_image("podman", "3.11", work, dict(os.environ))
        assert [entry.name for entry in work.iterdir()] == ["image.log"]

    def test_apt_s_mirror_is_taken(self, path: Path) -> None:
        assert debian.mirror() == []
        program(path, "apt-get", "echo http://mirror.example/debian/; echo http://other.example/")
        assert debian.mirror() == ["http://mirror.example/debian/"]


class TestOfficialImage:
    def test_the_pin_is_read_without_its_comment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resources = tmp_path / "cibuildwheel" / "resources"
        resources.mkdir(parents=True)
        (tmp_path / "cibuildwheel" / "__init__.py").touch()
        pins = "[x86_64]\nmanylinux_2_28 = registry.example/image@sha256:1  # 2026.10.26-1\n"
        (resources / "pinned_docker_images.cfg").write_text(pins)
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in [name for name in sys.modules if name.split(".")[0] == "cibuildwheel"]:
            monkeypatch.delitem(sys.modules, name)
        assert official.pinned_image("x86_64") == "registry.example/image@sha256:1"

    @pytest.mark.parametrize(
        ("error", "answers"),
        [
            (urllib.error.HTTPError("https://r.example", 401, "", Message(), io.BytesIO()), True),
            (urllib.error.URLError("no such host"), False),
            (TimeoutError(), False),
        ],
    )
    def test_a_registry_that_wants_a_login_is_there(
        self, error: Exception, answers: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(urllib.request, "urlopen", refuse)
        assert official.registry_answers("r.example/a/b@sha256:1") is answers

    def test_no_pull_where_the_registry_is_out_of_reach(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(path, "podman", '[ "$1" = pull ]')
        monkeypatch.setattr(official, "registry_answers", lambda image: False)
        assert not official.pull("podman", "r.example/a", dict(os.environ))
        monkeypatch.setattr(official, "registry_answers", lambda image: True)
        assert official.pull("podman", "r.example/a", dict(os.environ))


class TestPipSettings:
    @pytest.fixture(autouse=True)
    def _no_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    def test_what_pip_here_uses_is_mounted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wheels, index, bundle = tmp_path / "wheels", tmp_path / "index" / "simple", tmp_path / "ca.pem"
        wheels.mkdir()
        index.mkdir(parents=True)
        bundle.touch()
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
        monkeypatch.setenv("PIP_CERT", str(bundle))
        monkeypatch.setenv("PIP_FIND_LINKS", f"{wheels} /no/such/folder")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.as_uri())
        monkeypatch.setenv("PIP_INDEX_URL", "https://user:50%25@index.example/simple")
        monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))
        found = pip_settings.mounts(tmp_path / "work")
        written = tmp_path / "work" / "pip.conf"
        assert found == {
            bundle: pip_settings.CONTAINER_BUNDLE,
            wheels: wheels,
            index.parent: index.parent,
            written: Path("/etc/pip.conf"),
        }
        config = configparser.ConfigParser(interpolation=None)
        config.read(written)
        assert config["global"]["cert"] == str(pip_settings.CONTAINER_BUNDLE)
        assert config["global"]["index-url"] == "https://user:50%25@index.example/simple"
        assert "target" not in config["global"]
        assert written.stat().st_mode & 0o077 == 0


class TestCommand:
    @pytest.fixture
    def app(self) -> typer.Typer:
        app = typer.Typer()
        app.command()(run_cibuildwheel.command)
        return app

    def test_another_machine_s_platform(self, app: typer.Typer) -> None:
        ran = CliRunner().invoke(app, ["--platform", "win_arm64"])
        assert ran.exit_code == 1
        assert f"builds for the machine it runs on, {HERE}, not for win_arm64" in ran.output

    def test_a_folder_without_kernels(self, app: typer.Typer, tmp_path: Path) -> None:
        ran = CliRunner().invoke(app, ["--kernels", str(tmp_path)])
        assert ran.exit_code == 1
        assert "holds no manifest.json" in ran.output

    def test_no_engine(
        self, app: typer.Typer, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(run_cibuildwheel, "WORK", tmp_path / "work")
        ran = CliRunner().invoke(app, ["--output", str(tmp_path / "out")])
        assert ran.exit_code == 1
        assert "Neither docker nor podman runs here" in ran.output
        assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def identifiers() -> set[str]:
    """Those of all builds that the cibuildwheel of this Python knows, without asking for any by name."""
    if not list(metadata.distributions(name="cibuildwheel")):  # other tests put a stand-in on the path
        pytest.skip("cibuildwheel is not installed; it needs Python 3.11")
    found: set[str] = set()
    for system, archs in (("linux", "x86_64,aarch64"), ("windows", "AMD64,ARM64")):
        ran = subprocess.run(
            [sys.executable, "-m", "cibuildwheel", "--platform", system, "--archs", archs,
             "--print-build-identifiers", str(ROOT)],
            env=os.environ | {"CIBW_BUILD": "*", "CIBW_SKIP": ""}, check=True, capture_output=True, text=True,
        )  # fmt: skip
        found.update(ran.stdout.split())
    return found


def test_cibuildwheel_has_a_build_for_every_cell_that_it_serves(identifiers: set[str]) -> None:
    for event in definition().events:
        for cell in expand(definition(), event).cells:
            if cell.cibuildwheel:
                assert run_cibuildwheel.identifier(cell.python, cell.platform) in identifiers, cell.id
            else:
                with pytest.raises(run_cibuildwheel.WheelError, match=f"not build for Python {cell.python}"):
                    run_cibuildwheel.identifier(cell.python, cell.platform)
                tag = f"cp{cell.python.replace('.', '')}-{cell.platform}"
                assert tag not in identifiers, f"{cell.id}: cibuildwheel can do it"


@pytest.mark.parametrize(
    ("name", "target"),
    [("manylinux_x86_64", "x86_64-linux-gnu.2.17"), ("win_amd64", "x86_64-windows-gnu")],
)
def test_ready_kernels_get_the_launcher_that_zig_compiles(name: str, target: str) -> None:
    settings = run_cibuildwheel.zig_settings(name, ROOT.as_posix())
    assert settings["FLASH_ATTN_ZIG_TARGET"] == target
    assert Path(settings["CMAKE_TOOLCHAIN_FILE"]).is_file()


class TestOnWindows:
    """What cibuildwheel is asked for there: no container, and zig only where the kernels are ready."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
        settings: dict[str, str] = {}

        def in_cibuildwheel(archive: Path, environment: dict[str, str]) -> Path:
            settings.update(environment)
            return archive

        def no_container(*_: object) -> dict[str, str]:
            raise AssertionError("cibuildwheel needs no container on Windows")

        monkeypatch.setattr(run_cibuildwheel, "make_sdist", lambda environment: tmp_path / "x.tar.gz")
        monkeypatch.setattr(run_cibuildwheel, "in_cibuildwheel", in_cibuildwheel)
        monkeypatch.setattr(run_cibuildwheel, "container_environment", no_container)
        monkeypatch.setattr(run_cibuildwheel, "run", lambda command, environment, what: None)
        for name in ("CMAKE_TOOLCHAIN_FILE", "FLASH_ATTN_ZIG_TARGET", "FLASH_ATTN_KERNELS_DIR"):
            monkeypatch.delenv(name, raising=False)
        return settings

    def test_ready_kernels_and_zig(self, asked: dict[str, str], tmp_path: Path) -> None:
        run_cibuildwheel.build("win_amd64", "3.14t", tmp_path, run_cibuildwheel.Clock())
        assert asked["CIBW_BUILD"] == "cp314t-win_amd64"
        assert asked["FLASH_ATTN_KERNELS_DIR"] == str(tmp_path)
        assert asked["CMAKE_TOOLCHAIN_FILE"] == (ROOT / "cmake" / "zig.cmake").as_posix()
        assert asked["FLASH_ATTN_ZIG_TARGET"] == "x86_64-windows-gnu"

    def test_kernels_to_compile_and_the_machine_s_own_compiler(self, asked: dict[str, str]) -> None:
        run_cibuildwheel.build("win_amd64", "3.11", None, run_cibuildwheel.Clock())
        assert asked["CIBW_BUILD"] == "cp311-win_amd64"
        assert not {"CMAKE_TOOLCHAIN_FILE", "FLASH_ATTN_ZIG_TARGET", "FLASH_ATTN_KERNELS_DIR"} & set(asked)


def test_a_torch_that_there_is_not_is_named() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "ci/hooks/install_torch.py"],
        env=os.environ | {"FLASH_ATTN_TEST_TORCH": "--no-index --find-links=/no/folder torch==0.0.1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("PyTorch (--no-index --find-links=/no/folder torch==0.0.1;")


def test_each_platform_of_the_matrix_is_built_once() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    assert settings["archs"] == ["auto64"]  # of each system, that of the machine
    for name in definition().platforms:
        pythons = [f"cp3{minor}" for minor in range(10, 15)]
        built = [
            python for python in pythons for one in settings["build"] if fnmatch(f"{python}-{name}", one)
        ]
        assert len(built) == 1, name


def test_every_platform_tests_with_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells without cibuildwheel run that folder too. What needs a compiler that Windows lacks is skipped."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    commands = [one["test-command"] for one in (settings, settings["linux"]) if "test-command" in one]
    assert [command.split()[-1] for command in commands] == ["{project}/tests/cpu"]
    assert "windows" not in settings
    assert "nox -s tests -- tests/cpu\n" in (ROOT / ".github/workflows/build.yml").read_text(encoding="utf-8")
    for path in (ROOT / "tests" / "cpu").glob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"toolchain\.(mock_driver|launcher)|MockDriver|mock_driver\.package", text):
            assert "skipif(toolchain.compiler() is None" in text, path
    monkeypatch.setattr(sys, "platform", "win32")
    assert toolchain.compiler() is None
