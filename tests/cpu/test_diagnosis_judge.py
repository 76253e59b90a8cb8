"""What `python -m flash_attn` makes of facts: every verdict, from facts made up for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from mock_driver.made_up import CASES, GOOD, HOPPER, RIGHT, RUN

from flash_attn._diagnosis import judge, report
from flash_attn._diagnosis.facts import Comparison, Driver, Facts, Gpu, Kernels, Launcher, Run, Speed, Torch


def codes(facts: Facts, needs_gpu: bool = True) -> list[str]:
    return [problem.code for problem in judge.judge(facts, needs_gpu).problems]


def test_a_good_machine() -> None:
    verdict = judge.judge(GOOD, needs_gpu=True)
    assert verdict.is_good
    assert not verdict.notes
    assert "works on this machine" in verdict.sentence


@pytest.mark.parametrize("code", sorted(CASES))
def test_each_problem_is_found_and_said_in_one_sentence(code: str) -> None:
    verdict = judge.judge(CASES[code], needs_gpu=True)
    assert verdict.problems[0].code == code
    assert not verdict.is_good
    assert verdict.sentence == verdict.problems[0].sentence
    for problem in verdict.problems:
        assert "\n" not in problem.sentence
        assert problem.sentence[0].isupper() or problem.sentence.startswith(("flash", "/", "C:"))


def test_made_up_facts_cover_every_problem() -> None:
    """A code that judge.py can give but that no case here produces would be untested."""
    import re
    from pathlib import Path

    source = Path(judge.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r'Problem\(\s*"([a-z_]+)"', source)) == set(CASES)


@pytest.mark.parametrize("code", ["no_driver", "no_gpu", "blind_torch", "not_run"])
def test_no_gpu_waives_what_only_a_gpu_can_have(code: str) -> None:
    assert codes(CASES[code], needs_gpu=False) == []
    assert "no kernel was run" in judge.judge(CASES[code], needs_gpu=False).sentence


@pytest.mark.parametrize(
    "code",
    sorted(set(CASES) - {"no_driver", "no_gpu", "blind_torch", "not_run", "kernel_failed", "wrong_result"}),
)
def test_no_gpu_waives_nothing_else(code: str) -> None:
    assert codes(replace(CASES[code], runs=()), needs_gpu=False)[0] == code


def test_a_right_result_on_one_gpu_does_not_hide_a_wrong_one_on_another() -> None:
    second = replace(HOPPER, ordinal=1)
    wrong = Run(1, (Comparison("forward", 1.0, 0.1),))
    assert codes(replace(GOOD, gpus=(HOPPER, second), runs=(RUN, wrong))) == ["wrong_result"]
    assert codes(replace(GOOD, gpus=(HOPPER, second), runs=(RUN, Run(1, error="boom")))) == ["kernel_failed"]


def test_nan_is_wrong() -> None:
    run = Run(0, (RIGHT, Comparison("forward", float("nan"), 0.1)))
    assert codes(replace(GOOD, runs=(run,))) == ["wrong_result"]


def test_an_old_gpu_beside_a_good_one_is_a_note() -> None:
    facts = replace(GOOD, gpus=(HOPPER, Gpu(1, "NVIDIA GeForce GT 1030", 61, 3, 48 * 1024)))
    verdict = judge.judge(facts, needs_gpu=True)
    assert verdict.is_good
    assert "GT 1030" in verdict.notes[0]


def test_several_problems_are_all_told_worst_first() -> None:
    facts = replace(CASES["cpu_torch"], driver=CASES["no_driver"].driver, gpus=(), runs=())
    assert codes(facts) == ["cpu_torch", "no_driver"]
    text = report.text(facts, judge.judge(facts, True))
    assert text.splitlines()[-1].startswith("verdict:")
    assert text.splitlines()[-2].startswith("problem:")


@pytest.mark.parametrize(
    ("capability", "code"),
    [
        (80, "sm_80"), (86, "sm_80"), (89, "sm_80"), (90, "sm_90"), (100, "sm_100"), (103, "sm_100"),
        (110, "sm_110"), (120, "sm_120"), (121, "sm_120"), (130, "compute_120"), (75, None), (61, None),
    ],
)  # fmt: skip
def test_which_code_serves_a_gpu(capability: int, code: str | None) -> None:
    gpu = Gpu(0, "GPU", capability, 1, 1)
    assert judge.code_for(gpu, GOOD.kernels) == code


@pytest.mark.parametrize(
    ("sass", "ptx", "capability", "code"),
    [
        (("90",), (), 100, None),
        (("90a",), (), 90, "sm_90a"),
        (("100a",), (), 103, None),
        (("100f",), (), 103, "sm_100f"),
        (("80", "86"), (), 89, "sm_86"),
        (("86",), ("80",), 80, "compute_80"),
        ((), ("90a",), 100, None),
        (("89",), ("120",), 86, None),
        (("120", "80"), ("80", "90"), 100, "compute_90"),
    ],
)
def test_which_code_serves_a_gpu_of_other_builds(
    sass: tuple[str, ...], ptx: tuple[str, ...], capability: int, code: str | None
) -> None:
    assert judge.code_for(Gpu(0, "GPU", capability, 1, 1), Kernels(sass=sass, ptx=ptx)) == code


def test_ptx_is_noted() -> None:
    facts = replace(GOOD, gpus=(Gpu(0, "GPU to come", 130, 1, 1),))
    verdict = judge.judge(facts, True)
    assert verdict.is_good
    assert "PTX" in verdict.notes[0]


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0+cu130", "2.13.0a0+gitabc", "3.0", "10.0.1", "unknown"])
def test_torch_versions_that_are_new_enough(version: str) -> None:
    assert codes(replace(GOOD, torch=replace(GOOD.torch, version=version))) == []


@pytest.mark.parametrize("version", ["2.9.1+cu128", "1.13.1", "2.0"])
def test_torch_versions_that_are_too_old(version: str) -> None:
    assert codes(replace(GOOD, torch=replace(GOOD.torch, version=version))) == ["old_torch"]


def test_the_python_that_ran_is_the_one_to_use() -> None:
    package = replace(GOOD.package, executable="C:\\Comfy UI\\python_embeded\\python.exe")
    facts = replace(GOOD, package=package, torch=Torch())
    assert '"C:\\Comfy UI\\python_embeded\\python.exe" -m pip install' in judge.judge(facts, True).sentence


def everything() -> list[Facts]:
    speed = Speed("shape", 1.0, 2.0, 300.0, "flash backend", 1.1, 2.2, None)
    alone = Speed("shape", 1.0, None, 300.0, None, None, None, "no flash backend here")
    return [
        GOOD,
        replace(GOOD, runs=(replace(RUN, speed=speed),)),
        replace(GOOD, runs=(replace(RUN, speed=alone),)),
        replace(GOOD, runs=(replace(RUN, speed_error="out of memory"),)),
        replace(GOOD, launcher=Launcher(None, "gone"), driver=Driver(error="none")),
        *CASES.values(),
    ]


@pytest.mark.parametrize("needs_gpu", [True, False])
def test_report_shows_all_facts(needs_gpu: bool) -> None:
    for facts in everything():
        verdict = judge.judge(facts, needs_gpu)
        text = report.text(facts, verdict)
        assert text.splitlines()[-1] == f"verdict:    {verdict.sentence}"
        for gpu in facts.gpus:
            assert gpu.name in text
        assert facts.package.folder in text
        found: dict[str, Any] = json.loads(json.dumps(report.as_json(facts, verdict), allow_nan=False))
        assert found["ok"] is verdict.is_good
        assert [problem["code"] for problem in found["problems"]] == codes(facts, needs_gpu)
        assert len(found["gpus"]) == len(facts.gpus)


def test_speed_is_a_ratio_to_torch() -> None:
    text = report.text(everything()[1], judge.judge(everything()[1], True))
    assert "against PyTorch's flash backend: forward 1.10 times as fast, backward 1.10 times as fast" in text
    assert "300 TFLOP/s" in text
