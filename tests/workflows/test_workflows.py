"""Walks .github/workflows: what they call exists, what they download is uploaded, what they use expands."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from itertools import pairwise
from typing import Any

import pytest
import typer
from workflow_files import (
    ROOT,
    SELF,
    Workflow,
    called,
    commands,
    events,
    matrix_source,
    needs,
    outcome,
    plan,
    upstream,
    workflows,
)

from tools.__main__ import COMMANDS, build_app

USES = re.compile(r"^\s*(?:- )?uses: (\S+)(.*)$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
WRITES = {
    ("index.yml", "files"): {"contents"},
    ("index.yml", "pages"): {"pages", "id-token"},
    ("nightly.yml", "index"): {"contents", "pages", "id-token"},
    ("nightly.yml", "report"): {"issues"},
    ("release.yml", "index"): {"contents", "pages", "id-token"},
    ("release.yml", "pypi"): {"id-token"},
    ("release.yml", "release"): {"contents", "id-token", "attestations"},
}

ALL = pytest.mark.parametrize("workflow", workflows().values(), ids=list(workflows()))


@pytest.fixture(scope="module")
def sessions() -> set[str]:
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "--list"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(re.findall(r"^[*-] (\S+)", listed.stdout, re.MULTILINE))


def all_commands(workflow: Workflow) -> list[list[str]]:
    return [words for _, step in workflow.steps() for words in commands(step.get("run", ""))]


def test_the_walk_sees_what_is_there() -> None:
    assert set(workflows()) >= {"pull_request.yml", "nightly.yml", "release.yml", "build.yml", "gpu.yml"}
    script = 'a "$B c" --d <<< "$E" >> "$F"\nif gh x > y; then\n  z \\\n  w || true\nfi # nox -s gone'
    assert list(commands(script)) == [
        ["a", "$B c", "--d"], ["if", "gh", "x"], ["then"], ["z", "w"], ["true"], ["fi"],
    ]  # fmt: skip


@ALL
def test_every_nox_session_exists(workflow: Workflow, sessions: set[str]) -> None:
    for words in all_commands(workflow):
        if words[0] == "nox":
            assert words[1] == "-s", words
            named = words[2 : words.index("--")] if "--" in words else words[2:]
            assert named, words
            assert set(named) <= sessions, words


def building_sessions() -> set[str]:
    """Sessions of noxfile.py that install or name the group "build"."""
    functions = [
        node
        for node in ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and "nox.session" in map(ast.unparse, node.decorator_list)
    ]
    return {
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and any(ast.unparse(argument) == "'build'" for argument in node.args)
    }


def test_everything_that_is_built_is_built_of_pinned_requirements() -> None:
    building = building_sessions()
    assert building == {"kernels", "wheel", "wheels", "cibuildwheel", "sdist"}
    built = set()
    for workflow in workflows().values():
        for name, step in workflow.steps():
            for words in commands(step.get("run", "")):
                if words[0] == "nox" and building & set(words):
                    built |= building & set(words)
                    places = (workflow.content, workflow.jobs[name], step)
                    environment = {key: one for place in places for key, one in place.get("env", {}).items()}
                    assert environment.get("FLASH_ATTN_LOCKED") == "1", (workflow.name, name, words)
    assert built == building


def test_every_session_but_the_maintainer_s_own_is_run(sessions: set[str]) -> None:
    run = {word for workflow in workflows().values() for words in all_commands(workflow)
           if words[0] == "nox" for word in words}  # fmt: skip
    assert sessions - run == {"clean", "lock"}


def test_every_folder_of_tests_is_run() -> None:
    run = {
        word for workflow in workflows().values() for words in all_commands(workflow)
        if words[:3] == ["nox", "-s", "tests"] for word in words[4:]
    }  # fmt: skip
    if any(words == ["nox", "-s", "windows"] for words in all_commands(workflows()["build.yml"])):
        run.add("tests/windows")
    tests = ROOT / "tests"
    assert run == {f"tests/{path.relative_to(tests).parts[0]}" for path in tests.rglob("test_*.py")}


@pytest.mark.parametrize("name", ["build.yml", "nightly.yml"])
def test_a_nightly_s_wheels_meet_a_tree_of_its_version(name: str) -> None:
    """Kernels of another version than the tree's are refused; those of `toolkits` go nowhere."""
    workflow = workflows()[name]
    for job, content in workflow.jobs.items():
        ran = [words for step in content.get("steps", ()) for words in commands(step.get("run", ""))]
        versioned = ["python", "-m", "tools", "version", "--dev", "$DEV"] in ran
        needed = any(
            words[0] == "nox" and (building_sessions() & set(words) or "tests/wheel" in words)
            for words in ran
        )
        assert versioned == (needed and job != "toolkits"), job


def test_the_wheel_that_wine_tests_is_the_released_one() -> None:
    build = workflows()["build.yml"]
    (job,) = {name for name, step in build.steps() if "nox -s windows" in step.get("run", "")}
    assert "wheels" in needs(build.jobs[job])
    script = build.jobs[job]["steps"][-1]["run"]
    assert script.startswith('FLASH_ATTN_WINDOWS_WHEEL=$(echo dist/*-"$PLATFORM".whl)\nexport ')


@ALL
def test_every_tools_command_takes_its_options(workflow: Workflow) -> None:
    for words in all_commands(workflow):
        if words[:3] == ["python", "-m", "tools"]:
            check_tools_command(words[3:])


def check_tools_command(words: list[str]) -> None:
    name = words[0]
    assert name in COMMANDS, words
    group = typer.main.get_command(build_app(words))
    command = group.commands[name]  # type: ignore[attr-defined]
    options = {option: param for param in command.params for option in param.opts if option.startswith("-")}
    rest = iter(words[1:])
    given = 0
    for word in rest:
        if word.startswith("-"):
            assert word in options, (word, words)
            if not options[word].is_flag:
                assert not next(rest, "-").startswith("-"), (f"{word} has no value", words)
        else:
            given += 1
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    if not any(argument.nargs == -1 for argument in arguments):
        assert given <= len(arguments), words
    assert given >= sum(argument.required for argument in arguments), words
    for option, param in options.items():
        assert not param.required or option in words, (f"{option} is missing", words)


@pytest.mark.parametrize(
    "words",
    [["gone"], ["verify", "--gone", "x"], ["verify"], ["matrix", "--event"], ["matrix"], ["version", "x"]],
    ids=" ".join,
)
def test_a_wrong_tools_command_is_seen(words: list[str]) -> None:
    with pytest.raises(AssertionError):
        check_tools_command(words)


@ALL
def test_scripts_and_files_that_are_named_exist(workflow: Workflow) -> None:
    for words in all_commands(workflow):
        if words[0] == "bash":
            assert (ROOT / words[1]).is_file(), words
        for option, file in pairwise(words):
            if option == "-r" and words[0] == "python":
                assert (ROOT / file).is_file(), words


@ALL
def test_nothing_else_is_called(workflow: Workflow) -> None:
    """Short YAML: a new program here wants a reason, and a home in nox, tools or ci/."""
    known = {
        "python",
        "nox",
        "bash",
        "gh",
        "jq",
        "sed",
        "cat",
        "mkdir",
        "mv",
        "echo",
        "cmp",
        "sudo",
        "export",
        "test",
    }
    assigned = re.compile(r"\w+=")
    shell = {"if", "then", "fi", "true", "for", "do", "done"}
    for words in all_commands(workflow):
        assert words[0] in known | shell or assigned.match(words[0]) or words[0].startswith("$"), words


@ALL
def test_actions_are_pinned_by_commit(workflow: Workflow) -> None:
    found = USES.findall(workflow.text)
    assert found
    for action, comment in found:
        if action.startswith(SELF):
            assert action.removeprefix(SELF) in workflows(), action
        else:
            assert PINNED.fullmatch(action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), (action, comment)


def test_one_action_has_one_pin() -> None:
    pins: dict[str, set[str]] = {}
    for workflow in workflows().values():
        for action, comment in USES.findall(workflow.text):
            if not action.startswith(SELF):
                name, _, commit = action.partition("@")
                pins.setdefault(name, set()).add(commit + comment)
    assert {name: len(found) for name, found in pins.items()} == dict.fromkeys(pins, 1)


@ALL
def test_permissions_are_least(workflow: Workflow) -> None:
    assert workflow.content["permissions"] == {}
    for name, job in workflow.jobs.items():
        permissions = job.get("permissions")
        assert isinstance(permissions, dict), name
        writes = {what for what, how in permissions.items() if how != "read"}
        assert writes == WRITES.get((workflow.name, name), set()), name
        assert set(permissions) - writes <= {"contents", "actions"}, name
        if callee := called(job):
            wanted = {pair for inner in callee.jobs.values() for pair in inner["permissions"].items()}
            assert wanted == set(permissions.items()), name


def test_nothing_of_a_pull_request_may_write() -> None:
    for workflow in workflows().values():
        assert not {"pull_request_target", "workflow_run", "issue_comment"} & set(workflow.triggers)
        if "pull_request" in workflow.triggers:
            assert "secrets." not in workflow.text
            for job in workflow.jobs.values():
                assert not called(job) or called(job).name != "gpu.yml"
                assert set(job["permissions"].values()) <= {"read"}


@ALL
def test_checkouts_keep_no_credentials(workflow: Workflow) -> None:
    for job, step in workflow.steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, job


@ALL
def test_scripts_hold_no_expressions(workflow: Workflow) -> None:
    for job, step in workflow.steps():
        assert "${{" not in step.get("run", ""), (job, "put it into env")


@ALL
def test_workflows_that_start_by_themselves_have_a_concurrency_group(workflow: Workflow) -> None:
    if set(workflow.triggers) != {"workflow_call"}:
        assert workflow.content["concurrency"]["group"]
        assert "cancel-in-progress" in workflow.content["concurrency"]
    for name, job in workflow.jobs.items():
        assert called(job) or job["timeout-minutes"], name


@ALL
def test_needs_and_outputs_refer_to_what_is_there(workflow: Workflow) -> None:
    for name, job in workflow.jobs.items():
        assert set(needs(job)) <= set(workflow.jobs) - {name}, name
        for needed, output in re.findall(r"needs\.(\w+)\.outputs\.(\w+)", json.dumps(job)):
            assert needed in needs(job), (name, needed)
            assert output in workflow.jobs[needed].get("outputs", {}), (name, needed, output)
        ids = {step["id"] for step in job.get("steps", ()) if "id" in step}
        for step in re.findall(r"steps\.(\w+)\.outputs", json.dumps(job)):
            assert step in ids, (name, step)
        if callee := called(job):
            inputs = callee.triggers["workflow_call"] or {}
            known = inputs.get("inputs", {})
            assert set(job.get("with", {})) <= set(known), name
            assert {key for key, one in known.items() if one.get("required")} <= set(job.get("with", {}))


@ALL
def test_every_matrix_expands(workflow: Workflow) -> None:
    for name, job in workflow.jobs.items():
        source = matrix_source(job)
        used = set(re.findall(r"(?<![./\w])matrix\.(\w+)", json.dumps(job)))
        if source is None:
            assert not used, name
            continue
        outputs = workflow.jobs[source[0]]["outputs"]
        assert outputs[source[1]] == f"${{{{ steps.matrix.outputs.{source[1]} }}}}"
        expanded = [entry for event in events()[workflow.name] for entry in plan(event)[source[1]]]
        assert expanded or "if" in job, f"{name}: no event gives {source[1]} an entry"
        for entry in expanded:
            assert used <= set(entry), (name, used - set(entry))
        if "if" not in job:
            assert all(plan(event)[source[1]] for event in events()[workflow.name]), f"{name} may be empty"


def artifacts(workflow: Workflow, kind: str, event: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Jobs of this workflow and of those it calls, by the caller's name, with what their steps say.

    A name that holds matrix values comes once for each entry that the event gives.
    """
    found = []
    for name, job in workflow.jobs.items():
        for step in job.get("steps", ()):
            if step.get("uses", "").startswith(f"actions/{kind}-artifact@"):
                found += [(name, {**step["with"], **names}) for names in expanded(step["with"], job, event)]
        if callee := called(job):
            event_of_call = job.get("with", {}).get("event", event)
            found += [(name, given) for _, given in artifacts(callee, kind, event_of_call)]
    return found


def expanded(given: dict[str, Any], job: dict[str, Any], event: str | None) -> list[dict[str, str]]:
    key = "name" if "name" in given else "pattern"
    source = matrix_source(job)
    if source is None or "${{" not in given[key]:
        return [{key: given[key]}]
    assert event, given
    return [
        {key: re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match, entry=entry: entry[match[1]], given[key])}
        for entry in plan(event)[source[1]]
    ]


def check_downloads(workflow: Workflow, event: str | None = None) -> int:
    """Each finds what a job that ended before it uploaded, under names that no two jobs share."""
    uploads = artifacts(workflow, "upload", event)
    names = [given["name"] for _, given in uploads]
    assert len(set(names)) == len(names), "two jobs upload one name"
    downloads = artifacts(workflow, "download", event)
    for job, given in downloads:
        before = upstream(workflow, job) | {job}
        there = {upload["name"] for uploader, upload in uploads if uploader in before}
        key = "name" if "name" in given else "pattern"
        assert not any("${{" in one for one in (*there, given[key])), "expand the names first"
        wanted = set(re.sub(r"^\{(.*)\}$", r"\1", given[key]).split(","))
        for name in wanted - ({"sdist"} if workflow.name == "nightly.yml" else set()):  # nightlies have none
            assert any(fnmatch(one, name) for one in there), (job, name, there)
    return len(downloads)


@pytest.mark.parametrize("name", ["pull_request.yml", "nightly.yml", "release.yml"])
def test_every_artifact_that_is_downloaded_is_uploaded(name: str) -> None:
    assert check_downloads(workflows()[name])


@pytest.mark.parametrize("event", ["pull_request", "nightly", "release"])
def test_a_download_within_the_build_waits_for_its_upload(event: str) -> None:
    build = workflows()["build.yml"]
    assert check_downloads(build, event)
    shards = {given["name"] for _, given in artifacts(build, "upload", event)} - {"dist"}
    assert shards == {shard["id"] for shard in plan(event)["shards"]}


@ALL
def test_what_a_pattern_finds_lies_in_no_folder_of_its_own(workflow: Workflow) -> None:
    """The action would make one for each artifact where several match, but none for one alone."""
    for job, given in artifacts(workflow, "download", "nightly"):
        assert given.get("merge-multiple") is ("pattern" in given or None), job


def test_each_shard_brings_its_folder() -> None:
    """So that the one of a pull request lies where several do."""
    build = workflows()["build.yml"]
    (command,) = (words for step in build.jobs["shards"]["steps"] for words in commands(step.get("run", ""))
                  if words[:3] == ["nox", "-s", "kernels"])  # fmt: skip
    (upload,) = (step["with"] for step in build.jobs["shards"]["steps"] if "upload" in step.get("uses", ""))
    (download,) = (given for job, given in artifacts(build, "download", "nightly") if "pattern" in given)
    assert (command[-2:], upload["path"], download["path"]) == (
        ["--output", "shards/$ARCH"],
        *["shards/"] * 2,
    )
    assert ["python", "-m", "tools", "merge", "shards/*"] in [words[:5] for words in all_commands(build)]


def test_the_release_the_index_and_pypi_take_the_same_files() -> None:
    taken = {
        (name, job): given["pattern"]
        for name, workflow in workflows().items() if name in ("release.yml", "index.yml")
        for job in workflow.jobs if not called(workflow.jobs[job])
        for where, given in artifacts(workflow, "download") if where == job
    }  # fmt: skip
    places = (("release.yml", "release"), ("index.yml", "files"), ("release.yml", "pypi"))
    assert taken == dict.fromkeys(places, "{dist,sdist}")


@ALL
def test_uploads_say_how_long_they_are_kept(workflow: Workflow) -> None:
    for job, given in artifacts(workflow, "upload", "nightly"):
        assert given["retention-days"], job
        assert given["if-no-files-found"] == "error", job


RUNNER = pytest.mark.parametrize("runner", [False, True], ids=["no GPU runner", "GPU runner"])


@RUNNER
def test_a_release_publishes_only_what_was_checked_built_and_tested(runner: bool) -> None:
    release = workflows()["release.yml"]
    order = ["release", "index", "pypi"]
    done = outcome(release, runner=runner)
    assert {name for name, one in done.items() if one != "success"} == (set() if runner else {"gpu"})
    for failing in release.jobs:
        done = outcome(release, failing, runner=runner)
        published = order[: order.index(failing)] if failing in order else []
        if failing != "gpu" or runner:
            assert [name for name in order if done[name] == "success"] == published, failing
    assert any(words[3:] == ["release", "--tag", "$GITHUB_REF_NAME"] for words in all_commands(release))


@RUNNER
def test_a_nightly_publishes_only_what_came_out_twice_and_was_tested(runner: bool) -> None:
    nightly = workflows()["nightly.yml"]
    done = outcome(nightly, runner=runner)
    assert {name for name, one in done.items() if one != "success"} == (set() if runner else {"gpu"})
    for failing in ("due", "build", "reproduce", *(["gpu"] if runner else [])):
        for how in ("failure", "cancelled"):
            done = outcome(nightly, failing, how, runner=runner)
            assert done["index"] == "skipped", failing
            assert done["report"] == "success", "somebody has to be told"
    assert outcome(nightly, "index", runner=runner)["report"] == "success"


def test_a_nightly_of_another_branch_publishes_and_says_nothing() -> None:
    nightly = workflows()["nightly.yml"]
    for failing in ("", *nightly.jobs):
        done = outcome(nightly, failing, runner=True, ref="refs/heads/try")
        assert (done["index"], done["report"]) == ("skipped", "skipped"), failing
    assert outcome(nightly, runner=True, ref="refs/heads/try")["reproduce"] == "success"


def test_one_check_stands_for_all_of_a_pull_request() -> None:
    """It runs whatever became of the others; a skipped one would count as passed."""
    workflow = workflows()["pull_request.yml"]
    last = workflow.jobs["passed"]
    others = set(workflow.jobs) - {"passed"}
    assert set(needs(last)) == others
    for failing in others:
        for how in ("failure", "cancelled"):
            assert outcome(workflow, failing, how)["passed"] == "success"
    (step,) = last["steps"]
    assert step["env"] == {"RESULTS": "${{ join(needs.*.result) }}"}
    assert step["run"] == f'test "$RESULTS" = {",".join(["success"] * len(others))}'


def test_a_nightly_that_is_not_due_does_and_says_nothing() -> None:
    done = outcome(workflows()["nightly.yml"], due=False, runner=True)
    assert {name for name, one in done.items() if one != "skipped"} == {"due"}


def test_the_index_is_asked_before_anything_is_published() -> None:
    """And PyPI, which takes nothing back, comes last."""
    release = workflows()["release.yml"]
    steps = [f"{step.get('run')} {step.get('uses')}" for step in release.jobs["release"]["steps"]]
    asked, signed, published = (
        next(number for number, step in enumerate(steps) if what in step)
        for what in ("ci/publish_index.sh dist site check", "actions/attest-build-", "gh release create")
    )
    assert asked < signed < published
    assert upstream(release, "pypi") >= set(release.jobs) - {"pypi"}


def test_the_nightly_reports_on_all_of_its_jobs() -> None:
    nightly = workflows()["nightly.yml"]
    report = nightly.jobs["report"]
    assert set(needs(report)) == set(nightly.jobs) - {"report"}
    state = report["steps"][-1]["env"]["STATE"]
    passed = "needs.index.result == 'success' && !contains(needs.*.result, 'failure')"
    assert state == f"${{{{ {passed} && 'passed' || 'broken' }}}}"


def test_every_workflow_says_that_none_has_run() -> None:
    for workflow in workflows().values():
        assert "None of these workflows has run on GitHub yet" in workflow.text, workflow.name


def test_the_docs_name_what_a_repository_has_to_have() -> None:
    text = (ROOT / "docs" / "maintaining.md").read_text(encoding="utf-8")
    section = text.partition("## Setting up the repository")[2].partition("\n## ")[0]
    wanted = {
        f"`{name}`" for workflow in workflows().values() for name in re.findall(r"vars\.(\w+)", workflow.text)
    }
    for workflow in workflows().values():
        assert "secrets." not in workflow.text, "none is needed"
        for job in workflow.jobs.values():
            if environment := job.get("environment"):
                wanted.add(f"`{environment['name']}`")
            if "pypa/gh-action-pypi-publish" in str(job):
                wanted.add(f"`{workflow.name}`")
    assert len(wanted) == 4
    assert {name for name in wanted if name not in section} == set()


def test_pinned_tools_are_those_that_the_group_asks_for() -> None:
    """ci/tools.txt is compiled from the dependency group; a new name there wants it compiled again."""
    if sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    import tomllib

    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["tools"]
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "ci" / "tools.txt").read_text(), re.MULTILINE))
    assert {re.split(r"[^\w-]", one, maxsplit=1)[0] for one in group if isinstance(one, str)} <= pinned
