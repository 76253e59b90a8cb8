"""``ci/matrix.toml``: what it expands to, what a line more does to it, and what stops it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matrix_lines import (
    PYTHONS,
    next_architecture,
    next_platform,
    next_toolkit,
    next_torch,
    with_architecture,
    with_platform,
    with_toolkit,
    with_torch,
)

from tools.matrix.definition import MATRIX, Definition, read_definition
from tools.matrix.plan import Plan, expand
from tools.verify.platforms import Platform, newest_glibc, platform_of

EVENTS = ("pull_request", "nightly", "release")
Add = Callable[..., tuple[Plan, Plan]]


@pytest.fixture(scope="module")
def definition() -> Definition:
    return read_definition()


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
    kinds = (plan.shards, plan.toolkits, plan.wheels, plan.cells, plan.natives, plan.wines)
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
    rows = {name: row for name, row in definition.platforms.items() if row.native}
    assert {row.native for row in rows.values()} >= {"gcc", "msvc"}
    assert [native.id for native in release] == [f"{row.native}-{name}" for name, row in rows.items()]
    assert [native.id for native in nightly] == [native.id for native in release]
    assert {len(native.archs.split(";")) for native in nightly} == {1}
    assert {native.archs for native in release} == {";".join(definition.architectures)}
    assert all(few.minutes < many.minutes for few, many in zip(nightly, release, strict=True))
    # Nobody has seen MSVC compile them.
    assert {native.id for native in release if native.may_fail} == {
        f"{row.native}-{name}" for name, row in rows.items() if row.native_may_fail
    }
    assert expand(definition, "pull_request").natives == ()


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
    assert list(lines) == ["shards", "toolkits", "wheels", "cells", "natives", "wines"]
    plan = expand(definition, "release")
    assert [cell["id"] for cell in json.loads(lines["cells"])] == [cell.id for cell in plan.cells]
    # GitHub takes a megabyte of outputs from a job.
    assert len(ran.stdout) < 900_000


def test_json_is_one_document(definition: Definition) -> None:
    document = json.loads(run("--event", "nightly", "--format", "json").stdout)
    assert document["event"] == "nightly"
    assert [shard["arch"] for shard in document["shards"]] == list(definition.architectures)
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


LINES = (with_torch, with_toolkit, with_architecture, with_platform)


class TestALineMore:
    """One line, and nothing else changes."""

    @pytest.fixture
    def added(self, definition: Definition, tmp_path: Path) -> Callable[..., tuple[Plan, Plan]]:
        """What an event was, and what it is with the line."""

        def add(line: Callable[[str, Definition], str], event: str) -> tuple[Plan, Plan]:
            before = MATRIX.read_text(encoding="utf-8")
            after = line(before, definition)
            assert len(set(after.splitlines()) - set(before.splitlines())) == 1
            path = tmp_path / "matrix.toml"
            path.write_text(after, encoding="utf-8")
            return expand(definition, event), expand(read_definition(path), event)

        return add

    def test_a_torch(self, added: Add, definition: Definition) -> None:
        """It costs a release a cell a Python and platform, and others nothing: it is the newest now."""
        before, after = added(with_torch, "release")
        short = next_torch(definition).removesuffix(".0")
        columns = {"linux": "cu139", "linux_arm": "cu139", "windows": "cpu"}
        cells = {
            f"{columns[row.torch]}-torch{short}-cp{python.replace('.', '')}-{name}"
            for name, row in definition.platforms.items()
            if row.torch in columns
            for python in PYTHONS
        }
        assert {cell.id for cell in after.cells} - {cell.id for cell in before.cells} == cells
        assert (after.shards, len(after.wheels)) == (before.shards, len(before.wheels))
        assert after.minutes - before.minutes == len(cells) * definition.minutes.cell
        before, after = added(with_torch, "pull_request")
        assert len(after.cells) <= len(before.cells)
        assert {cell.torch for cell in after.cells} - {cell.torch for cell in before.cells} == {
            next_torch(definition)
        }

    def test_a_toolkit(self, added: Add, definition: Definition) -> None:
        before, after = added(with_toolkit, "nightly")
        (more,) = {job.id for job in after.toolkits} - {job.id for job in before.toolkits}
        cuda = next_toolkit(definition).replace(".", "")[:3]
        assert more == f"cu{cuda}-shard-{definition.architectures[-1]}"
        assert after.minutes - before.minutes == definition.minutes.shard

    def test_an_architecture(self, added: Add, definition: Definition) -> None:
        """A shard, and a part of each native build that compiles all architectures."""
        before, after = added(with_architecture, "release")
        arch = next_architecture(definition)
        assert {shard.id for shard in after.shards} - {shard.id for shard in before.shards} == {
            f"shard-{arch}"
        }
        assert all(native.archs.endswith(f";{arch}") for native in after.natives)
        assert len(after.cells) == len(before.cells)
        assert after.minutes - before.minutes == definition.minutes.shard * (1 + len(before.natives))

    def test_a_platform(
        self, added: Add, definition: Definition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A wheel, which the verifier knows by its tag."""
        before, after = added(with_platform, "release")
        name = next_platform(definition)
        assert {wheel.platform for wheel in after.wheels} - {wheel.platform for wheel in before.wheels} == {
            name
        }
        assert after.cells == before.cells
        assert after.minutes - before.minutes == definition.minutes.wheel
        machine = name.removeprefix("manylinux_")
        assert platform_of([f"manylinux_2_28_{machine}"]) is None
        monkeypatch.setattr(
            "tools.verify.platforms.definition", lambda: read_definition(tmp_path / "matrix.toml")
        )
        platform = platform_of([f"manylinux_2_28_{machine}"])
        assert platform == Platform("flash_attn/lib/libflash_attn.so", machine, (2, 28))
        assert newest_glibc(platform) == (2, 39)

    def test_no_test_turns_red(self, definition: Definition, tmp_path: Path) -> None:
        """Those that know of the matrix, in a copy of the tree with all four lines."""
        root = MATRIX.parents[1]
        for folder in (".github", "ci", "cmake", "csrc", "docs", "flash_attn", "tests", "tools"):
            shutil.copytree(
                root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.fatbin")
            )
        for path in (path for path in root.iterdir() if path.is_file()):
            shutil.copy(path, tmp_path)
        text = MATRIX.read_text(encoding="utf-8")
        for line in LINES:
            text = line(text, definition)
        (tmp_path / "ci" / "matrix.toml").write_text(text, encoding="utf-8")
        tests = [
            "tests/wheel/test_matrix.py", "tests/wheel/test_matrix_refused.py",
            "tests/wheel/test_index.py::test_the_page_names_one_wheel_for_each_system",
            "tests/wheel/test_cross.py", "tests/workflows/test_workflows.py",
            # Of the repair step, those that compile no kernels.
            "tests/wheel/test_repair.py::test_a_tag_that_we_ship_is_taken",
            "tests/wheel/test_repair.py::test_a_tag_that_we_do_not_ship_is_refused",
            "tests/wheel/test_repair.py::test_a_platform_that_nobody_ships_is_refused",
            "tests/workflows/test_documents.py", "tests/wheel/test_verify_library.py::test_platform_of",
            "tests/wheel/test_cibuildwheel.py::test_each_platform_of_the_matrix_is_built_once",
            "tests/wheel/from_source/test_architectures.py::test_default_is_what_the_matrix_lists",
        ]  # fmt: skip
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-k", "not test_no_test_turns_red and not test_every_key",
             *tests], cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout
