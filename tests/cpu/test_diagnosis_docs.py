"""docs/windows.md quotes what `python -m flash_attn` prints; each quotation must be one it can print."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from mock_driver import installed
from mock_driver.made_up import CASES, GOOD, VERSION

from flash_attn import _launcher
from flash_attn._diagnosis import judge, report
from flash_attn._diagnosis.facts import Facts, Gpu

DOCS = Path(__file__).parents[2] / "docs"
RTX_4090 = Gpu(0, "NVIDIA GeForce RTX 4090", 89, 128, 99 * 1024)
PACKAGE = installed.package()
COMMON = ("cpu_torch", "old_driver", "old_gpu", "two_copies", "old_extension")


def printed(facts: Facts) -> str:
    return report.text(facts, judge.judge(facts, needs_gpu=True))


def quotations() -> list[str]:
    text = (DOCS / "windows.md").read_text(encoding="utf-8")
    return re.findall(r"^```text\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


def test_every_quotation_can_be_printed() -> None:
    possible = [printed(replace(GOOD, gpus=(RTX_4090,)))]
    possible += [printed(facts).splitlines()[-1] for facts in CASES.values()]
    for quotation in quotations():
        assert quotation in possible, quotation


def test_the_five_common_problems_and_a_good_machine_are_quoted() -> None:
    wanted = [printed(replace(GOOD, gpus=(RTX_4090,)))]
    wanted += [printed(CASES[code]).splitlines()[-1] for code in COMMON]
    assert quotations() == wanted


def test_the_wheel_to_install_is_of_this_version() -> None:
    text = (DOCS / "windows.md").read_text(encoding="utf-8")
    assert set(re.findall(r"flash_attn-([^-\s]+)-py3-none-", text)) == {VERSION}


@pytest.mark.skipif(PACKAGE is None, reason="no built flash_attn is installed")
def test_the_kernels_quoted_are_those_of_a_wheel() -> None:
    assert PACKAGE is not None
    manifest = _launcher.Manifest.read(PACKAGE / "kernels/manifest.json")
    assert (set(GOOD.kernels.families), GOOD.kernels.files) == (manifest.families, len(manifest.fatbins))
