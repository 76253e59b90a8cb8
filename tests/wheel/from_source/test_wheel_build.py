"""Real builds: what is in the wheel, that an sdist gives the same one, what a change recompiles."""

from __future__ import annotations

import email
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tools.release.project_version import dev_version, read_version, write_version

ROOT = Path(__file__).parents[3]
Build = Callable[..., Path]


def manifest_of(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as archive:
        loaded: dict[str, Any] = json.loads(archive.read("flash_attn/kernels/manifest.json"))
    return loaded


def test_contents_metadata_and_manifest_of_a_nightly(tiny: Path, build_wheel: Build, tmp_path: Path) -> None:
    version = dev_version(Version(read_version(tiny)).base_version, "20261203")
    write_version(tiny, version)
    wheel = build_wheel(tiny, tmp_path / "out")
    assert wheel.name.startswith(f"flash_attn-{version}-py3-none-")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"flash_attn-{version}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        contents = {name: archive.read(name) for name in names if name.endswith(".fatbin")}
        raw = archive.read("flash_attn/kernels/manifest.json")
    assert {"flash_attn/__init__.py", "flash_attn/lib/libflash_attn.so"} <= names
    assert f"{info}/licenses/LICENSE" in names
    assert not [name for name in names if not name.startswith(("flash_attn/", "flash_attn_2_cuda.py", info))]
    assert metadata["Version"] == version
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata.get_all("Requires-Dist") == ["torch>=2.10"]
    assert metadata["License-Expression"] == "BSD-3-Clause"

    manifest = json.loads(raw)
    assert raw == (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()
    assert manifest["schema"] == 1
    assert manifest["version"] == version
    assert re.fullmatch(r"13\.\d+\.\d+", manifest["toolkit"])
    assert manifest["flags"] == ["-std=c++17", "-O3", "--compress-mode=size"]
    assert manifest["architectures"] == {"sass": ["90"], "ptx": ["90"]}
    assert manifest["families"] == {"one": {"sass": {"*": ["STG"]}}, "two": {"sass": {}}}
    assert {f"flash_attn/kernels/{entry['name']}" for entry in manifest["fatbins"]} == set(contents)
    for entry in manifest["fatbins"]:
        content = contents[f"flash_attn/kernels/{entry['name']}"]
        assert entry["size"] == len(content)
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
    kernels = {kernel["name"]: kernel for entry in manifest["fatbins"] for kernel in entry["kernels"]}
    assert list(kernels) == [
        "one_hdim32_fp16",
        "one_hdim32_fp16_other",
        "one_hdim32_fp16_prepare",
        "one_hdim32_fp16_small",
        "one_hdim32_fp16_other_small",
        "one_hdim32_fp16_prepare_small",
        "two_hdim64_fp16",
    ]
    assert kernels["one_hdim32_fp16_other_small"] == {
        "name": "one_hdim32_fp16_other_small", "family": "one", "head_dim": 32, "dtype": "fp16",
        "variant": "other", "stage": False, "block_m": 32, "block_n": 32, "warps": 4, "smem_bytes": 2048,
        "spill_bytes": 8,
    }  # fmt: skip
    assert [kernel["name"] for kernel in kernels.values() if kernel["stage"]] == [
        "one_hdim32_fp16_prepare",
        "one_hdim32_fp16_prepare_small",
    ]


def test_a_source_distribution_builds_the_same_wheel(build_wheel: Build, tmp_path: Path) -> None:
    """With the real kernels, cut down to one tile so that it takes seconds."""
    from_conftest = sys.modules[build_wheel.__module__]
    project: Path = from_conftest.copy_project(tmp_path / "project")
    list_path = project / "csrc/flash_attn/kernels.json"
    kernels = json.loads(list_path.read_text())
    name, family = next(iter(kernels["families"].items()))
    family["tiles"] = family["tiles"][:1]
    family["variants"] = family["variants"][:1]
    kernels["families"] = {name: family}
    list_path.write_text(json.dumps(kernels))

    sdist = build_wheel(project, tmp_path / "sdist", "--sdist")
    direct = build_wheel(project, tmp_path / "direct")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(unpacked)], check=True)
    (source,) = unpacked.iterdir()
    from_sdist = build_wheel(source, tmp_path / "from_sdist")
    assert from_sdist.name == direct.name
    assert (
        hashlib.sha256(from_sdist.read_bytes()).hexdigest() == hashlib.sha256(direct.read_bytes()).hexdigest()
    )


def test_a_changed_header_recompiles_only_what_includes_it(tiny: Path, environment: dict[str, str]) -> None:
    tree = tiny / "tree"
    setting = {**environment, "FLASH_ATTN_CUDA_ARCHS": "90"}

    def run(*command: str) -> str:
        ran = subprocess.run(command, env=setting, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def compiled() -> set[str]:
        return set(re.findall(r"Building CUDA object \S*/(\w+)\.fatbin", run("cmake", "--build", str(tree))))

    def change(header: str) -> None:
        path = tiny / "csrc/flash_attn/src" / header
        path.write_text(path.read_text() + "// changed\n")

    run("cmake", "-G", "Ninja", "-S", str(tiny), "-B", str(tree), f"-DPython_EXECUTABLE={sys.executable}")
    assert compiled() == {"one_hdim32_fp16", "two_hdim64_fp16"}
    assert compiled() == set()
    before = json.loads((tree / "kernels/manifest.json").read_text())["source_sha256"]
    change("two.h")
    assert compiled() == {"two_hdim64_fp16"}
    assert json.loads((tree / "kernels/manifest.json").read_text())["source_sha256"] != before
    change("prepare.h")
    assert compiled() == {"one_hdim32_fp16"}
    change("shared.h")
    assert compiled() == {"one_hdim32_fp16", "two_hdim64_fp16"}
    change("flash.h")
    assert compiled() == set()


def test_a_third_tile_has_no_name(stand_ins: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny / "csrc/flash_attn/kernels.json"
    kernels = json.loads(path.read_text())
    kernels["families"]["one"]["tiles"].append(kernels["families"]["one"]["tiles"][0])
    path.write_text(json.dumps(kernels))
    monkeypatch.setattr(sys.modules[type(stand_ins).__module__], "ROOT", tiny)
    done = stand_ins.configure(CUDACXX=str(stand_ins.nvcc()))
    assert not done.ok
    assert "kernels.json lists 3 tiles of one for head dimension 32; at most two have a name." in done.text


@pytest.fixture(scope="session")
def kernels_elsewhere(build_wheel: Build, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny project and its wheel, built with CUDA."""
    conftest = sys.modules[build_wheel.__module__]
    project: Path = conftest.make_tiny(
        conftest.copy_project(tmp_path_factory.mktemp("elsewhere") / "project")
    )
    return project, build_wheel(project, tmp_path_factory.mktemp("wheel") / "out")


class TestKernelsBuiltElsewhere:
    """FLASH_ATTN_KERNELS_DIR: taken as they are when every digest is right, refused otherwise."""

    @pytest.fixture(autouse=True)
    def unpack(
        self, kernels_elsewhere: tuple[Path, Path], tmp_path: Path, without_nvcc: dict[str, str]
    ) -> None:
        self.project, self.wheel = kernels_elsewhere
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(tmp_path)
        self.folder = tmp_path / "flash_attn/kernels"
        self.tree = tmp_path / "tree"
        self.environment = {**without_nvcc, "FLASH_ATTN_KERNELS_DIR": str(self.folder)}

    def configure(self) -> tuple[bool, str]:
        ran = subprocess.run(
            ["cmake", "-G", "Ninja", "-S", str(self.project), "-B", str(self.tree),
             f"-DPython_EXECUTABLE={sys.executable}"],
            env=self.environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return ran.returncode == 0, re.sub(r"\s+", " ", ran.stdout + ran.stderr)

    def test_the_same_wheel_without_cuda(self, build_wheel: Build, tmp_path: Path) -> None:
        again = build_wheel(
            self.project, tmp_path / "again", FLASH_ATTN_KERNELS_DIR=str(self.folder),
            PATH=self.environment["PATH"], CUDACXX="/no/such/nvcc",
        )  # fmt: skip
        assert again.read_bytes() == self.wheel.read_bytes()

    def test_cuda_stays_off(self) -> None:
        done, text = self.configure()
        assert done, text
        assert "CMAKE_CUDA_COMPILER" not in (self.tree / "CMakeCache.txt").read_text()
        assert "CUDA" not in text

    def test_a_flipped_byte_is_refused(self) -> None:
        fatbin = self.folder / "two_hdim64_fp16.fatbin"
        content = bytearray(fatbin.read_bytes())
        content[len(content) // 2] ^= 1
        fatbin.write_bytes(content)
        done, text = self.configure()
        assert not done
        assert "two_hdim64_fp16.fatbin has SHA-256 " in text
        assert "but its manifest says " in text
        assert not (self.tree / "kernels").exists()

    def test_a_missing_fatbin_is_refused(self) -> None:
        (self.folder / "two_hdim64_fp16.fatbin").unlink()
        done, text = self.configure()
        assert not done
        assert "two_hdim64_fp16.fatbin can't be read (No such file or directory)" in text

    def test_another_source_is_refused(self) -> None:
        manifest = json.loads((self.folder / "manifest.json").read_text())
        manifest["source_sha256"] = "0" * 64
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        done, text = self.configure()
        assert not done
        assert f"has source_sha256 {'0' * 64}, but this source tree has " in text

    def test_other_kernels_are_refused(self) -> None:
        manifest = json.loads((self.folder / "manifest.json").read_text())
        manifest["fatbins"][0]["kernels"][0]["smem_bytes"] += 1
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        done, text = self.configure()
        assert not done
        assert "lists other kernels than kernels.json" in text

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "whose manifest.json can't be read (No such file or directory)"),
            ("{", "manifest.json is not JSON"),
            ("[]", "manifest.json has schema list, but this build reads 1"),
            ('{"schema": 2}', "manifest.json has schema 2, but this build reads 1"),
        ],
    )
    def test_a_bad_manifest_is_refused(self, content: str | None, said: str) -> None:
        path = self.folder / "manifest.json"
        path.unlink()
        if content is not None:
            path.write_text(content)
        done, text = self.configure()
        assert not done
        assert said in text
