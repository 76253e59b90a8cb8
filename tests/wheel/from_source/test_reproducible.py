"""Two clean builds under differing circumstances give one wheel: a subset of the real kernels, for sm_90."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def cut_down(project: Path) -> Path:
    """One tile and one variant of the first family: seconds of compiling."""
    path = project / "csrc/flash_attn/kernels.json"
    kernels = json.loads(path.read_text())
    name, family = next(iter(kernels["families"].items()))
    family = {**family, "tiles": family["tiles"][:1], "variants": family["variants"][:1]}
    path.write_text(json.dumps({**kernels, "families": {name: family}}))
    return project


def repaired(wheel: Path, output: Path) -> Path:
    code = (
        "import sys; from pathlib import Path; from tools.repair import repair; "
        "repair(Path(sys.argv[1]), None, Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, str(wheel), str(output)], cwd=ROOT, check=True, timeout=120)
    (made,) = output.iterdir()
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel repairs on Linux alone")
def test_two_builds_one_digest(
    build_wheel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder, file times, umask, time zone and user; each wheel repaired, which packs it again."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    copy_project = sys.modules[build_wheel.__module__].copy_project
    digests = {}
    for name, mask, variables in (
        ("one", 0o022, {"TZ": "UTC"}),
        ("a/much/longer/path", 0o077, {"TZ": "Asia/Tokyo", "USER": "other", "LC_ALL": "C.UTF-8"}),
    ):
        project = cut_down(copy_project(tmp_path / name / "project"))
        if mask == 0o077:
            for path in project.rglob("*.py"):
                os.utime(path, (1_600_000_000, 1_600_000_000))
        with monkeypatch.context() as patched:
            for variable, value in variables.items():
                patched.setenv(variable, value)
            before = os.umask(mask)
            try:
                built = build_wheel(project, tmp_path / name / "built", **variables)
                wheel = repaired(built, tmp_path / name / "repaired")
            finally:
                os.umask(before)
        digests[name] = (wheel.name, sha256(wheel.read_bytes()).hexdigest())
    assert len(set(digests.values())) == 1, digests
