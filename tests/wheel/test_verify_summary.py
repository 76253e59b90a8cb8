"""The verifier's Markdown table, for the summary of a pipeline's job."""

from __future__ import annotations

from pathlib import Path

from wheel_parts import Parts

from tools.verify.inspector import Inspector
from tools.verify.report import judge


def test_the_summary_is_added_to_the_file(inspector: Inspector, parts: Parts, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    (tmp_path / "good").mkdir()
    good = parts.build(tmp_path / "good")
    assert judge(inspector, [good], json_wanted=False, summary=summary) == 0
    text = summary.read_text()
    assert text.startswith("before\n| wheel |")
    assert text.count("\n| flash") == 1
    assert "MB | " in text
    assert text.endswith("Nothing is wrong.\n\n")


def test_the_summary_says_what_is_wrong(inspector: Inspector, tmp_path: Path) -> None:
    hostile = tmp_path / "a|b<script>.whl"
    hostile.write_bytes(b"no wheel")
    summary = tmp_path / "summary.md"
    assert judge(inspector, [hostile], json_wanted=False, summary=summary) == 1
    text = summary.read_text()
    assert "<script>" not in text
    assert "a|b" not in text
    assert "\n- a" in text
