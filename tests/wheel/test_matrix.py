"""``ci/matrix.toml``: what it expands to, what a line more does to it, and what stops it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.matrix.definition import MATRIX, Definition, read_definition
from tools.matrix.plan import Plan, expand

EVENTS = ("pull_request", "nightly", "release")
Edit = Callable[..., Path]


@pytest.fixture(scope="module")
def definition() -> Definition:
    return read_definition()


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """The matrix with texts replaced, each of which must be there once."""

    def edit(*replacements: tuple[str, str]) -> Path:
        text = MATRIX.read_text(encoding="utf-8")
        for old, new in replacements:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / "matrix.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return edit


def with_line(after: str, line: str) -> tuple[str, str]:
    """The replacement that puts a line behind the one that holds this text."""
    (found,) = [one for one in MATRIX.read_text(encoding="utf-8").splitlines() if after in one]
    return found, f"{found}\n{line}"


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_expands(definition: Definition, event: str) -> None:
    plan = expand(definition, event)
    for jobs in (plan.shards, plan.wheels, plan.cells):
        assert jobs
        assert len({job.id for job in jobs}) == len(jobs)
    ids = {shard.id for shard in plan.shards}
    assert ids == {f"shard-{shard.arch}" for shard in plan.shards}
    for cell in plan.cells:
        assert re.fullmatch(
            r"(cpu|cu\d{3})-torch(\d+\.\d+(\.[1-9]\d*)?|-nightly)-cp3\d+t?-\w+", cell.id
        )  # fmt: skip
        assert set(cell.shards) == ids
        assert cell.platform in {wheel.platform for wheel in plan.wheels}
        row = next(
            torch
            for torch in definition.torch
            if torch.version == cell.torch and definition.indexes[torch.index].url == cell.extra_index
        )
        assert cell.python in row.pythons
        assert row.builds[definition.platforms[cell.platform].torch] == cell.cuda
    assert sum(wheel.cells for wheel in plan.wheels) == len(plan.cells)
    kinds = (plan.shards, plan.toolkits, plan.wheels, plan.cells, plan.natives)
    assert plan.minutes == sum(job.minutes for jobs in kinds for job in jobs)


def test_a_release_covers_everything_that_is_known(definition: Definition) -> None:
    plan = expand(definition, "release")
    assert [shard.arch for shard in plan.shards] == list(definition.architectures)
    assert {wheel.platform for wheel in plan.wheels} == set(definition.platforms)
    wanted = {
        (torch.version, torch.index, python, platform)
        for torch in definition.torch
        if torch.version != "nightly"
        for python in torch.pythons
        for platform, row in definition.platforms.items()
        if row.torch in torch.builds
    }
    assert len(plan.cells) == len(wanted)
    assert "cu130-torch2.10-cp312-win_amd64" in {cell.id for cell in plan.cells}
    assert {cell.python for cell in plan.cells} >= {"3.10", "3.14", "3.13t", "3.14t"}


def test_the_nightly_takes_the_newest_torch_and_torch_nightly(definition: Definition) -> None:
    plan = expand(definition, "nightly")
    newest = [torch for torch in definition.torch if torch.index == "pypi"][-1].version
    assert {cell.torch for cell in plan.cells} == {newest, "nightly"}
    assert {job.toolkit for job in (*plan.shards, *plan.toolkits)} == {
        toolkit.version for toolkit in definition.toolkits
    }
    assert all(cell.pre and cell.requirement == "torch" for cell in plan.cells if cell.torch == "nightly")


def test_native_builds_compile_one_architecture_a_night_and_all_for_a_release(
    definition: Definition,
) -> None:
    nightly, release = (expand(definition, event).natives for event in ("nightly", "release"))
    assert [native.id for native in release] == ["gcc-manylinux_x86_64", "msvc-win_amd64"]
    assert [native.id for native in nightly] == [native.id for native in release]
    assert {native.archs for native in nightly} == {"120"}
    assert {native.archs for native in release} == {";".join(definition.architectures)}
    assert all(few.minutes < many.minutes for few, many in zip(nightly, release, strict=True))
    # Nobody has seen MSVC compile them.
    assert [native.may_fail for native in release] == [False, True]
    assert expand(definition, "pull_request").natives == ()


def test_the_docs_say_what_each_event_costs(definition: Definition) -> None:
    text = " ".join((MATRIX.parents[1] / "docs" / "maintaining.md").read_text(encoding="utf-8").split())
    told = re.search(
        r"about ([\d,]+) for a pull request, ([\d,]+) for a nightly, ([\d,]+) for a release", text
    )
    assert told
    assert [int(one.replace(",", "")) for one in told.groups()] == [
        expand(definition, event).minutes for event in EVENTS
    ]


def test_cells_of_a_python_that_cibuildwheel_does_not_know_say_so(definition: Definition) -> None:
    cells = expand(definition, "release").cells
    assert {cell.python for cell in cells if not cell.cibuildwheel} == set(definition.without_cibuildwheel)
    assert {cell.python for cell in cells if cell.cibuildwheel} >= {"3.10", "3.14", "3.14t"}


def test_a_torch_from_another_index_asks_for_that_build(definition: Definition) -> None:
    cells = {cell.id: cell for cell in expand(definition, "release").cells}
    assert cells["cu130-torch2.10-cp312-win_amd64"].requirement == "torch==2.10.0+cu130"
    assert cells["cu130-torch2.10-cp312-win_amd64"].may_fail
    assert cells["cpu-torch2.10-cp312-win_amd64"].requirement == "torch==2.10.0"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools", "matrix", *arguments], cwd=MATRIX.parents[1],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip


def test_the_github_format_is_one_line_a_kind(definition: Definition) -> None:
    ran = run("--event", "release", "--format", "github")
    assert ran.returncode == 0, ran.stderr
    lines = dict(line.split("=", 1) for line in ran.stdout.splitlines())
    assert list(lines) == ["shards", "toolkits", "wheels", "cells", "natives"]
    plan = expand(definition, "release")
    assert [cell["id"] for cell in json.loads(lines["cells"])] == [cell.id for cell in plan.cells]
    # GitHub takes a megabyte of outputs from a job.
    assert len(ran.stdout) < 900_000


def test_json_is_one_document() -> None:
    document = json.loads(run("--event", "nightly", "--format", "json").stdout)
    assert document["event"] == "nightly"
    assert len(document["shards"]) == 5
    assert document["minutes"] > 0


def test_the_table_of_a_release_comes_in_a_second() -> None:
    before = os.times()
    ran = run("--event", "release", "--format", "table")
    after = os.times()
    # Processor time: a busy machine says nothing about the command.
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert ran.returncode == 0
    assert "cu130-torch2.10-cp312-win_amd64" in ran.stdout
    assert "runner minutes" in ran.stdout
    assert 0 < seconds < 1.0


class TestALineMore:
    """Each of these is one line, and nothing else changes."""

    @pytest.fixture
    def before(self, definition: Definition) -> Plan:
        return expand(definition, "release")

    def test_a_torch(self, edited: Edit, before: Plan) -> None:
        line = (
            '{ version = "2.16.0", index = "pypi", linux = "cu132", linux_arm = "cu132", windows = "cpu", '
            'pythons = ["3.12", "3.14t"] },'
        )
        after = expand(read_definition(edited(with_line('version = "2.15.0"', line))), "release")
        assert {cell.id for cell in after.cells} - {cell.id for cell in before.cells} == {
            "cu132-torch2.16-cp312-manylinux_x86_64", "cu132-torch2.16-cp314t-manylinux_x86_64",
            "cu132-torch2.16-cp312-manylinux_aarch64", "cu132-torch2.16-cp314t-manylinux_aarch64",
            "cpu-torch2.16-cp312-win_amd64", "cpu-torch2.16-cp314t-win_amd64",
        }  # fmt: skip
        assert (after.shards, len(after.wheels)) == (before.shards, len(before.wheels))

    def test_a_toolkit(self, edited: Edit) -> None:
        path = edited(with_line('version = "13.5.0"', '{ version = "13.6.0" },'))
        assert "cu136-shard-120" in {job.id for job in expand(read_definition(path), "nightly").toolkits}

    def test_an_architecture(self, edited: Edit, before: Plan) -> None:
        path = edited(('"110", "120"]', '"110", "120", "130"]'))
        after = expand(read_definition(path), "release")
        assert {shard.id for shard in after.shards} - {shard.id for shard in before.shards} == {"shard-130"}
        assert len(after.cells) == len(before.cells)

    def test_a_platform(self, edited: Edit, before: Plan) -> None:
        line = (
            'manylinux_riscv64 = { runner = "some-runner", image = "quay.io/pypa/manylinux_2_39_riscv64", '
            'tag = "manylinux_2_39_riscv64", arch = "riscv64", zig = "riscv64-linux-gnu.2.39", '
            'host = "linux-riscv64", torch = "none" }'
        )
        after = expand(read_definition(edited(with_line("win_arm64 =", line))), "release")
        assert {wheel.id for wheel in after.wheels} - {wheel.id for wheel in before.wheels} == {
            "manylinux_riscv64"
        }
