"""The win_amd64 wheel in three CPythons for Windows under Wine, in a folder with a difficult name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from mock_driver.driver import ENTRY_POINTS

from windows.downloads import PYTHONS
from windows.interpreter import DIFFICULT
from windows.wine import windows_path

NO_DRIVER = (
    "RuntimeError: No CUDA driver was found (nvcuda.dll does not load): "
    "install the NVIDIA driver, version 580 or newer"
)


def test_it_is_imported_from_where_pip_put_it(python: Any) -> None:
    inside = python.without_driver
    assert inside["version"] == python.version
    assert inside["python"].startswith(python.interpreter.kind.python)
    assert f"\\{DIFFICULT}\\Python {python.interpreter.kind.minor}\\Lib\\site-packages\\" in inside["file"]


def test_without_a_driver_one_sentence_says_so(python: Any) -> None:
    assert python.without_driver["no driver"] == NO_DRIVER


def test_planted_libraries_are_not_loaded(python: Any) -> None:
    """They lie in the working directory and beside python.exe. One loaded on purpose is seen."""
    inside = python.without_driver
    (library,) = inside["loaded"]
    assert library.endswith("\\Lib\\site-packages\\flash_attn\\lib\\flash_attn.dll")
    assert len(inside["planted"]) == 2
    assert inside["no driver beside a loaded one"] == NO_DRIVER
    driver, library = sorted(python.with_driver["loaded"], key=lambda path: "flash_attn" in path)
    assert driver.lower() == "c:\\windows\\system32\\nvcuda.dll"
    assert library.endswith("\\Lib\\site-packages\\flash_attn\\lib\\flash_attn.dll")


def test_fake_and_meta_tensors(python: Any) -> None:
    fakes = python.without_driver["fakes"]
    assert fakes["func"] == [[[2, 7, 4, 64], "torch.bfloat16", "cuda:0"]]
    assert fakes["varlen"] == [[[14, 4, 64], "torch.bfloat16", "cuda:0"]]
    assert fakes["kvcache"] == [[[2, 7, 4, 64], "torch.bfloat16", "cuda:0"]]
    assert fakes["meta"] == [
        [[2, 7, 4, 64], "torch.bfloat16", "meta"],
        [[2, 4, 7], "torch.float32", "meta"],
        [[2, 4, 128], "torch.float32", "meta"],
    ]


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("no tensor", "TypeError: q must be a torch.Tensor"),
        ("fp32", "fp16 and bf16"),
        ("head dimensions", "head dimension"),
        ("heads", "multiple"),
        ("dropout", "dropout_p"),
        ("cpu", "works on CUDA tensors only"),
    ],
)
def test_bad_arguments(python: Any, case: str, sentence: str) -> None:
    assert sentence in python.without_driver["refused"][case]


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_driver_without_an_entry_point(python: Any, name: str) -> None:
    assert python.with_driver["bad drivers"][name] == (
        f"RuntimeError: The CUDA driver (nvcuda.dll) lacks the entry point {name}: "
        "reinstall the NVIDIA driver, version 580 or newer"
    )


def test_other_bad_drivers(python: Any) -> None:
    bad = python.with_driver["bad drivers"]
    assert "it supports CUDA 12.8, and flash-attn needs driver 580 or newer" in bad["old"]
    assert "No NVIDIA GPU was found" in bad["no device"]


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("missing", " is missing: reinstall flash-attn"),
        ("cut", " is damaged (its "),
        ("empty", " is damaged (its 0 bytes "),
        ("denied", " may not be read (permission denied): allow this user to read it"),
        ("locked", " may not be read (permission denied): allow this user to read it"),
    ],
)
def test_bad_fatbin(python: Any, case: str, sentence: str) -> None:
    bad = python.with_driver["bad files"]
    assert sentence in bad[case]
    assert "flash_fwd_hdim64_bf16.fatbin" in bad[case]
    assert bad["whole"] == "none"  # the same process goes on once the file is right


def test_autograd(python: Any) -> None:
    found = python.with_driver["autograd"]
    assert found["out"] == [2, 9, 4, 64]
    assert found["gradients"] == [[2, 9, 4, 64], [2, 9, 2, 64], [2, 9, 2, 64]]
    assert found["launches"][0].startswith("flash_fwd_hdim64_fp16")
    assert any(name.startswith("flash_bwd_hdim64_fp16") for name in found["launches"])


def test_every_launch_is_that_of_linux_to_the_byte(python: Any, linux_launches: list[str]) -> None:
    manifest = json.loads((python.interpreter.package / "kernels/manifest.json").read_text(encoding="utf-8"))
    kernels = {kernel["name"] for fatbin in manifest["fatbins"] for kernel in fatbin["kernels"]}
    launched = {line.split()[0] for line in python.launches if not line.startswith("error: ")}
    assert launched == kernels
    assert python.with_driver["loads"] >= len(manifest["fatbins"])
    assert len(python.launches) == len(linux_launches) > 10_000
    assert python.launches == linux_launches


@pytest.mark.parametrize(
    ("when", "codes"), [(0, {"cpu_torch", "no_driver"}), (1, {"cpu_torch"})], ids=["no driver", "driver"]
)
def test_the_diagnosis(python: Any, when: int, codes: set[str]) -> None:
    done = python.diagnoses[when]
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert {problem["code"] for problem in found["problems"]} == codes
    assert done.returncode == 1
    assert found["version"] == python.version
    assert found["wheel_tags"] == ["py3-none-win_amd64"]
    assert "\n" not in found["verdict"]


def test_the_package_names_the_command_that_mends_it(python: Any) -> None:
    folder = windows_path(python.interpreter.package / "kernels")
    said = python.with_driver["without a fatbin"]
    assert said.startswith(f"RuntimeError: The kernel file {folder}")
    assert " is missing: close every program that uses flash_attn and run " in said


def test_the_command_mends_it(found: dict[str, Any]) -> None:
    """As typed into a command prompt, for one of the CPythons: its words, without their quotation marks."""
    python = found[PYTHONS[-1].minor]
    fatbin = python.interpreter.package / "kernels/flash_fwd_hdim96_fp16.fatbin"
    whole = fatbin.read_bytes()
    fatbin.unlink()
    _, _, command = python.with_driver["without a fatbin"].partition(" and run ")
    program, *words = (word.strip('"') for word in re.findall(r'"[^"]+"|\S+', command))
    assert program == windows_path(python.interpreter.folder / "python.exe")
    done = python.interpreter.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert fatbin.read_bytes() == whole
