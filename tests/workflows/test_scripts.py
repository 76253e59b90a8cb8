"""The scripts that workflows run, against a stand-in for gh: the index, and a broken nightly's issue."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from plain_wheel import plain_sdist, plain_wheel

from tools.trust import provenance_of, sbom_of
from tools.trust.builder import find_builder
from tools.trust.provenance import provenance
from tools.trust.sbom import sbom
from tools.trust.wheel_facts import read_facts

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]
PLATFORM = "manylinux_2_17_x86_64"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the scripts run on Linux runners alone")


@pytest.fixture
def gh(tmp_path: Path) -> Path:
    """Folder of what the stand-in for gh keeps."""
    home = tmp_path / "gh"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "gh"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/workflows/fake_gh.py" "$@"\n')
    program.chmod(0o755)
    return home


@pytest.fixture
def run(gh: Path) -> Run:
    def run_script(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(gh / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {
            **os.environ, "PATH": path, "FAKE_GH": str(gh), "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_SERVER_URL": "https://github.example", "GITHUB_RUN_ID": "12", "GITHUB_SHA": "a" * 40,
            **more,
        }  # fmt: skip
        command = ["bash", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    return run_script


def attested_wheel(folder: Path, version: str, **changes: object) -> Path:
    wheel = plain_wheel(folder, version=version, platform=PLATFORM, **changes)
    facts = read_facts(wheel)
    bill = sbom(facts, "a" * 40)
    sbom_of(wheel).write_bytes(bill)
    provenance_of(wheel).write_bytes(provenance(facts, "a" * 40, find_builder({}), bill))
    return wheel


def dist(folder: Path, day: int) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    attested_wheel(folder, f"2.9.0.dev202612{day:02}")
    return folder


def kept(gh: Path) -> dict[str, bytes] | None:
    """The release's assets; None where there is no such release."""
    assets = gh / "assets"
    return {path.name: path.read_bytes() for path in assets.iterdir()} if assets.exists() else None


def wheels(assets: Path) -> list[str]:
    return sorted(path.name for path in assets.glob("*.whl"))


def offered(site: Path) -> list[str]:
    return sorted(
        file["filename"]
        for file in json.loads((site / "simple" / "flash-attn" / "index.json").read_text())["files"]
    )


def test_the_index_grows_and_its_links_lead_to_the_release(run: Run, gh: Path, tmp_path: Path) -> None:
    for day in (1, 2):
        site = tmp_path / f"site{day}"
        ran = run("ci/publish_index.sh", dist(tmp_path / "dist", day), site)
        assert ran.returncode == 0, ran.stderr
        assert offered(site) == wheels(gh / "assets")
        assert len(offered(site)) == day
        assert not (site / "files").exists()
    page = (site / "simple" / "flash-attn" / "index.html").read_text()
    for name in offered(site):
        assert f'href="https://github.example/owner/name/releases/download/index/{name}#sha256=' in page
        assert (gh / "assets" / f"{name}.metadata").is_file()


def test_a_source_distribution_is_offered_too(run: Run, gh: Path, tmp_path: Path) -> None:
    sdist = plain_sdist(dist(tmp_path / "one", 1))
    for folder in (sdist.parent, dist(tmp_path / "two", 2)):
        ran = run("ci/publish_index.sh", folder, tmp_path / f"site-{folder.name}")
        assert ran.returncode == 0, ran.stderr
        assert sdist.name in offered(tmp_path / f"site-{folder.name}")
        assert (gh / "assets" / sdist.name).read_bytes() == sdist.read_bytes()


def test_what_falls_out_of_the_index_leaves_the_release(run: Run, gh: Path, tmp_path: Path) -> None:
    every = tmp_path / "dist"
    every.mkdir()
    for day in range(1, 31):
        attested_wheel(every, f"2.9.0.dev202611{day:02}")
    assert run("ci/publish_index.sh", every, tmp_path / "site1").returncode == 0
    oldest = wheels(gh / "assets")[0]
    ran = run("ci/publish_index.sh", dist(every, 1), tmp_path / "site2")
    assert ran.returncode == 0, ran.stderr
    assert len(wheels(gh / "assets")) == 30
    assert oldest not in wheels(gh / "assets")
    assert offered(tmp_path / "site2") == wheels(gh / "assets")


def test_a_run_after_an_interrupted_one_cleans_up(run: Run, gh: Path, tmp_path: Path) -> None:
    assert run("ci/publish_index.sh", dist(tmp_path / "dist", 1), tmp_path / "site1").returncode == 0
    two = dist(tmp_path / "dist", 2)
    ran = run("ci/publish_index.sh", two, tmp_path / "site2", FAKE_GH_FAILS_AT="simple.tar.gz")
    assert ran.returncode != 0
    assert len(wheels(gh / "assets")) == 2
    ran = run("ci/publish_index.sh", dist(tmp_path / "dist", 3), tmp_path / "site3")
    assert ran.returncode == 0, ran.stderr
    assert offered(tmp_path / "site3") == wheels(gh / "assets")
    assert [name.split("-")[1][-2:] for name in wheels(gh / "assets")] == ["01", "03"]


def test_a_file_that_would_replace_another_changes_nothing(run: Run, gh: Path, tmp_path: Path) -> None:
    one = dist(tmp_path / "dist", 1)
    assert run("ci/publish_index.sh", one, tmp_path / "site1").returncode == 0
    before = kept(gh)
    wheel = attested_wheel(one, "2.9.0.dev20261201", files={"flash_attn/new.py": b"1"})
    for mode in ("check", "publish"):
        ran = run("ci/publish_index.sh", one, tmp_path / f"site-{mode}", mode)
        assert ran.returncode != 0
        assert str(wheel) in ran.stderr
        assert "what is published never changes" in ran.stderr
        assert kept(gh) == before


@pytest.mark.parametrize("mode", ["check", "publish"])
def test_an_outage_is_not_an_index_that_is_not_there(run: Run, gh: Path, tmp_path: Path, mode: str) -> None:
    assert run("ci/publish_index.sh", dist(tmp_path / "dist", 1), tmp_path / "site1").returncode == 0
    before = kept(gh)
    folder = dist(tmp_path / "dist", 2)
    ran = run("ci/publish_index.sh", folder, tmp_path / "site2", mode, FAKE_GH_FAILS_AT="list")
    assert ran.returncode != 0
    assert kept(gh) == before


@pytest.mark.parametrize("published", [False, True])
def test_a_wheel_that_is_not_the_attested_one_changes_nothing(
    run: Run, gh: Path, tmp_path: Path, published: bool
) -> None:
    if published:
        assert run("ci/publish_index.sh", dist(tmp_path / "dist", 1), tmp_path / "site1").returncode == 0
    before = kept(gh)
    folder = dist(tmp_path / "dist", 2)
    wheel = next(folder.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b" ")
    ran = run("ci/publish_index.sh", folder, tmp_path / "site2")
    assert ran.returncode != 0
    assert ran.stderr.splitlines()[-1].startswith(f"error: {wheel} has SHA-256 ")
    assert kept(gh) == before
    provenance_of(wheel).unlink()
    ran = run("ci/publish_index.sh", folder, tmp_path / "site3")
    assert ran.returncode != 0
    assert ran.stderr.splitlines()[-1].startswith(f"error: {provenance_of(wheel)} can't be read")
    assert kept(gh) == before


def test_a_check_says_the_same_and_changes_nothing(run: Run, gh: Path, tmp_path: Path) -> None:
    one, two = dist(tmp_path / "one", 1), dist(tmp_path / "two", 2)
    assert run("ci/publish_index.sh", one, tmp_path / "site0", "check").returncode == 0
    assert kept(gh) is None
    assert run("ci/publish_index.sh", one, tmp_path / "site1").returncode == 0
    (gh / "assets" / "left.txt").write_text("by an interrupted run")
    before = kept(gh)
    ran = run("ci/publish_index.sh", two, tmp_path / "site2", "check")
    assert ran.returncode == 0, ran.stderr
    assert len(offered(tmp_path / "site2")) == 2
    assert kept(gh) == before


def asked_of_issues(gh: Path) -> list[list[str]]:
    calls = [json.loads(line) for line in (gh / "calls").read_text().splitlines()]
    return [words[1:3] for words in calls if words[0] == "issue" and words[1] != "list"]


def test_a_broken_nightly_opens_one_issue_and_adds_to_it(run: Run, gh: Path) -> None:
    for _ in range(2):
        ran = run("ci/report_nightly.sh", "broken")
        assert ran.returncode == 0, ran.stderr
    assert asked_of_issues(gh) == [["create", "--title"], ["comment", "7"]]
    said = (gh / "issues.json").read_text()
    assert said.count("https://github.example/owner/name/actions/runs/12") == 2
    assert "- [Test cell]" in said


def test_the_next_nightly_that_passes_closes_it(run: Run, gh: Path) -> None:
    assert run("ci/report_nightly.sh", "broken").returncode == 0
    for _ in range(2):
        ran = run("ci/report_nightly.sh", "passed", GITHUB_RUN_ID="13")
        assert ran.returncode == 0, ran.stderr
    assert asked_of_issues(gh)[1:] == [["close", "7"]], "once, and nothing where no issue is open"
    said = (gh / "issues.json").read_text()
    assert f"/owner/name/actions/runs/13 (commit {'a' * 40}) passed." in said
    assert run("ci/report_nightly.sh", "broken").returncode == 0
    assert asked_of_issues(gh)[-1][0] == "create", "a closed one is not opened again"


def test_every_open_issue_is_closed_and_the_first_is_added_to(run: Run, gh: Path) -> None:
    (gh / "open").write_text("7\n9")
    assert run("ci/report_nightly.sh", "broken").returncode == 0
    assert run("ci/report_nightly.sh", "passed").returncode == 0
    assert asked_of_issues(gh) == [["comment", "7"], ["close", "7"], ["close", "9"]]


@pytest.mark.parametrize("words", [[], ["well"]])
def test_another_state_is_refused(run: Run, gh: Path, words: list[str]) -> None:
    ran = run("ci/report_nightly.sh", *words)
    assert ran.returncode == 2
    assert "is no state of a nightly; say broken or passed." in ran.stderr
    assert not (gh / "calls").exists()
