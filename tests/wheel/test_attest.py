"""Bill of materials and provenance: valid by the standards, true of the wheel, refused once they are not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage
from plain_wheel import PLATFORMS, manifest, plain_wheel
from typer.testing import CliRunner, Result

from tools.__main__ import build_app
from tools.trust import TrustError
from tools.trust.check import check
from tools.trust.source import read_source
from tools.verify.expected import CHECKOUT

MANIFEST = "flash_attn/kernels/manifest.json"
Change = Callable[[Any], Any]


def run(*arguments: object) -> Result:
    command = [str(argument) for argument in arguments]
    return CliRunner().invoke(build_app(command), command)


def git(root: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(root), *settings, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _at_a_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a runner too: the statement names who builds."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with as much of this project as a wheel's facts come from."""
    root = tmp_path / "checkout"
    for name in ("cmake/manifest.py", "csrc/flash_attn/kernels.json", "csrc/flash_attn/src/flash.h"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, root / name)
    (root / "flash_attn").mkdir()
    (root / "flash_attn/__init__.py").write_text('"""Attention."""\n\n__version__ = "2.9.0"\n')
    (root / "flash_attn_2_cuda.py").write_text("# names of old\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "All of it")
    return root


@pytest.fixture
def build(checkout: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a wheel of what the checkout holds; arguments as plain_wheel takes them."""

    def make(folder: str = "dist", version: str = "2.9.0", **changes: Any) -> Path:
        files = {
            name: (checkout / name).read_bytes()
            for name in ("flash_attn/__init__.py", "flash_attn_2_cuda.py")
        }
        right = manifest(version) | {"source_sha256": read_source(checkout).kernel_sources}
        files[MANIFEST] = json.dumps(right).encode()
        platform = changes.pop("platform", PLATFORMS[0])
        return plain_wheel(tmp_path / folder, version, platform, files=files | changes.pop("files", {}))

    return make


@pytest.fixture
def wheel(build: Callable[..., Path], checkout: Path) -> Path:
    made = build()
    assert run("attest", made, "--source", checkout).exit_code == 0
    return made


def beside(wheel: Path, ending: str) -> Path:
    return wheel.with_name(f"{wheel.name}.{ending}.json")


def load(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_they_are_valid_by_their_standards(wheel: Path) -> None:
    bill = beside(wheel, "cdx").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    statement = load(beside(wheel, "provenance"))
    Statement.copy_from_pb(json_format.ParseDict(statement, StatementMessage())).validate()
    predicate = json_format.ParseDict(statement["predicate"], Provenance())  # refuses fields that SLSA lacks
    assert predicate.run_details.builder.id == "urn:flash-attn:builder:desk"


def test_they_say_what_the_wheel_is(wheel: Path, checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    statement = load(beside(wheel, "provenance"))
    digest = sha256(wheel.read_bytes()).hexdigest()
    assert statement["subject"] == [{"name": wheel.name, "digest": {"sha256": digest}}]
    build = statement["predicate"]["buildDefinition"]
    assert build["externalParameters"]["toolkit"] == "13.4.92"
    assert build["externalParameters"]["architectures"] == {"sass": ["80", "90"], "ptx": ["90"]}
    assert build["resolvedDependencies"][0] == {"name": "source", "digest": {"gitCommit": commit}}
    (byproduct,) = statement["predicate"]["runDetails"]["byproducts"]
    assert byproduct["digest"]["sha256"] == sha256(beside(wheel, "cdx").read_bytes()).hexdigest()
    bill = load(beside(wheel, "cdx"))
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    files = {part["name"] for part in bill["components"] if part["type"] == "file"}
    assert files == {"flash_attn/lib/libflash_attn.so", "flash_attn/kernels/one.fatbin", MANIFEST}
    (torch,) = [part for part in bill["components"] if part["name"] == "torch"]
    assert torch["properties"] == [{"name": "flash-attn:requirement", "value": "torch>=2.10"}]


def test_the_same_wheel_and_commit_give_the_same_bytes(wheel: Path, checkout: Path) -> None:
    before = beside(wheel, "cdx").read_bytes(), beside(wheel, "provenance").read_bytes()
    assert run("attest", wheel, "--source", checkout).exit_code == 0
    assert (beside(wheel, "cdx").read_bytes(), beside(wheel, "provenance").read_bytes()) == before
    assert sorted(path.name for path in wheel.parent.iterdir()) == [
        wheel.name, f"{wheel.name}.cdx.json", f"{wheel.name}.provenance.json"
    ]  # fmt: skip


def test_verify_shows_what_is_attested(wheel: Path, checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    done = run("verify", "--provenance", "--commit", commit, wheel)
    assert done.exit_code == 0, done.output
    assert f"{wheel.name}: commit {commit}, nvcc 13.4.92, SHA-256 " in done.output
    assert load_output(run("verify", "--provenance", "--json", wheel)) == {
        "ok": True,
        "wheels": [
            {
                "file": wheel.name,
                "sha256": sha256(wheel.read_bytes()).hexdigest(),
                "commit": commit,
                "builder": "urn:flash-attn:builder:desk",
                "kernel_sources": read_source(checkout).kernel_sources,
                "toolkit": "13.4.92",
            }
        ],
    }
    other = "0" * 40
    done = run("verify", "--provenance", "--commit", other, wheel)
    assert done.exit_code == 1
    path = beside(wheel, "provenance")
    assert (
        done.output
        == f"error: {path} says that the wheel was built from commit {commit}; expected {other}.\n"
    )


def load_output(done: Result) -> Any:
    return json.loads(done.stdout)


def test_a_workflow_is_named_and_no_secret_is(
    build: Callable[..., Path], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build()
    variables = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": "someone/flash-attn",
        "GITHUB_WORKFLOW_REF": "someone/flash-attn/.github/workflows/release.yml@refs/tags/v2.9.0",
        "GITHUB_RUN_ID": "7",
        "GITHUB_RUN_ATTEMPT": "2",
        "GITHUB_TOKEN": "secret-1",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "secret-2",
        "PIP_INDEX_URL": "https://user:secret-3@mirror.example/simple",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    git(checkout, "remote", "add", "origin", "https://user:secret-4@example.org/x")
    done = run("attest", made, "--source", checkout)
    shown = run("verify", "--provenance", made)
    assert (done.exit_code, shown.exit_code) == (0, 0)
    path = beside(made, "provenance")
    for text in (done.output, shown.output, path.read_text(), beside(made, "cdx").read_text()):
        assert "secret" not in text
        assert "mirror" not in text
    predicate = load(path)["predicate"]
    assert predicate["runDetails"]["builder"]["id"] == (
        "https://github.com/someone/flash-attn/.github/workflows/release.yml@refs/tags/v2.9.0"
    )
    assert predicate["runDetails"]["metadata"]["invocationId"] == (
        "https://github.com/someone/flash-attn/actions/runs/7/attempts/2"
    )
    source = predicate["buildDefinition"]["resolvedDependencies"][0]
    assert source["uri"] == "git+https://github.com/someone/flash-attn"


def test_a_wheel_changed_after_it_was_attested(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    """Refused by verify, by the index, and by attest itself, which would make the change look right."""
    attested = sha256(wheel.read_bytes()).hexdigest()
    wheel.write_bytes(wheel.read_bytes() + b" ")
    found = sha256(wheel.read_bytes()).hexdigest()
    said = f"error: {wheel} has SHA-256 {found}, but {wheel.name}.provenance.json"
    for command in (
        ("verify", "--provenance", wheel),
        ("index", wheel, "--output", tmp_path / "site"),
        ("attest", wheel, "--source", checkout),
    ):
        done = run(*command)
        assert done.exit_code == 1
        assert done.output.startswith(said)
        assert attested in done.output
        assert "the wheel was changed after it was attested; " in done.output
    assert not (tmp_path / "site").exists()
    assert load(beside(wheel, "provenance"))["subject"][0]["digest"]["sha256"] == attested


def test_the_index_publishes_what_is_attested_and_can_insist(
    wheel: Path, build: Callable[..., Path], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    assert run("index", wheel, "--attested", "--output", site).exit_code == 0
    for ending in ("cdx", "provenance"):
        path = beside(wheel, ending)
        assert (site / "files" / path.name).read_bytes() == path.read_bytes()
    assert run("verify", "--provenance", site / "files" / wheel.name).exit_code == 0
    bare = build("bare", platform="win_amd64")
    done = run("index", bare, "--attested", "--output", site)
    assert done.exit_code == 1
    assert f"error: {beside(bare, 'provenance')} can't be read (No such file or directory)" in done.output
    assert not (site / "files" / bare.name).exists()
    assert run("index", bare, "--output", site).exit_code == 0


# Who built it is all that a statement may say freely: the rest is in the wheel too, or checked otherwise.
FREE = ("predicate", "runDetails", "builder", "id")
NAMES_THE_COMMIT = ("predicate", "buildDefinition", "resolvedDependencies", 0, "digest", "gitCommit")


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, (*path, number))
    else:
        yield path


def parent_of(document: Any, path: tuple[str | int, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def test_every_changed_leaf_of_the_statement_is_refused(wheel: Path) -> None:
    path = beside(wheel, "provenance")
    good = path.read_bytes()
    places = list(leaves(json.loads(good)))
    assert FREE in places
    assert NAMES_THE_COMMIT in places
    for place in places:
        for new in ("f" * 40, "", None, 1, ["x"], {"x": "x"}):
            statement = json.loads(good)
            parent_of(statement, place)[place[-1]] = new
            path.write_text(json.dumps(statement))
            if place == FREE:
                continue
            with pytest.raises(TrustError) as refused:
                check(wheel)
            assert str(path.parent) in str(refused.value) or wheel.name in str(refused.value), place
            assert "\n" not in str(refused.value)
        statement = json.loads(good)
        del parent_of(statement, place)[place[-1]]
        path.write_text(json.dumps(statement))
        with pytest.raises(TrustError):
            check(wheel)
    path.write_bytes(good)
    check(wheel)


def test_a_bill_of_materials_that_is_not_the_attested_one(wheel: Path) -> None:
    path = beside(wheel, "cdx")
    good = path.read_bytes()
    changed = good + b"\n"
    path.write_bytes(changed)
    with pytest.raises(TrustError) as refused:
        check(wheel)
    assert str(refused.value) == (
        f"{path} has '{sha256(changed).hexdigest()}' for SHA-256; expected "
        f"'{sha256(good).hexdigest()}', as {wheel.name}.provenance.json has it."
    )
    path.unlink()
    with pytest.raises(TrustError, match=r"cdx\.json can't be read \(No such file or directory\)"):
        check(wheel)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda bill: bill.update(bomFormat="SPDX"), "has 'SPDX' for bomFormat; expected 'CycloneDX'"),
        (lambda bill: bill["metadata"]["component"].update(version="2.9.1"), "has '2.9.1' for the version"),
        (lambda bill: bill["metadata"]["component"]["hashes"].clear(), "has None for the wheel's SHA-256"),
        (lambda bill: bill["metadata"]["component"]["properties"].pop(0), "has None for flash-attn:commit"),
        (
            lambda bill: bill["metadata"]["component"]["properties"].pop(),
            "has None for flash-attn:kernel-sources",
        ),
        (
            lambda bill: bill["components"].clear(),
            "has None for the SHA-256 of flash_attn/kernels/manifest.json",
        ),
        (lambda bill: bill.update(components=3), "has no list in components"),
        (lambda bill: bill.pop("metadata"), "lacks metadata"),
    ],
)
def test_a_bill_that_is_attested_but_not_true(wheel: Path, change: Change, said: str) -> None:
    """Whoever writes both files anew can't make them say something else of the wheel."""
    path, statement_path = beside(wheel, "cdx"), beside(wheel, "provenance")
    bill, statement = load(path), load(statement_path)
    change(bill)
    path.write_text(json.dumps(bill))
    statement["predicate"]["runDetails"]["byproducts"][0]["digest"]["sha256"] = sha256(
        path.read_bytes()
    ).hexdigest()
    statement_path.write_text(json.dumps(statement))
    with pytest.raises(TrustError) as refused:
        check(wheel)
    assert f"{path} {said}" in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'"text"', b"9" * 5000, b"{}"]
)
def test_documents_that_are_none(wheel: Path, content: bytes) -> None:
    for ending in ("provenance", "cdx"):
        path = beside(wheel, ending)
        good = path.read_bytes()
        path.write_bytes(content)
        done = run("verify", "--provenance", wheel)
        assert done.exit_code == 1
        (line,) = done.output.splitlines()
        assert line.startswith(f"error: {path} ")
        path.write_bytes(good)


class TestAttestRefuses:
    """And writes nothing, for no wheel."""

    def refused(self, *arguments: object) -> str:
        done = run("attest", *arguments)
        assert done.exit_code == 1
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        (line,) = done.output.splitlines()
        return str(line)

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("csrc/flash_attn/src/new.h", b"1"),
            ("flash_attn_2_cuda.py", b"2"),
            ("flash_attn/__init__.py", b"3"),
        ],
    )
    def test_a_checkout_with_changes(
        self, build: Callable[..., Path], checkout: Path, name: str, content: bytes
    ) -> None:
        made = build()
        (checkout / name).write_bytes(content)
        (checkout / "notes.txt").touch()  # nothing that a build reads
        line = self.refused(made, "--source", checkout)
        assert line.startswith(f"error: {checkout / name} differs from commit ")
        assert [path.name for path in made.parent.iterdir()] == [made.name]

    def test_a_wheel_of_another_commit(self, build: Callable[..., Path], checkout: Path) -> None:
        good, made = build("a"), build("b")
        header = checkout / "csrc/flash_attn/src/flash.h"
        old = read_source(checkout).kernel_sources
        header.write_text("// other\n")
        git(checkout, "commit", "-qam", "Other kernels")
        new = read_source(checkout).kernel_sources
        line = self.refused(made, "--source", checkout)
        assert f"{made}: its kernels were compiled from sources with SHA-256 {old}, but commit " in line
        assert f" has {new}; build it from this commit." in line
        for ending in ("cdx", "provenance"):
            assert not beside(good, ending).exists()

    def test_other_python_files(self, build: Callable[..., Path], checkout: Path) -> None:
        good = build("a")
        for number, (files, said) in enumerate(
            (
                ({"flash_attn_2_cuda.py": b"evil"}, "flash_attn_2_cuda.py is not the file of commit"),
                ({"flash_attn/evil.py": b"evil"}, "flash_attn/evil.py is in the wheel but not in commit"),
            )
        ):
            bad = build(f"bad{number}", files=files)
            assert f"error: {bad}: {said}" in self.refused(good, bad, "--source", checkout)
        (checkout / "flash_attn/more.py").touch()
        git(checkout, "add", ".")
        git(checkout, "commit", "-qm", "One more")
        assert "flash_attn/more.py of commit " in self.refused(good, "--source", checkout)
        assert [path.name for path in good.parent.iterdir()] == [good.name]

    def test_no_wheel_or_no_checkout(
        self, build: Callable[..., Path], checkout: Path, tmp_path: Path
    ) -> None:
        made = build()
        assert "none.whl: the file name is not that of a wheel" in self.refused(
            tmp_path / "none.whl", "--source", checkout
        )
        for text, said in ((b"{", "is not JSON"), (b"[]", "is no JSON object"), (b"{}", "lacks something")):
            bad = build("bad", files={MANIFEST: text})
            assert f"{bad}: {MANIFEST} {said}" in self.refused(bad, "--source", checkout)
        (tmp_path / "plain").mkdir()
        line = self.refused(made, "--source", tmp_path / "plain")
        assert f"{tmp_path / 'plain'} gives no commit to attest (" in line


def test_a_nightly_may_set_the_version(build: Callable[..., Path], checkout: Path) -> None:
    init = checkout / "flash_attn/__init__.py"
    init.write_text(init.read_text().replace("2.9.0", "2.9.0.dev20261203"))
    made = build("dist", "2.9.0.dev20261203")
    done = run("attest", made, "--source", checkout)
    assert done.exit_code == 0, done.output
    assert check(made).facts.version == "2.9.0.dev20261203"
    init.write_text(init.read_text() + "import os\n")
    assert "__init__.py differs from commit" in run("attest", made, "--source", checkout).output


@pytest.mark.parametrize("commit", ["", "main", "0" * 12, "A" * 40])
def test_a_commit_that_is_not_whole(wheel: Path, commit: str) -> None:
    done = run("verify", "--provenance", wheel, "--commit", commit)
    assert done.exit_code == 1
    assert done.stderr == (
        f"error: {commit!r} is no commit; give all of its 40 hexadecimal digits, as git rev-parse prints "
        "them.\n"
    )


def test_a_wheel_without_provenance_says_who_writes_it(wheel: Path) -> None:
    path = wheel.with_name(f"{wheel.name}.provenance.json")
    path.unlink()
    said = run("verify", "--provenance", wheel).stderr
    assert said.startswith(f"error: {path} can't be read (No such file")
    assert said.endswith("where it was built, write it with python -m tools attest.\n")
    wheel.unlink()
    said = run("verify", "--provenance", wheel).stderr
    assert said.startswith(f"error: {wheel} can't be read (No such file or directory)")


def test_options_that_have_no_meaning(wheel: Path) -> None:
    for arguments in (("--provenance", "--archs", "90"), ("--commit", "0" * 40)):
        assert run("verify", wheel, *arguments).exit_code == 2


def test_verify_needs_no_cuda_and_no_network(wheel: Path) -> None:
    """Nothing but Python's own library and packaging is imported, and no socket is opened."""
    code = (
        "import socket, sys\n"
        "socket.socket = None\n"
        "from tools.trust.report import judge\n"
        f"from pathlib import Path\nstatus = judge([Path({str(wheel)!r})], None, False)\n"
        "print(status, sorted({'cyclonedx', 'elftools', 'pefile', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": ""},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
