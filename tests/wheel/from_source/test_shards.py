"""Kernels compiled apart and merged are those compiled at once, byte for byte; other shards are refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.merge.container import ContainerError, join, split
from tools.merge.merge import merge
from tools.merge.shard import MergeError

Compiled = Callable[[str], Path]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, build_wheel: Any) -> Path:
    """A copy of this project with tiny kernels, in a folder whose name has a space."""
    conftest = sys.modules[build_wheel.__module__]
    made: Path = conftest.make_tiny(conftest.copy_project(tmp_path_factory.mktemp("a project") / "copy"))
    return made


@pytest.fixture(scope="module")
def compiled(
    project: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Compiled:
    """The kernels' folder of a build for these architectures, each in a build tree of its own."""
    done: dict[str, Path] = {}

    def build(archs: str) -> Path:
        if archs not in done:
            tree = tmp_path_factory.mktemp("tree")
            for command in (
                ["cmake", "-G", "Ninja", "-S", str(project), "-B", str(tree),
                 f"-DPython_EXECUTABLE={sys.executable}", f"-DFLASH_ATTN_CUDA_ARCHS={archs}"],
                ["cmake", "--build", str(tree), "--target", "flash_attn_kernels"],
            ):  # fmt: skip
                ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
                assert ran.returncode == 0, ran.stdout + ran.stderr
            done[archs] = tree / "kernels"
        return done[archs]

    return build


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("archs", ["80;90", "80;86;120", "90"])
def test_apart_and_merged_is_at_once(compiled: Compiled, project: Path, tmp_path: Path, archs: str) -> None:
    wanted = archs.split(";")
    shards = [compiled(arch) for arch in reversed(wanted)]
    merge(shards, wanted, tmp_path / "merged", project)
    assert contents(tmp_path / "merged") == contents(compiled(archs))


class TestRefused:
    @pytest.fixture(autouse=True)
    def copies(self, compiled: Compiled, project: Path, tmp_path: Path) -> None:
        self.project, self.output = project, tmp_path / "out"
        self.shards = [tmp_path / arch for arch in ("80", "90")]
        for folder in self.shards:
            shutil.copytree(compiled(folder.name), folder)

    def refusal(self, *shards: Path, wanted: tuple[str, ...] = ("80", "90")) -> str:
        with pytest.raises(MergeError) as refused:
            merge(shards or self.shards, wanted, self.output, self.project)
        assert not self.output.exists()
        assert "\n" not in str(refused.value)
        return str(refused.value)

    def change(self, **values: Any) -> str:
        path = self.shards[1] / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        return self.refusal()

    def test_another_commit(self) -> None:
        said = self.change(source_sha256="0" * 64)
        assert said.startswith(f"{self.shards[1] / 'manifest.json'} has source_sha256 {'0' * 64}, but")

    @pytest.mark.parametrize(
        ("key", "value"),
        [("toolkit", "13.9.9"), ("version", "1.0"), ("flags", ["-O0"]), ("families", {})],
    )
    def test_another_toolkit_version_or_flags(self, key: str, value: Any) -> None:
        assert f"{self.shards[1] / 'manifest.json'} has {key} " in self.change(**{key: value})

    def test_a_missing_shard(self) -> None:
        assert self.refusal(self.shards[0]).startswith("No shard is for architecture 90; build it with")

    def test_a_shard_twice(self) -> None:
        assert "are both for architecture 80" in self.refusal(self.shards[0], *self.shards)

    def test_a_shard_that_nobody_wants(self) -> None:
        assert "is for architecture 90, but wanted are 80" in self.refusal(wanted=("80",))

    def test_a_set_of_two_is_no_shard(self, compiled: Compiled) -> None:
        assert "holds 80, 90, but a shard has one architecture" in self.refusal(compiled("80;90"))

    def test_a_flipped_byte(self) -> None:
        path = self.shards[0] / "two_hdim64_fp16.fatbin"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        assert self.refusal().startswith(f"{path} has SHA-256 ")

    def test_a_missing_fatbin(self) -> None:
        path = self.shards[0] / "two_hdim64_fp16.fatbin"
        path.unlink()
        assert self.refusal().startswith(f"{path} can't be read (No such file or directory)")

    def test_a_missing_kernel(self) -> None:
        fatbins = json.loads((self.shards[1] / "manifest.json").read_text())["fatbins"]
        assert "lacks two_hdim64_fp16" in self.change(fatbins=fatbins[:1])

    def test_a_foreign_fatbin(self) -> None:
        (self.shards[0] / "more.fatbin").write_bytes(b"")
        assert self.refusal().startswith(f"{self.shards[0] / 'more.fatbin'} is not in its manifest")

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 1}'])
    def test_a_bad_manifest(self, text: str) -> None:
        (self.shards[0] / "manifest.json").write_text(text)
        assert str(self.shards[0] / "manifest.json") in self.refusal()

    def test_an_output_among_the_shards(self) -> None:
        self.output = self.shards[0] / "none"
        with pytest.raises(MergeError, match="is one of the shards"):
            merge(self.shards, ["80", "90"], self.shards[0], self.project)


def test_bytes_that_are_no_fatbin(compiled: Compiled) -> None:
    data = (compiled("90") / "two_hdim64_fp16.fatbin").read_bytes()
    assert join(split(data)) == data
    for bad in (
        b"",
        b"x" * 64,
        data[:-1],
        data + b"\0",
        data[:16] + b"\0" * (len(data) - 16),
        b"\0" + data[1:],
    ):
        with pytest.raises(ContainerError):
            split(bad)


def test_sccache_on_the_path_is_used(stand_ins: Any) -> None:
    found = stand_ins.folder / "cache" / "sccache"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\nexit 0\n")
    found.chmod(0o755)
    nvcc = str(stand_ins.nvcc())
    path = f"{found.parent}:{stand_ins.environment['PATH']}"

    def rules(*defines: str, **variables: str) -> str:
        done = stand_ins.configure(*defines, CUDACXX=nvcc, **variables)
        assert done.ok, done.text
        # compile_commands.json leaves launchers out.
        return str((done.build / "build.ninja").read_text())

    assert f"LAUNCHER = {found}" in rules(PATH=path)
    assert "LAUNCHER = other" in rules("CMAKE_CUDA_COMPILER_LAUNCHER=other", PATH=path)
    assert "LAUNCHER" not in rules()
